"""Token matrices of users, numpy or torch, of any floating type and device, as packed numpy embeddings of one type.

Documents and queries pass through here, so both are refused for the same reasons and in the same words: a wrong
shape, another dim, no token, NaN or infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import torch

from latelier.arrays import Array
from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError
from latelier.utils.ranges import lengths_to_offsets

__all__ = ["is_array", "pack", "pack_queries", "refuse_padded"]


def is_array(value: object) -> TypeGuard[Array]:
    """Whether this is a numpy array or a torch tensor."""
    return isinstance(value, (np.ndarray, torch.Tensor))


def refuse_padded(embeddings: object) -> None:
    """Refuse a padded batch: without its mask, padding would count as tokens."""
    if is_array(embeddings) and embeddings.ndim != 2:
        hint = "; give padded embeddings as TokenEmbeddings.from_padded(padded, mask)" if embeddings.ndim == 3 else ""
        raise EmbeddingsError(
            f"received an array of shape {tuple(embeddings.shape)}; expected a 2-D matrix (tokens, dim) per text{hint}."
        )


def pack(items: Sequence[Any] | TokenEmbeddings, names: Sequence[str], dtype: str, dim: int | None) -> TokenEmbeddings:
    """Pack, convert and check the matrices of several texts.

    Parameters
    ----------
    items
        One matrix ``(tokens, dim)`` per text, or packed embeddings.
    names
        What to call each text in an error.
    dtype
        Floating type to convert to.
    dim
        The dim to expect; ``None`` takes the first text's.

    Returns
    -------
    TokenEmbeddings
        numpy, of `dtype`; every text has a token and every number is finite.

    Raises
    ------
    EmbeddingsError
        If a text cannot be taken; the message starts with its name.

    Examples
    --------
    >>> pack([[[1.0, 2.0]], torch.ones(3, 2, dtype=torch.bfloat16)], ["a", "b"], "float16", None)
    TokenEmbeddings(2 texts, 4 tokens, dim=2, float16, numpy)
    """
    if isinstance(items, TokenEmbeddings):
        source = items.to("numpy")
        source = source.to("float32") if source.scales is not None else source
        vectors, offsets = source.vectors, source.offsets
    else:
        matrices = [_matrix(item, name) for item, name in zip(items, names, strict=True)]
        for matrix, name in zip(matrices, names, strict=True):
            _check_dim(matrix.shape[1], matrices[0].shape[1] if dim is None else dim, name)
        vectors = np.concatenate(matrices)
        offsets = lengths_to_offsets([len(matrix) for matrix in matrices])
    _check_dim(vectors.shape[1], vectors.shape[1] if dim is None else dim, names[0])
    without = np.flatnonzero(np.diff(offsets) == 0)
    if without.size:
        raise EmbeddingsError(f"{names[without[0]]} has no token; every text needs at least one.")
    finite = _finite(vectors, offsets, names, dtype)
    if isinstance(items, TokenEmbeddings) and finite is source.vectors:
        return source  # as it came, and checked when it was made
    return TokenEmbeddings(finite, offsets)


def pack_queries(queries: Any, dim: int | None) -> TokenEmbeddings:
    """Return the queries of a search, packed as float32.

    Parameters
    ----------
    queries
        `TokenEmbeddings`, a sequence of matrices, or one matrix for one query.
    dim
        The dim of the index, ``None`` while it is empty.

    Examples
    --------
    >>> pack_queries(np.ones((3, 2)), dim=2)
    TokenEmbeddings(1 texts, 3 tokens, dim=2, float32, numpy)
    """
    refuse_padded(queries)
    if is_array(queries):
        queries = [queries]
    if not isinstance(queries, (TokenEmbeddings, Sequence)) or isinstance(queries, (str, bytes)):
        raise EmbeddingsError(
            f"received {type(queries).__name__} as queries; give TokenEmbeddings, a list of (tokens, dim) matrices, or "
            "one matrix."
        )
    if len(queries) == 0:
        return TokenEmbeddings.from_list([], dim=dim)
    return pack(queries, [f"query {i}" for i in range(len(queries))], "float32", dim)


def _matrix(item: Any, name: str) -> np.ndarray:
    if isinstance(item, torch.Tensor):
        try:
            item = item.detach().cpu()
            item = (item.float() if item.dtype == torch.bfloat16 else item).numpy()
        except (RuntimeError, TypeError) as error:  # sparse, quantized, without numbers (meta), eight bits wide, ...
            raise EmbeddingsError(
                f"{name} came with a torch tensor of {item.dtype}, {item.layout}, on {item.device}, which numpy cannot "
                "hold; expected a dense one of float32, float16, bfloat16 or float64."
            ) from error
    elif not isinstance(item, np.ndarray):
        try:
            item = np.asarray(item, dtype="float32")
        except (TypeError, ValueError) as error:
            raise EmbeddingsError(
                f"{name} came with {type(item).__name__}; expected a 2-D numpy or torch matrix (tokens, dim)."
            ) from error
    if item.ndim != 2:
        hint = "; padded batches go through TokenEmbeddings.from_padded(padded, mask)" if item.ndim == 3 else ""
        raise EmbeddingsError(f"{name} has embeddings of shape {item.shape}; expected 2-D (tokens, dim){hint}.")
    if item.dtype.kind != "f":
        raise EmbeddingsError(
            f"{name} has embeddings of dtype {item.dtype}; expected floating numbers (int8 codes come with their "
            "scales, as TokenEmbeddings)."
        )
    return item


def _check_dim(received: int, expected: int, name: str) -> None:
    if received != expected:
        raise EmbeddingsError(f"{name} has dim {received}, but the others have dim {expected}; encode with one model.")
    if received == 0:
        raise EmbeddingsError(f"{name} has dim 0; every token needs at least one number.")


def _finite(vectors: np.ndarray, offsets: np.ndarray, names: Sequence[str], dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        converted = vectors.astype(dtype, copy=False)
    finite = np.isfinite(converted)
    if not finite.all():
        row = int(np.argmin(finite.all(axis=1)))
        name = names[int(np.searchsorted(offsets, row, side="right")) - 1]
        given = vectors[row]
        if np.isfinite(given).all():
            raise EmbeddingsError(
                f"{name} holds {given[np.abs(given).argmax()]:g}, more than {dtype} can; normalise the vectors."
            )
        raise EmbeddingsError(f"{name} holds NaN or infinity; check the model that encoded it.")
    return converted
