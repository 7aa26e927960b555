"""Exact scores of stored documents, in blocks of bounded memory: on the CPU for `Flat`, on a GPU for every index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.storage.segments import Part
from latelier.utils.ranges import lengths_to_offsets, split_by_rows

__all__ = ["BlockSize", "score_blocks", "split_part"]


class BlockSize(NamedTuple):
    """Maximum size of a block: its number of tokens, and its number of scores, one per query and document.

    A document is never cut; a document with more tokens forms a block alone.
    """

    tokens: int
    scores: int


def score_blocks(
    part: Part,
    vectors: TokenEmbeddings,
    queries: TokenEmbeddings,
    score: Callable[[TokenEmbeddings, TokenEmbeddings], Any],
    size: BlockSize,
) -> Iterator[tuple[np.ndarray, Any]]:
    """Score documents of one segment block by block.

    Parameters
    ----------
    part
        The documents to score.
    vectors
        The vectors of all documents of the segment.
    queries
        The queries.
    score
        ``score(queries, documents)`` returns scores ``(queries, documents)``.
    size
        Maximum size of a block.

    Yields
    ------
    tuple
        Positions of documents in the segment, ascending, and their scores.

    Examples
    --------
    >>> from latelier.indexes.storage.segments import Segment
    >>> part = Part(Segment.build([7, 8], ["a", "b"], [1, 1], {}), np.array([1]))
    >>> queries = TokenEmbeddings.from_list([[[1.0]]])
    >>> vectors = TokenEmbeddings.from_list([[[2.0]], [[3.0]]])
    >>> def score(queries, documents):
    ...     return queries.vectors @ documents.vectors.T
    >>> list(score_blocks(part, vectors, queries, score, BlockSize(8, 8)))
    [(array([1]), array([[3.]], dtype=float32))]
    """
    for positions in split_part(part, size.tokens, size.scores // max(1, len(queries))):
        first, last = positions[0], positions[-1] + 1
        tokens = int(part.segment.offsets[last] - part.segment.offsets[first])
        if last - first == len(positions):
            yield positions, score(queries, vectors[first:last])
        elif tokens <= 2 * Part(part.segment, positions).tokens:
            # Scoring also the unwanted documents between them is cheaper than copying the wanted ones together.
            yield positions, score(queries, vectors[first:last])[:, positions - first]
        else:
            yield positions, score(queries, vectors[positions])


def split_part(part: Part, max_tokens: int, max_documents: int) -> Iterator[np.ndarray]:
    """Cut the documents of a part into blocks of one or more documents; yield the positions of each block."""
    whole = len(part.positions) == len(part.segment)
    offsets = part.segment.offsets if whole else lengths_to_offsets(part.lengths)
    for first, last in split_by_rows(offsets, max_tokens, max(1, max_documents)):
        yield part.positions[first:last]
