"""The choice between torch and ONNX Runtime on a CPU: asked for, or measured once and remembered."""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from math import log
from typing import Any
from weakref import WeakKeyDictionary

import torch
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from sentence_transformers.base.modules import Dense, Transformer
from torch import nn

from latelier.errors import InvalidArgumentError, LatelierError, MissingExtraError
from latelier.kernels.threads import allowed_threads, for_each
from latelier.models.cpu.forwards import patched_forwards
from latelier.models.cpu.held_threads import held_threads, runs_in_threads
from latelier.models.cpu.onnx_forward import exported_session, known_fingerprint, onnx_forward
from latelier.utils.checks import check_choice
from latelier.utils.files import cache_folder, replaced

__all__ = ["check_backend", "cpu_forwards"]

_BACKENDS = ("torch", "onnx", "auto")
_PACKAGES = ("onnxruntime", "onnx", "onnxscript")
# (texts, tokens): a query; and documents, of which each thread has a batch that takes torch about 50 ms on one core.
_SHAPES = ((1, 12), (4, 100))
_SECONDS = 0.4  # to measure each shape

logger = logging.getLogger(__name__)
_choices: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def check_backend(backend: Any, device: Any) -> Any:
    """Check the backend and the device that a model is to be loaded with.

    Parameters
    ----------
    backend
        ``"torch"``, ``"onnx"`` or ``"auto"``.
    device
        The device asked for, or None.

    Returns
    -------
    str, torch.device or None
        The device; ``"cpu"`` if none was asked for and the backend is ``"onnx"``.

    Raises
    ------
    InvalidArgumentError
        If there is no such backend, or ``"onnx"`` is to compute elsewhere than on the CPU.
    MissingExtraError
        If ONNX Runtime is asked for and not installed.
    """
    check_choice("backend", backend, _BACKENDS)
    if backend != "onnx":
        return device
    if not _is_installed():
        raise MissingExtraError('backend="onnx"', "onnx")
    if device is not None and str(device).split(":")[0] != "cpu":
        raise InvalidArgumentError(
            f"received backend='onnx' with device={str(device)!r}; it computes on the CPU. Give device='cpu', or "
            "backend='torch'."
        )
    return "cpu"


@contextmanager
def cpu_forwards(model: Any, compute_dtype: str, reads_attention: bool = False) -> Iterator[None]:
    """Encode on the CPU inside the block with the model's backend: patched forwards, or ONNX Runtime.

    Parameters
    ----------
    model
        The model; its ``cpu_backend`` is ``"torch"`` where it has none.
    compute_dtype
        ``"float32"``; ``"int8"``; or ``"autocast"``, for which torch computes in the dtype of its autocast.
    reads_attention
        Whether the encoder's attention is recorded. ONNX Runtime does not return it, so torch computes.

    Raises
    ------
    InvalidArgumentError
        For ``"int8"`` with torch, or where attention is recorded.
    LatelierError
        For ``"int8"`` if the weights have changed since the model was first used, or it has hooks or adapters inside.
    """
    backend = getattr(model, "cpu_backend", "torch")
    if compute_dtype == "int8" and (backend not in ("onnx", "auto") or not _is_installed()):
        raise InvalidArgumentError(
            "received compute_dtype='int8', which ONNX Runtime computes; load the model with backend='onnx'."
        )
    if compute_dtype == "int8" and reads_attention:
        raise InvalidArgumentError(
            "received compute_dtype='int8' with a pool_method that reads the encoder's attention, which ONNX Runtime "
            "does not return; give another compute_dtype, or pool_method='ward'."
        )
    encoder: Any = model[0].model if isinstance(model[0], Transformer) else None
    if encoder is None and (compute_dtype == "int8" or backend == "onnx"):
        raise InvalidArgumentError(
            f"received backend={backend!r} for a model whose first module is a {type(model[0]).__name__}; ONNX Runtime "
            "runs those that start with a Transformer. Give backend='torch'."
        )
    session = None
    follows_backend = compute_dtype == "float32" and not reads_attention
    if encoder is not None and (compute_dtype == "int8" or (follows_backend and _wants_onnx(encoder, backend))):
        session = exported_session(encoder, compute_dtype)
        if session is None and compute_dtype == "int8":
            raise LatelierError(
                "received compute_dtype='int8', but the weights have changed since the model was first used, or it has "
                "hooks or adapters inside. Save the model, with adapters merged, and load it again to encode in int8."
            )
    with patched_forwards(model) if session is None else onnx_forward(encoder, session, _heads(model)):
        yield


def _heads(model: Any) -> list[nn.Linear]:
    dense = (module for module in model if isinstance(module, Dense))
    return [each for module in dense for each in module.children() if type(each) is nn.Linear]


@cache  # looking for packages takes a tenth of the time of a short query
def _is_installed() -> bool:
    return all(find_spec(package) is not None for package in _PACKAGES)


def _wants_onnx(encoder: nn.Module, backend: str) -> bool:
    """Whether the backend is ONNX Runtime, or ``"auto"`` and ONNX Runtime is faster."""
    if backend != "auto" or not _is_installed():
        return backend == "onnx"
    if encoder not in _choices:
        try:
            _choices[encoder] = _recall_or_measure(encoder)
        except LatelierError as error:
            logger.info("encoding with torch: %s", error)
            _choices[encoder] = False
    return _choices[encoder]


def _recall_or_measure(encoder: nn.Module) -> bool:
    if next(encoder.parameters()).dtype != torch.float32:
        return False
    path = cache_folder() / "onnx" / f"{known_fingerprint(encoder)}-{_machine()}.backend"
    try:
        return path.read_text(encoding="utf-8") == "onnx"
    except (OSError, ValueError):
        is_faster = _is_faster(encoder)
    try:
        with replaced(path) as new:
            new.write_text("onnx" if is_faster else "torch", encoding="utf-8")
    except OSError as error:
        logger.info("the choice of a backend is not remembered: %s", error)
    return is_faster


def _machine() -> str:
    """Return a hash of what the faster backend depends on: processor, threads and versions."""
    features = sorted(name for name, present in get_host_cpu_features().items() if present)
    versions = [version(package) for package in ("torch", "onnxruntime")]
    facts = (platform.machine(), get_host_cpu_name(), features, torch.get_num_threads(), versions)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _is_faster(encoder: Any) -> bool:
    """Whether ONNX Runtime is faster than torch: the geometric mean of the ratios of times, by turns, at their best."""
    session = exported_session(encoder, "float32")
    if session is None:
        return False
    total = 0.0
    for n, length in _SHAPES:
        ids = torch.randint(0, encoder.config.vocab_size, (n, length), generator=torch.Generator().manual_seed(0))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "return_dict": True}
        best = [float("inf"), float("inf")]
        begin = time.perf_counter()
        rounds = 0
        while rounds < 2 or time.perf_counter() - begin < _SECONDS:  # the first round prepares weights and memory
            for i, forwards in enumerate((lambda: patched_forwards(encoder), lambda: onnx_forward(encoder, session))):
                start = time.perf_counter()
                _run(encoder, inputs, forwards)
                best[i] = min(best[i], time.perf_counter() - start)
            rounds += 1
        total += log(best[1] / best[0])
    return total < 0


def _run(encoder: Any, inputs: dict[str, Any], forwards: Callable[[], AbstractContextManager[None]]) -> None:
    """Run a query once; or documents once in each thread."""

    def run(held: AbstractContextManager[Any]) -> None:
        with held, torch.no_grad(), forwards():
            encoder(**inputs)

    if len(inputs["input_ids"]) == 1 or not runs_in_threads(encoder):
        run(nullcontext())
    else:
        for_each(run, [held_threads(1) for _ in range(allowed_threads())])
