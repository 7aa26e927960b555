"""The backward pass of MaxSim: the gradient of a maximum goes to the one token that had it.

With ``g[q, d]`` the gradient of a score and ``j(i, d)`` document ``d``'s best token for token ``i`` of query ``q``, the
gradient of query token ``i`` is ``sum over d of g[q, d] * document[j(i, d)]``, and that of ``document[j(i, d)]`` grows
by ``g[q, d] * query[i]``. The kernels add those rows; a dense backward pass would multiply matrices of the size of all
similarities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["Packed", "add_document_gradients", "add_query_gradients"]


class Packed(NamedTuple):
    """Texts one after the other.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.
    offsets
        ``(texts + 1,)`` int64.
    """

    vectors: np.ndarray
    offsets: np.ndarray


@kernel()
def add_query_gradients(
    gradients: np.ndarray,
    positions: np.ndarray,
    documents: Packed,
    query_offsets: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Add up the gradients of the tokens of queries ``first`` to ``last - 1``.

    Parameters
    ----------
    gradients
        Gradients of the scores, ``(queries, documents)`` float32.
    positions
        ``(query_tokens, documents)`` int32: each document's best token, -1 if it has no token.
    documents
        `Packed`, as a plain tuple.
    query_offsets
        ``(queries + 1,)``.
    out
        ``(query_tokens, dim)`` float32; the gradients are added to it.
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
    queries: Packed,
    document_offsets: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Add up the gradients of the tokens of documents ``first`` to ``last - 1``.

    Parameters
    ----------
    gradients, positions
        As in `add_query_gradients`.
    queries
        `Packed`, as a plain tuple.
    document_offsets
        ``(documents + 1,)``.
    out
        ``(document_tokens, dim)`` float32; the gradients are added to it.
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
