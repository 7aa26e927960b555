"""MaxSim of other libraries, as the calls that `scoring.py` takes the time of, if they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from latelier.kernels.library import instruction_set

__all__ = ["maxsim_cpu_calls", "numkong_calls"]

# What NumKong may use on x86 where our kernels are kept from newer instructions, by its names of processors.
_NUMKONG = {"avx2": {"serial", "haswell"}, "avxvnni": {"serial", "haswell", "alder"}, "generic": {"serial"}}


def maxsim_cpu_calls(query: torch.Tensor, documents: list[torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Return maxsim-cpu on a list, and on a padded array if the documents are equally long."""
    if not importlib.util.find_spec("maxsim_cpu"):
        return {}
    import maxsim_cpu

    left, arrays = query.numpy(), [document.numpy() for document in documents]
    calls = {"maxsim-cpu, list": lambda: maxsim_cpu.maxsim_scores_variable(left, arrays)}
    if len({len(array) for array in arrays}) == 1:
        padded = np.stack(arrays)
        calls["maxsim-cpu, padded"] = lambda: maxsim_cpu.maxsim_scores(left, padded)
    return calls


def numkong_calls(query: torch.Tensor, documents: list[torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Return NumKong's MaxSim, one call per document, and its int8 dot products without the maximum; in one thread.

    Its documents are packed beforehand. MaxSim chooses each query token's document token by 8-bit numbers and then
    takes the similarity of that one, so that scores are lower than the true ones where it chose another.
    """
    if not importlib.util.find_spec("numkong"):
        return {}
    import numkong

    allowed = _NUMKONG.get(instruction_set(), set(numkong.get_capabilities()))
    for name, has in numkong.get_capabilities().items():
        if has and name not in allowed:
            numkong.disable_capability(name)
    calls: dict[str, Callable[[], Any]] = {}
    for short, name, dtype in (("f32", "float32", np.float32), ("f16", "float16", np.float16)):
        left = numkong.maxsim_pack(query.numpy().astype(dtype), dtype=short)
        right = [numkong.maxsim_pack(document.numpy().astype(dtype), dtype=short) for document in documents]
        calls[f"NumKong, {name} (approximate)"] = lambda left=left, right=right: (
            len(query) - np.array([numkong.maxsim_packed(left, document) for document in right])
        )
    codes = [(127 * matrix / matrix.abs().max()).round().to(torch.int8).numpy() for matrix in (query, *documents)]
    packed = numkong.dots_pack(codes[0])
    rows = np.concatenate(codes[1:])
    calls["NumKong, int8 dot products"] = lambda: numkong.dots_packed(rows, packed)
    return calls
