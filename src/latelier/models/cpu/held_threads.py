"""torch held to fewer threads in one thread, so that several threads each encode batches of their own.

Threads that share a batch wait for each other after every operation: a tenth of the time on two idle cores, and on a
busy machine as long as one of them is without a core. `torch.set_num_threads` changes the whole process, and what it
sets for MKL holds in threads that were limited before. OpenMP and MKL also know limits of one thread.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import ThreadpoolController
from torch import nn

from latelier.models.cpu.patching import PatchedForward

__all__ = ["held_threads", "runs_in_threads"]

# Modules of other packages, such as code that comes with a checkpoint, may keep what they compute for the next call.
_PACKAGES = ("latelier.", "sentence_transformers.", "torch.nn.", "transformers.")
# Rotary position embeddings that are computed anew, and kept, when a longer text comes.
_CHANGING_ROPE = ("dynamic", "longrope")
_COUNTS = re.compile(r"(?:at::get_num_threads|\w+_get_max_threads)\(\) : (\d+)")


@contextmanager
def held_threads(most: int) -> Iterator[bool]:
    """Let torch compute with at most `most` threads in the calling thread inside the block; others keep their number.

    `most`: number of threads, the calling one included; no more than ``torch.get_num_threads()``. Yields: whether it is
    held to them: False where torch takes its threads from elsewhere than OpenMP and MKL.
    """
    torch.get_num_threads()  # at its first call in a thread, torch sets the number of that thread
    limit_mkl = _limit_of_mkl()
    with _openmp().limit(limits=most):
        before = limit_mkl(most)
        try:
            yield set(_COUNTS.findall(torch.__config__.parallel_info())) == {str(most)}
        finally:
            limit_mkl(before)


def runs_in_threads(model: nn.Module) -> bool:
    """Whether several threads may compute with a model at once.

    All its modules are of torch, transformers, sentence-transformers or this library, with nothing hooked in, and none
    of them keeps what it computes.
    """
    return all(map(_keeps_nothing, model.modules()))


def _keeps_nothing(module: nn.Module) -> bool:
    own = module.__dict__
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or own.get("_compiled_call_impl") is not None:
        return False
    if not isinstance(own.get("forward"), PatchedForward | None):
        return False
    rope = str(own.get("rope_type", ""))
    return type(module).__module__.startswith(_PACKAGES) and not any(kind in rope for kind in _CHANGING_ROPE)


@cache
def _openmp() -> Any:
    return ThreadpoolController().select(user_api="openmp")


@cache
def _limit_of_mkl() -> Callable[[int], int]:
    """Return what sets MKL's number of threads for the calling thread, and returns the number before.

    torch contains MKL on Linux and Windows for x86; where there is none, the function does nothing.
    """
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "torch_cpu.dll"):
        try:
            function: Callable[[int], int] = ctypes.CDLL(str(folder / name)).MKL_Set_Num_Threads_Local
        except (OSError, AttributeError):
            continue
        return function
    return lambda count: count
