"""The seam between the scoring functions and what computes them: one function chooses, two shapes are computed.

An engine is a pair of functions over two `Side`: all queries against all documents ``(q, d)``, and each query
against its own group of documents ``(b, n)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.scores.engines import autograd, cuda, packed, padded
from latelier.scores.engines import int8 as quantized
from latelier.scores.inputs import Side

__all__ = ["Backend", "Engine", "choose_engine"]

Backend: TypeAlias = Literal["auto", "packed", "int8", "torch", "fused"]


class Engine(NamedTuple):
    """What computes scores.

    Parameters
    ----------
    name
        What the user asks for as ``backend=``.
    all_pairs
        Queries and documents to ``(q, d)`` float32.
    grouped
        ``b`` queries and ``b * n`` documents to ``(b, n)`` float32.
    """

    name: str
    all_pairs: Callable[[Side, Side], torch.Tensor]
    grouped: Callable[[Side, Side], torch.Tensor]


def choose_engine(backend: str, queries: Side, documents: Side) -> Engine:
    """Return the engine for these inputs.

    Parameters
    ----------
    backend
        ``"auto"``, or an engine by name: ``"packed"`` (CPU), ``"int8"`` (CPU, integer products, no gradient),
        ``"fused"`` (CUDA, with the extra 'gpu') or ``"torch"`` (any device, any floating dtype).
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
        If the engine is unknown, or cannot do what these inputs need.
    MissingExtraError
        If the engine is ``"fused"`` and its kernels are not installed.
    EmbeddingsError
        If the dimensions differ.
    """
    if queries.dim != documents.dim and len(queries) and len(documents):
        raise EmbeddingsError(
            f"the queries have dim {queries.dim}, the documents {documents.dim}; encode both with the same model."
        )
    gradient = _needs_gradient(queries, documents)
    on_cpu = queries.vectors.device.type == "cpu" and documents.vectors.device.type == "cpu"
    unfit = cuda.unfit(queries, documents, gradient=gradient)
    if isinstance(backend, str) and backend == "auto":
        if unfit is None and cuda.is_installed():
            return _ENGINES["fused"]
        double = torch.float64 in (queries.vectors.dtype, documents.vectors.dtype)
        if not on_cpu or (gradient and double):
            return _ENGINES["torch"]
        return _ENGINES["int8" if documents.vectors.dtype == torch.int8 and not gradient else "packed"]
    if not isinstance(backend, str) or backend not in _ENGINES:
        raise InvalidArgumentError(f"unknown backend {backend!r}; expected 'auto', {', '.join(map(repr, _ENGINES))}.")
    if backend == "fused":
        if unfit:
            raise InvalidArgumentError(f"backend 'fused' {unfit}; use 'auto'.")
        cuda.require()
    if backend in ("packed", "int8") and not on_cpu:
        raise InvalidArgumentError(
            f"backend {backend!r} is for the CPU, but the documents are on {documents.vectors.device}; use 'auto'."
        )
    if backend == "int8" and gradient:
        raise InvalidArgumentError("backend 'int8' has no gradients, but they are needed here; use 'auto'.")
    return _ENGINES[backend]


def _needs_gradient(queries: Side, documents: Side) -> bool:
    return torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad)


def _packed_all(queries: Side, documents: Side) -> torch.Tensor:
    if _needs_gradient(queries, documents):
        return autograd.maxsim(queries.packed, documents.packed)
    if documents.listed is None:
        return torch.from_numpy(packed.maxsim(queries.packed, documents.packed))
    return torch.from_numpy(packed.maxsim_list(queries.packed, documents.listed))


def _packed_grouped(queries: Side, documents: Side) -> torch.Tensor:
    return autograd.maxsim_grouped(queries.packed, documents.packed)


def _int8_all(queries: Side, documents: Side) -> torch.Tensor:
    return torch.from_numpy(quantized.maxsim(queries.packed, documents.packed))


def _int8_grouped(queries: Side, documents: Side) -> torch.Tensor:
    left, right = queries.packed, documents.packed
    n = len(right) // max(len(left), 1)
    rows = [quantized.maxsim(left[i : i + 1], right[i * n : (i + 1) * n]) for i in range(len(left))]
    return torch.from_numpy(np.concatenate([np.empty((0, n), dtype=np.float32), *rows]))


def _fused_all(queries: Side, documents: Side) -> torch.Tensor:
    return cuda.maxsim(queries.packed, documents.packed)


def _fused_grouped(queries: Side, documents: Side) -> torch.Tensor:
    return cuda.maxsim_grouped(queries.packed, documents.packed)


def _torch_all(queries: Side, documents: Side) -> torch.Tensor:
    return padded.maxsim(*_prepare(queries, documents)).float()


def _torch_grouped(queries: Side, documents: Side) -> torch.Tensor:
    query_vectors, document_vectors, queries_mask, documents_mask = _prepare(queries, documents)
    if not len(document_vectors):  # nothing tells their dim
        return query_vectors.new_zeros(len(query_vectors), 0, dtype=torch.float32)
    shape = (len(query_vectors), len(document_vectors) // max(len(query_vectors), 1))
    return padded.maxsim_grouped(
        query_vectors, document_vectors.unflatten(0, shape), queries_mask, documents_mask.unflatten(0, shape)
    ).float()


def _prepare(queries: Side, documents: Side) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bring both sides to one dtype and the documents' device."""
    (query_vectors, queries_mask), (document_vectors, documents_mask) = queries.padded, documents.padded
    device = document_vectors.device
    dtype = torch.promote_types(query_vectors.dtype, document_vectors.dtype)
    if device.type == "cpu" and dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32  # half precision is emulated, slower and less exact on most CPUs
    return (
        query_vectors.to(device, dtype),
        document_vectors.to(dtype),
        queries_mask.to(device),
        documents_mask,
    )


_ENGINES = {
    "packed": Engine("packed", _packed_all, _packed_grouped),
    "int8": Engine("int8", _int8_all, _int8_grouped),
    "torch": Engine("torch", _torch_all, _torch_grouped),
    "fused": Engine("fused", _fused_all, _fused_grouped),
}
