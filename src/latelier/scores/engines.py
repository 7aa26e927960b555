"""The seam between the scoring functions and what computes them: one function chooses, two shapes are computed.

An engine is a pair of functions over two `Side`: all queries against all documents ``(q, d)``, and each query
against its own group of documents ``(b, n)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch

from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.scores import packed, padded
from latelier.scores.inputs import Side

__all__ = ["Backend", "Engine", "choose_engine"]

Backend: TypeAlias = Literal["auto", "packed", "torch"]


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
        ``"auto"``, or an engine by name: ``"packed"`` (CPU, no gradient) or ``"torch"`` (any device, gradients).
    queries, documents
        The inputs.

    Returns
    -------
    Engine
        With ``"auto"``: packed for the CPU where no gradient is asked for, torch elsewhere.

    Raises
    ------
    InvalidArgumentError
        If the engine is unknown, or cannot do what these inputs need.
    EmbeddingsError
        If the dimensions differ.
    """
    if queries.dim != documents.dim and len(queries) and len(documents):
        raise EmbeddingsError(
            f"the queries have dim {queries.dim}, the documents {documents.dim}; encode both with the same model."
        )
    gradient = torch.is_grad_enabled() and (queries.vectors.requires_grad or documents.vectors.requires_grad)
    on_cpu = queries.vectors.device.type == "cpu" and documents.vectors.device.type == "cpu"
    if backend == "auto":
        return _ENGINES["packed" if on_cpu and not gradient else "torch"]
    if backend not in _ENGINES:
        raise InvalidArgumentError(f"unknown backend {backend!r}; expected 'auto', {', '.join(map(repr, _ENGINES))}.")
    if backend == "packed" and (gradient or not on_cpu):
        why = "gradients are needed" if gradient else f"the documents are on {documents.vectors.device}"
        raise InvalidArgumentError(f"backend 'packed' is for the CPU without gradients, but {why}; use 'torch'.")
    return _ENGINES[backend]


def _packed_all(queries: Side, documents: Side) -> torch.Tensor:
    return torch.from_numpy(packed.maxsim(queries.packed, documents.packed))


def _packed_grouped(queries: Side, documents: Side) -> torch.Tensor:
    return torch.from_numpy(packed.maxsim_grouped(queries.packed, documents.packed))


def _torch_all(queries: Side, documents: Side) -> torch.Tensor:
    return padded.maxsim(*_prepare(queries, documents)).float()


def _torch_grouped(queries: Side, documents: Side) -> torch.Tensor:
    query_vectors, document_vectors, queries_mask, documents_mask = _prepare(queries, documents)
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
    "torch": Engine("torch", _torch_all, _torch_grouped),
}
