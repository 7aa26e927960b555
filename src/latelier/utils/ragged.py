"""Offsets and ranges of packed documents.

The functions compute such offsets, select the rows of some documents, and split documents into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def lengths_to_offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the offsets ``(n + 1,)`` int64, from 0, of ``n`` documents with these numbers of rows."""
    offsets = np.zeros(len(lengths) + 1, dtype="int64")
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rows_of(offsets: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return the row numbers of some documents, in the order in which the documents are given.

    `offsets`: ``(n + 1,)`` int64. `documents`: their positions, from 0 to ``n - 1``, in any order; a document named
    twice has its rows twice. Returns: ``(rows,)`` int64.
    """
    starts = offsets[documents]
    places = lengths_to_offsets(offsets[np.add(documents, 1)] - starts)
    # Each document's first row, repeated, plus a running count that restarts with every document.
    return np.repeat(starts - places[:-1], np.diff(places)) + np.arange(places[-1])


def rows_or_slice(offsets: np.ndarray, documents: np.ndarray) -> np.ndarray | slice:
    """Return the rows of one or more documents, given in ascending order; as a slice if they are consecutive.

    An array indexed by a slice is a view; indexed by row numbers, it is a copy.
    """
    first, last = documents[0], documents[-1]
    if last - first + 1 == len(documents):
        return slice(int(offsets[first]), int(offsets[last + 1]))
    return rows_of(offsets, documents)


def positions_within(offsets: np.ndarray) -> np.ndarray:
    """Return the position of each row within its document, ``(rows,)`` int64."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def split_by_rows(offsets: np.ndarray, max_rows: int, max_documents: int | None = None) -> Iterator[tuple[int, int]]:
    """Split documents into consecutive blocks of at most `max_rows` rows; a document is never split.

    `offsets`: ``(n + 1,)``; the first offset need not be 0. `max_rows`: maximum number of rows of a block; a document
    with more is a block of its own. `max_documents`: maximum number of documents of a block, at least 1; None: no
    limit. Yields: ``(first, last)``: the block has the documents ``first:last``.
    """
    first, documents = 0, len(offsets) - 1
    most = documents if max_documents is None else max_documents
    while first < documents:
        # Up to the last document that ends within the block, but at least one document.
        last = int(np.searchsorted(offsets, offsets[first] + max_rows, side="right")) - 1
        last = min(max(last, first + 1), first + most, documents)
        yield first, last
        first = last
