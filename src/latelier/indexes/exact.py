"""Exact scores of stored documents, in blocks of bounded memory: on the CPU for `Flat`, on a GPU for every index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

__all__ = ["BlockSize", "score_blocks", "split_positions"]


class BlockSize(NamedTuple):
    """Maximum size of a block: its number of tokens, and its number of scores, one per query and document.

    A document is never cut; a document with more tokens forms a block alone.
    """

    tokens: int
    scores: int


def score_blocks(
    vectors: TokenEmbeddings,
    positions: np.ndarray,
    queries: TokenEmbeddings,
    score: Callable[[TokenEmbeddings, TokenEmbeddings], Any],
    size: BlockSize,
) -> Iterator[tuple[np.ndarray, Any]]:
    """Score some of many documents, block by block.

    Parameters
    ----------
    vectors
        The vectors of all documents.
    positions
        Which of them to score, ascending.
    queries
        The queries.
    score
        ``score(queries, documents)`` returns scores ``(queries, documents)``.
    size
        Maximum size of a block.

    Yields
    ------
    tuple
        Some of the positions, in order, and the scores of these documents.

    Examples
    --------
    >>> queries = TokenEmbeddings.from_list([[[1.0]]])
    >>> vectors = TokenEmbeddings.from_list([[[2.0]], [[3.0]]])
    >>> def score(queries, documents):
    ...     return queries.vectors @ documents.vectors.T
    >>> list(score_blocks(vectors, np.array([1]), queries, score, BlockSize(8, 8)))
    [(array([1]), array([[3.]], dtype=float32))]
    """
    for block in split_positions(vectors.offsets, positions, size.tokens, size.scores // max(1, len(queries))):
        first, last = block[0], block[-1] + 1
        if len(block) == len(vectors):
            yield block, score(queries, vectors)
        elif last - first == len(block):
            yield block, score(queries, vectors[first:last])
        elif vectors.offsets[last] - vectors.offsets[first] <= 2 * _lengths(vectors.offsets, block).sum():
            # Scoring also the unwanted documents between them is cheaper than copying the wanted ones together.
            yield block, score(queries, vectors[first:last])[:, block - first]
        else:
            yield block, score(queries, vectors[block])


def split_positions(
    offsets: np.ndarray, positions: np.ndarray, max_tokens: int, max_documents: int
) -> Iterator[np.ndarray]:
    """Cut the ascending positions of documents with these token offsets into blocks of one or more documents."""
    if len(positions) < len(offsets) - 1:
        offsets = lengths_to_offsets(_lengths(offsets, positions))
    for first, last in split_by_rows(offsets, max_tokens, max(1, max_documents)):
        yield positions[first:last]


def _lengths(offsets: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.asarray(offsets[positions + 1] - offsets[positions])
