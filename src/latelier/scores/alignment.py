"""The document token that each query token matches best: the terms of one MaxSim score."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.arrays import is_array, is_tensor
from latelier.errors import EmbeddingsError

__all__ = ["Alignment", "align"]


class Alignment(NamedTuple):
    """Best document token of each query token.

    Its ``positions (q,)`` int64, their ``similarities (q,)`` float32, and the ``matrix (q, n)`` float32 of all.
    """

    positions: np.ndarray
    similarities: np.ndarray
    matrix: np.ndarray


def align(query: Any, document: Any) -> Alignment:
    """Find the document token with the highest similarity for each query token.

    Parameters
    ----------
    query
        ``(q, dim)``, numpy or torch, of any floating dtype.
    document
        ``(n, dim)``, with at least one token.

    Returns
    -------
    Alignment
        Of equal similarities, the first token is taken. The similarities sum to the MaxSim score.

    Raises
    ------
    EmbeddingsError
        If the shapes do not fit together, or the document has no token.

    Examples
    --------
    >>> query = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> alignment = align(query, np.array([[-0.5, -1.0], [0.5, 0.25]]))
    >>> alignment.positions.tolist(), alignment.similarities.tolist()
    ([1, 1], [0.5, 0.25])
    >>> alignment.matrix.tolist()
    [[-0.5, 0.5], [-1.0, 0.25]]
    """
    rows, columns = _matrix(query, "query"), _matrix(document, "document")
    if rows.shape[1] != columns.shape[1]:
        raise EmbeddingsError(
            f"the query has dim {rows.shape[1]}, the document {columns.shape[1]}; they must be equal."
        )
    if not len(columns):
        raise EmbeddingsError("the document has no token, so there is nothing to align the query with.")
    matrix = rows @ columns.T
    return Alignment(matrix.argmax(axis=1), matrix.max(axis=1), matrix)


def _matrix(value: Any, name: str) -> np.ndarray:
    if not is_array(value) or value.ndim != 2:
        shape = getattr(value, "shape", None)
        raise EmbeddingsError(
            f"received a {name} of type {type(value).__name__} and shape {shape}; expected one (tokens, dim) matrix."
        )
    array = value.detach().cpu().float().resolve_neg().numpy() if is_tensor(value) else np.asarray(value)
    return array.astype("float32", copy=False)
