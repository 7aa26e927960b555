"""Users' matrices, of documents or queries: checked, converted and packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from latelier.arrays import dtype_name, is_tensor, refuse_mask
from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError
from latelier.utils.ragged import lengths_to_offsets

__all__ = ["check_finite", "pack"]


def pack(
    items: Sequence[Any] | TokenEmbeddings, name: Callable[[int], str], dtype: str, dim: int | None
) -> TokenEmbeddings:
    """Check, convert and pack the matrices of several documents or queries.

    Parameters
    ----------
    items
        One matrix ``(tokens, dim)`` each, or packed embeddings.
    name
        Returns the name of the item at a position, for an error message.
    dtype
        Floating type to convert to.
    dim
        The expected dim; ``None`` for that of the first item.

    Returns
    -------
    TokenEmbeddings
        numpy, of `dtype`; each has at least one token. Whether all numbers are finite is left to `check_finite`.

    Raises
    ------
    EmbeddingsError
        If an item has a wrong shape, dtype or dim, or no token; the message begins with its name.

    Examples
    --------
    >>> import torch
    >>> items = [[[1.0, 2.0]], torch.ones(3, 2, dtype=torch.bfloat16)]
    >>> pack(items, "query {}".format, "float16", None)
    TokenEmbeddings(2 texts, 4 tokens, dim=2, float16, numpy)
    """
    if isinstance(items, TokenEmbeddings):
        source = _floats(items)
        vectors, offsets = source.vectors, source.offsets
    else:
        matrices = [_matrix(item, position, name) for position, item in enumerate(items)]
        expected = matrices[0].shape[1] if dim is None else dim
        for position, matrix in enumerate(matrices):
            _check_dim(matrix.shape[1], expected, position, name)
        vectors = np.concatenate(matrices)
        offsets = lengths_to_offsets([len(matrix) for matrix in matrices])
    _check_dim(vectors.shape[1], vectors.shape[1] if dim is None else dim, 0, name)
    without = np.flatnonzero(np.diff(offsets) == 0)
    if without.size:
        raise EmbeddingsError(f"{name(int(without[0]))} has no token; every text needs at least one.")
    if vectors.dtype != dtype:
        with np.errstate(over="ignore"):  # `check_finite` finds numbers beyond the range of the dtype
            vectors = vectors.astype(dtype)
    elif isinstance(items, TokenEmbeddings):
        return source  # TokenEmbeddings has checked its offsets
    return TokenEmbeddings(vectors, offsets)


def check_finite(packed: TokenEmbeddings, items: Sequence[Any] | TokenEmbeddings, name: Callable[[int], str]) -> None:
    """Raise an error for NaN, infinity and numbers beyond the range of the dtype that they were converted to.

    Parameters
    ----------
    packed
        What `pack` has made of `items`.
    items, name
        See `pack`.

    Raises
    ------
    EmbeddingsError
        If a number is not finite; the message begins with the name of the item.
    """
    finite = np.isfinite(packed.vectors)
    if finite.all():
        return
    row = int(np.argmin(finite.all(axis=1)))
    position = int(np.searchsorted(packed.offsets, row, side="right")) - 1
    item = items[position]
    matrix = _floats(items)[position] if isinstance(items, TokenEmbeddings) else _matrix(item, position, name)
    given = matrix[row - int(packed.offsets[position])]
    if np.isfinite(given).all():
        raise EmbeddingsError(
            f"{name(position)} holds {given[np.abs(given).argmax()]:g}, outside of the range of {packed.dtype}; "
            "normalise the vectors."
        )
    raise EmbeddingsError(f"{name(position)} holds NaN or infinity; check the model that encoded it.")


def _floats(embeddings: TokenEmbeddings) -> TokenEmbeddings:
    """Return packed embeddings as numpy arrays of a floating dtype."""
    source = embeddings.to("numpy")
    return source if source.scales is None else source.to("float32")


def _matrix(item: Any, position: int, name: Callable[[int], str]) -> np.ndarray:
    """Return a matrix as a 2-D numpy array of a floating dtype, or raise an error."""
    refuse_mask(item, name(position))
    if is_tensor(item):
        try:
            item = item.detach().cpu().resolve_neg()
            item = (item.float() if dtype_name(item) == "bfloat16" else item).numpy()
        except (RuntimeError, TypeError) as error:  # sparse, quantized, on the device "meta", of an 8-bit float type
            raise EmbeddingsError(
                f"{name(position)} came with a torch tensor of {item.dtype}, {item.layout}, on {item.device}, which "
                "numpy cannot hold; expected a dense one of float32, float16, bfloat16 or float64."
            ) from error
    elif not isinstance(item, np.ndarray):
        try:
            item = np.asarray(item, dtype="float32")
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # RuntimeError: tensors with a gradient
            raise EmbeddingsError(
                f"{name(position)} came with {type(item).__name__}; expected a 2-D numpy or torch matrix (tokens, dim)."
            ) from error
    if item.ndim != 2:
        hint = "; padded batches go through TokenEmbeddings.from_padded(padded, mask)" if item.ndim == 3 else ""
        raise EmbeddingsError(
            f"{name(position)} has embeddings of shape {item.shape}; expected 2-D (tokens, dim){hint}."
        )
    if item.dtype.kind != "f":
        raise EmbeddingsError(
            f"{name(position)} has embeddings of dtype {item.dtype}; expected floating numbers (int8 codes come with "
            "their scales, as TokenEmbeddings)."
        )
    return item


def _check_dim(received: int, expected: int, position: int, name: Callable[[int], str]) -> None:
    if received != expected:
        raise EmbeddingsError(
            f"{name(position)} has dim {received}, but the index or the first one given has dim {expected}; encode all "
            "with one model."
        )
    if received == 0:
        raise EmbeddingsError(f"{name(position)} has dim 0; every token needs at least one number.")
