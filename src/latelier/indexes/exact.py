"""Scoring all documents of a part, block by block, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.storage.segments import Part
from latelier.utils.ranges import lengths_to_offsets, split_by_rows

__all__ = ["Bounds", "blocks", "scan"]


class Bounds(NamedTuple):
    """What is held at once: tokens that may have to be copied together, and scores or, for one query, documents."""

    tokens: int
    scores: int


def scan(
    part: Part,
    documents: TokenEmbeddings,
    queries: TokenEmbeddings,
    score: Callable[[TokenEmbeddings, TokenEmbeddings], Any],
    bounds: Bounds,
) -> Iterator[tuple[np.ndarray, Any]]:
    """Score the documents of a part.

    Parameters
    ----------
    part
        Which documents of a segment.
    documents
        The vectors of the whole segment.
    queries
        The queries.
    score
        Scores all queries against some documents, ``(queries, documents)``.
    bounds
        Of one block; a single document is never cut.

    Yields
    ------
    tuple
        Positions in the segment, ascending, and their scores.

    Examples
    --------
    >>> from latelier.indexes.storage.segments import Segment, document_arrays
    >>> part = Part(Segment(document_arrays([7, 8], ["a", "b"], [1, 1])), np.array([1]))
    >>> one = TokenEmbeddings.from_list([[[1.0]]])
    >>> two = TokenEmbeddings.from_list([[[2.0]], [[3.0]]])
    >>> list(scan(part, two, one, lambda queries, documents: documents.vectors.T, Bounds(8, 8)))
    [(array([1]), array([[3.]], dtype=float32))]
    """
    for positions in blocks(part, Bounds(bounds.tokens, bounds.scores // max(1, len(queries)))):
        first, last = positions[0], positions[-1] + 1
        tokens = int(part.segment.offsets[last] - part.segment.offsets[first])
        if last - first == len(positions):
            yield positions, score(queries, documents[first:last])
        elif tokens <= 2 * int(Part(part.segment, positions).lengths.sum()):
            # Scoring some documents in vain is cheaper than copying the others together.
            yield positions, score(queries, documents[first:last])[:, positions - first]
        else:
            yield positions, score(queries, documents[positions])


def blocks(part: Part, bounds: Bounds) -> Iterator[np.ndarray]:
    """Cut the documents of a part into runs of bounded size; a single document is never cut."""
    for first, last in split_by_rows(lengths_to_offsets(part.lengths), bounds.tokens, max(1, bounds.scores)):
        yield part.positions[first:last]
