"""The backward pass of MaxSim: a maximum passes its gradient on to the one token that it was.

So a query token receives, from each document, that document's best token times the gradient of the score, and each
best token receives the query token the same way: additions of rows, where a dense backward pass multiplies matrices
as large as all similarities.
"""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["add_document_gradients", "add_query_gradients"]


@kernel()
def add_query_gradients(
    gradients: np.ndarray,
    positions: np.ndarray,
    documents: tuple[np.ndarray, np.ndarray],
    query_offsets: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Add to the gradients of the tokens of queries ``first`` to ``last - 1``.

    Parameters
    ----------
    gradients
        Of the scores, ``(queries, documents)`` float32.
    positions
        ``(query_tokens, documents)`` int32: which token of the document was the best, -1 for none.
    documents
        Vectors ``(tokens, dim)`` float32 and offsets ``(documents + 1,)``.
    query_offsets
        ``(queries + 1,)``.
    out
        ``(query_tokens, dim)`` float32, added to.
    first, last
        The range of queries.
    """
    vectors, offsets = documents
    for q in range(first, last):
        for token in range(query_offsets[q], query_offsets[q + 1]):
            for d in range(gradients.shape[1]):
                weight = gradients[q, d]
                if positions[token, d] >= 0 and weight != 0:
                    row = vectors[offsets[d] + positions[token, d]]
                    for i in range(len(row)):
                        out[token, i] += weight * row[i]


@kernel()
def add_document_gradients(
    gradients: np.ndarray,
    positions: np.ndarray,
    queries: tuple[np.ndarray, np.ndarray],
    document_offsets: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Add to the gradients of the tokens of documents ``first`` to ``last - 1``.

    Parameters
    ----------
    gradients, positions
        As in `add_query_gradients`.
    queries
        Vectors ``(tokens, dim)`` float32 and offsets ``(queries + 1,)``.
    document_offsets
        ``(documents + 1,)``.
    out
        ``(document_tokens, dim)`` float32, added to.
    first, last
        The range of documents: no two ranges touch the same row of `out`.
    """
    vectors, offsets = queries
    for d in range(first, last):
        for q in range(gradients.shape[0]):
            weight = gradients[q, d]
            for token in range(offsets[q], offsets[q + 1]):
                if positions[token, d] >= 0 and weight != 0:
                    place = document_offsets[d] + positions[token, d]
                    for i in range(vectors.shape[1]):
                        out[place, i] += weight * vectors[token, i]
