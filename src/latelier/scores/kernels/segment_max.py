"""The half of MaxSim that is not a matrix product: maximum over each document's tokens, sum over each query's.

A similarity block has one row per document token and one column per query token, so the maximum over a document is
a maximum of contiguous rows, which vectorises over the columns.
"""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["segment_max_sum"]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def segment_max_sum(
    similarities: np.ndarray, document_offsets: np.ndarray, query_offsets: np.ndarray, scores: np.ndarray
) -> None:
    """Write ``scores[q, d]``: for each token of query q the maximum over the tokens of document d, summed.

    Parameters
    ----------
    similarities
        ``(document_tokens, query_tokens)`` float32, rows contiguous.
    document_offsets
        ``(d + 1,)`` int64 into the rows.
    query_offsets
        ``(q + 1,)`` int64 into the columns.
    scores
        ``(q, d)`` float32, written in place. A document without tokens gets minus infinity from every query; a query
        without tokens gets 0 from every other document.

    Examples
    --------
    >>> import numpy as np
    >>> similarities = np.array([[0.5, -1.0], [0.25, -0.5], [-0.125, 0.0]], dtype="float32")
    >>> scores = np.empty((1, 2), dtype="float32")
    >>> segment_max_sum(similarities, np.array([0, 2, 3]), np.array([0, 2]), scores)
    >>> scores
    array([[ 0.   , -0.125]], dtype=float32)
    """
    columns = similarities.shape[1]
    best = np.empty(columns, dtype=np.float32)
    for d in range(len(document_offsets) - 1):
        start, stop = document_offsets[d], document_offsets[d + 1]
        if start == stop:
            scores[:, d] = -np.inf
            continue
        best[:] = similarities[start]
        for row in range(start + 1, stop):
            for column in range(columns):
                value = similarities[row, column]
                # A ternary, not max(): LLVM turns it into one vector instruction.
                best[column] = value if value > best[column] else best[column]
        for q in range(len(query_offsets) - 1):
            total = 0.0
            for column in range(query_offsets[q], query_offsets[q + 1]):
                total += best[column]
            scores[q, d] = total
