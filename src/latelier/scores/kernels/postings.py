"""Inverted lists of cells: which documents have a token in a cell, and what the best cells of a query say of them.

A query token visits its best cells in order; the first in which a document turns up says, to within the size of a cell,
how similar the document's best token is. A document that turns up in none cannot be better than the last cell visited.
That score is what it is credited with, and as everybody gets it, only what lies above it is added up: documents that
were missed then cost nothing.
"""

from __future__ import annotations

import numpy as np

from latelier.scores.kernels.jit import kernel
from latelier.scores.kernels.memory import prefetch

__all__ = [
    "GAIN_BITS",
    "append_postings",
    "find_touched",
    "gather_documents",
    "group_rows",
    "invert_cells",
    "select_touched",
]

# Gains are integers whose sum over all query tokens is less than 2 ** GAIN_BITS.
GAIN_BITS = 24
_BIN_BITS = 12
# How many postings ahead memory is asked for.
_AHEAD = 12
_LOWER = np.int64((1 << 32) - 1)
# Documents whose sums are looked at together, and at least so many in a sample.
_RUN, _SAMPLE = 32, 1 << 12


@kernel()
def gather_documents(
    cells: np.ndarray,
    gains: np.ndarray,
    postings: tuple[np.ndarray, np.ndarray],
    totals: np.ndarray,
    stamp: int,
    block: int,
) -> None:
    """Add up, for every document in the visited cells, the gain of each query token's first cell that holds it.

    All cells are gone through for one block of documents after the other, whose sums stay in the cache meanwhile.

    Parameters
    ----------
    cells, gains
        ``(query_tokens, n)`` int32, best cell first: what to visit, and what a document gains there. Gains do not rise
        along a row; a cell below 0 ends it.
    postings
        Where each cell's documents begin ``(cells + 1,)`` int64, and the documents ``(postings,)`` uint16 or int32,
        ascending in each cell.
    totals
        ``(documents,)`` int64: a stamp below `stamp` or from a token of this query in the upper half, and the sum of
        gains in the lower.
    stamp
        Marks the first query token; the next ones take the numbers that follow.
    block
        Documents.
    """
    documents = postings[1]
    sums, lists = np.int64(totals.ctypes.data), np.int64(documents.ctypes.data)
    oldest = np.int64(stamp) << 32
    ranges = _visited_ranges(cells, postings)
    for bound in range(block, len(totals) + block, block):
        for q in range(cells.shape[0]):
            mark = np.int64(stamp + q) << 32
            for c in range(cells.shape[1]):
                i, last = ranges[q, c]
                if i < 0:
                    break
                gain = np.int64(gains[q, c])
                while i < last and documents[i] < bound:
                    prefetch(sums + 8 * np.int64(documents[min(i + _AHEAD, last - 1)]))  # type: ignore[call-arg]
                    d = np.uintp(documents[i])
                    # One word, read and written once: two halves by themselves would wait for each other. And without
                    # branches: whether a document was seen before is anybody's guess, the processor's too.
                    before = totals[d]
                    total = before & _LOWER if before >= oldest else np.int64(0)
                    totals[d] = mark + total + (gain if before < mark else np.int64(0))
                    i += 1
                ranges[q, c, 0] = i
                _prefetch_list(lists + documents.itemsize * i)


@kernel()
def _visited_ranges(cells: np.ndarray, postings: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return where the documents of each visited cell begin and end, ``(query_tokens, n, 2)``; -1 ends a row."""
    offsets, documents = postings
    lists = np.int64(documents.ctypes.data)
    ranges = np.full((*cells.shape, 2), -1, dtype=np.int64)
    for q in range(cells.shape[0]):
        for c in range(cells.shape[1]):
            cell = cells[q, c]
            if cell < 0:
                break
            ranges[q, c, 0], ranges[q, c, 1] = offsets[cell], offsets[cell + 1]
            _prefetch_list(lists + documents.itemsize * offsets[cell])
    return ranges


@kernel()
def _prefetch_list(address: int) -> None:
    """Ask for the documents that the next block will begin with."""
    prefetch(address)  # type: ignore[call-arg]
    prefetch(address + 128)


@kernel()
def find_touched(totals: np.ndarray, stamp: int, allowed: np.ndarray, most: int, touched: np.ndarray) -> int:
    """Write the documents that were gathered, or of very many those that may be among the best.

    Going through all sums in their order costs less than a list of what is touched, which may be a third of them.

    Parameters
    ----------
    totals, stamp
        From `gather_documents`.
    allowed
        ``(documents,)`` uint8, 0 for those to leave out; empty where all count.
    most
        At least so many are written where so many were gathered.
    touched
        ``(documents,)`` int32, written: documents, ascending.

    Returns
    -------
    int
        How many were written.
    """
    oldest = np.int64(stamp) << 32
    masked = len(allowed) > 0
    lowest = _likely_edge(totals, oldest, allowed, most)
    count = 0
    while True:
        count = 0
        for begin in range(0, len(totals), _RUN):
            last = min(begin + _RUN, len(totals))
            highest = np.int64(-1)
            for word in totals[begin:last]:
                highest = max(highest, word & _LOWER if word >= oldest else np.int64(-1))
            if highest >= lowest:
                for d in range(begin, last):
                    if totals[d] >= oldest and (totals[d] & _LOWER) >= lowest and (not masked or allowed[d] > 0):
                        touched[count] = d
                        count += 1
        if count >= most or lowest == 0:
            return count
        lowest = np.int64(0)  # the sample has misled


@kernel()
def _likely_edge(totals: np.ndarray, oldest: int, allowed: np.ndarray, most: int) -> int:
    """Return a sum that half as many documents again as are wanted should reach, by a sample of them."""
    step = max(1, len(totals) // _SAMPLE) * _RUN
    masked = len(allowed) > 0
    # The first bin counts what was not gathered.
    bins = np.zeros((1 << _BIN_BITS) + 1, dtype=np.int32)
    seen = 0
    for begin in range(0, len(totals), step):
        for d in range(begin, min(begin + _RUN, len(totals))):
            counts = totals[d] >= oldest and (not masked or allowed[d] > 0)
            bins[((totals[d] & _LOWER) >> (GAIN_BITS - _BIN_BITS)) + 1 if counts else 0] += 1
            seen += 1
    wanted = most * 1.5 * seen / len(totals) + 32
    edge, above = 1 << _BIN_BITS, bins[1 << _BIN_BITS]
    while edge > 1 and above < wanted:
        edge -= 1
        above += bins[edge]
    return np.int64(edge - 1) << (GAIN_BITS - _BIN_BITS)


@kernel()
def select_touched(totals: np.ndarray, touched: np.ndarray, count: int, most: int, selected: np.ndarray) -> int:
    """Write the documents with the highest sums, in their order.

    Sums are sorted into 4,096 bins, so at the edge those that differ by that part of the most there can be count as
    equal, and the first ones are taken.

    Parameters
    ----------
    totals, touched, count
        From `find_touched`.
    most
        How many to select.
    selected
        ``(most,)`` int64 or more, written.

    Returns
    -------
    int
        How many were selected: `most`, or all.
    """
    if count <= most:
        for i in range(count):
            selected[i] = touched[i]
        return count
    bins, places = np.zeros(1 << _BIN_BITS, dtype=np.int32), np.empty(count, dtype=np.int16)
    for i in range(count):
        place = (totals[touched[i]] & _LOWER) >> (GAIN_BITS - _BIN_BITS)
        places[i] = place
        bins[place] += 1
    edge, above = (1 << _BIN_BITS) - 1, 0
    while above + bins[edge] < most:
        above += bins[edge]
        edge -= 1
    room, n = most - above, 0
    for i in range(count):
        place = places[i]
        if place > edge:
            selected[n] = touched[i]
            n += 1
        elif place == edge and room > 0:
            selected[n] = touched[i]
            n += 1
            room -= 1
    return n


@kernel()
def invert_cells(
    cells: np.ndarray, lengths: np.ndarray, first: int, last: np.ndarray, places: np.ndarray, documents: np.ndarray
) -> None:
    """Count, or write, the distinct documents of each cell.

    Parameters
    ----------
    cells
        ``(tokens,)`` int32, the cell of each token.
    lengths
        ``(n,)`` int64, tokens of each document.
    first
        Number of the first document.
    last
        ``(cells,)`` int32, the last document seen in each cell, -1 for none.
    places
        ``(cells,)`` int64: where the next document of each cell goes; counted up.
    documents
        ``(postings,)`` int32, written; empty to count only.
    """
    writing = len(documents) > 0
    token = 0
    for d in range(len(lengths)):
        for _ in range(lengths[d]):
            cell = cells[token]
            token += 1
            if last[cell] != first + d:
                last[cell] = first + d
                if writing:
                    documents[places[cell]] = first + d
                places[cell] += 1


@kernel()
def group_rows(groups: np.ndarray, offsets: np.ndarray, order: np.ndarray) -> None:
    """Sort rows by a small number, in their order within each: a counting sort.

    Parameters
    ----------
    groups
        ``(n,)`` int32.
    offsets
        ``(groups + 1,)`` int64, zeros; written: where each group begins in `order`.
    order
        ``(n,)`` int64, written: the rows.
    """
    for i in range(len(groups)):
        offsets[groups[i] + 1] += 1
    for g in range(len(offsets) - 1):
        offsets[g + 1] += offsets[g]
    places = offsets[:-1].copy()
    for i in range(len(groups)):
        order[places[groups[i]]] = i
        places[groups[i]] += 1


@kernel()
def append_postings(
    before: tuple[np.ndarray, np.ndarray], more: tuple[np.ndarray, np.ndarray], merged: np.ndarray
) -> None:
    """Write the postings of each cell, those of `before` first.

    Parameters
    ----------
    before, more
        Where each cell's documents begin ``(cells + 1,)`` int64, and the documents, int32.
    merged
        As many as both have, int32; written.
    """
    n = 0
    for cell in range(len(before[0]) - 1):
        for i in range(before[0][cell], before[0][cell + 1]):
            merged[n] = before[1][i]
            n += 1
        for i in range(more[0][cell], more[0][cell + 1]):
            merged[n] = more[1][i]
            n += 1
