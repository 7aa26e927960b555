"""MaxSim after the matrix product: the maximum over each document's tokens, the sum over each query's tokens.

A block of similarities has one row per document token and one column per query token, so the maximum over a document is
a maximum of contiguous rows, which vectorises over the columns.
"""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["NO_POSITIONS", "segment_max_sum"]

# The argument `positions` if the positions of the best tokens are not needed.
NO_POSITIONS = np.empty((0, 0), dtype=np.int32)


@kernel()
def segment_max_sum(
    similarities: np.ndarray,
    document_offsets: np.ndarray,
    query_offsets: np.ndarray,
    scores: np.ndarray,
    positions: np.ndarray,
    column: int,
) -> None:
    """Write ``scores[q, column + d]``: for each token of query q the maximum over the tokens of document d, summed.

    Parameters
    ----------
    similarities
        ``(document_tokens, query_tokens)`` float32, rows contiguous.
    document_offsets
        ``(d + 1,)`` int64 into the rows.
    query_offsets
        ``(q + 1,)`` int64 into the columns.
    scores
        ``(q, n)`` float32, written in place. A document without tokens gets minus infinity from every query; a query
        without tokens gets 0 from every other document.
    positions
        ``(query_tokens, n)`` int32, written in place: position of the best token in the document (the first of equal
        ones), -1 for a document without tokens; or `NO_POSITIONS`.
    column
        Column of the first document in `scores` and `positions`.

    Examples
    --------
    >>> import numpy as np
    >>> rows = [[0.5, -1.0], [0.25, -0.5], [-0.125, 0.0]]
    >>> similarities = np.array(rows, dtype="float32")
    >>> documents, queries = np.array([0, 2, 3]), np.array([0, 2])
    >>> scores = np.empty((1, 2), dtype="float32")
    >>> positions = np.empty((2, 2), dtype="int32")
    >>> segment_max_sum(similarities, documents, queries, scores, positions, 0)
    >>> scores, positions
    (array([[ 0.   , -0.125]], dtype=float32), array([[0, 0],
           [1, 0]], dtype=int32))
    """
    best = np.empty(similarities.shape[1], dtype=np.float32)
    where = np.empty(similarities.shape[1], dtype=np.int32)
    for d in range(len(document_offsets) - 1):
        start, stop = document_offsets[d], document_offsets[d + 1]
        best[:] = -np.inf
        where[:] = -1
        if positions.size > 0:
            _maxima_and_positions(similarities[start:stop], best, where)
            positions[:, column + d] = where
        else:
            _maxima(similarities[start:stop], best)
        for q in range(len(query_offsets) - 1):
            total = 0.0
            for token in range(query_offsets[q], query_offsets[q + 1]):
                total += best[token]
            scores[q, column + d] = total if start < stop else -np.inf


@kernel()
def _maxima(rows: np.ndarray, best: np.ndarray) -> None:
    for row in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            value = rows[row, i]
            # LLVM makes one vector instruction of this expression, but not of max().
            best[i] = value if value > best[i] else best[i]


@kernel()
def _maxima_and_positions(rows: np.ndarray, best: np.ndarray, where: np.ndarray) -> None:
    for row in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            value = rows[row, i]
            where[i] = row if value > best[i] else where[i]
            best[i] = value if value > best[i] else best[i]
