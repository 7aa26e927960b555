"""The choice of an engine for the inputs of a scoring function.

A new engine is a module with a subclass of `Engine`, and a line in the table here.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from latelier.errors import InvalidArgumentError
from latelier.scores.engines.base import Engine, needs_gradient
from latelier.scores.engines.cuda import FusedEngine, is_installed
from latelier.scores.engines.int8 import Int8Engine
from latelier.scores.engines.packed import PackedEngine
from latelier.scores.engines.padded import TorchEngine
from latelier.scores.inputs import Side
from latelier.utils.checks import check_choice

__all__ = ["Backend", "choose_engine"]

Backend: TypeAlias = Literal["auto", "packed", "int8", "torch", "fused"]

_ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (PackedEngine(), Int8Engine(), TorchEngine(), FusedEngine())
}


def choose_engine(backend: str, queries: Side, documents: Side) -> Engine:
    """Return the engine for these inputs.

    Parameters
    ----------
    backend
        ``"auto"``, or an engine by name: ``"packed"`` (CPU), ``"int8"`` (CPU, integer products, no gradient),
        ``"fused"`` (CUDA, with Triton) or ``"torch"`` (any device, any floating dtype).
    queries, documents
        The inputs.

    Returns
    -------
    Engine
        With ``"auto"``: on the CPU int8 for int8 documents and packed for others, on CUDA fused where it is installed
        and fits; torch elsewhere, and for gradients in double precision, which the kernels do not have.

    Raises
    ------
    InvalidArgumentError
        If the engine is unknown, or cannot score these inputs.
    MissingExtraError
        If the engine is ``"fused"`` and its kernels are not installed.
    """
    if isinstance(backend, str) and backend == "auto":
        return _ENGINES[_best(queries, documents)]
    check_choice("backend", backend, ["auto", *_ENGINES])
    engine = _ENGINES[backend]
    unfit = engine.unfit(queries, documents)
    if unfit:
        raise InvalidArgumentError(f"backend {backend!r} {unfit}; use 'auto'.")
    engine.require()
    return engine


def _best(queries: Side, documents: Side) -> str:
    if _ENGINES["fused"].unfit(queries, documents) is None and is_installed():
        return "fused"
    double = torch.float64 in (queries.vectors.dtype, documents.vectors.dtype)
    if _ENGINES["packed"].unfit(queries, documents) or (double and needs_gradient(queries, documents)):
        return "torch"
    return "int8" if documents.vectors.dtype == torch.int8 and not needs_gradient(queries, documents) else "packed"
