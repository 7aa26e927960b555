"""Putting documents into cells: every token is assigned to one, and cells are turned into postings."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from latelier.indexes.ivf.document_table import Table
from latelier.indexes.ivf.inverted_lists import Cells, Centroids
from latelier.indexes.ivf.kernels.dots import assign_rows
from latelier.indexes.ivf.kernels.inverted_lists import append_postings, group_rows, invert_cells
from latelier.kernels.cpu import instruction_set
from latelier.kernels.simd import LANES
from latelier.kernels.threads import for_ranges
from latelier.utils.ranges import lengths_to_offsets

__all__ = ["fill_cells"]

# Multiplications per token, for sharing the work out: fewer than there are, as many tokens at a time cost less each.
# They are sorted into hundreds of groups, and kernels want eight tokens of a group at once.
_WORK = 1 << 10


def fill_cells(centroids: Centroids, table: Table, ordinals: np.ndarray, before: Cells | None = None) -> Cells:
    """Return cells that hold documents.

    Parameters
    ----------
    centroids
        Of the cells.
    table
        Documents.
    ordinals
        Which of them to put in, ascending.
    before
        Cells of the same centroids whose postings are kept: their documents are the first of the table, and have
        lower numbers than all that are put in.
    """
    lengths = table.lengths[ordinals]
    lanes, similarity = _assign(centroids, table, ordinals, lengths)
    known = 0 if before is None else len(before.numbers)
    offsets, documents = _invert(lanes, lengths, known, centroids.lanes)
    numbers = table.numbers[ordinals]
    trained, fit, _, dim = centroids.fit
    if before is None:
        fitted = np.array([trained, similarity, similarity, dim])
    else:
        fitted = np.array([trained, fit, similarity, dim])
        numbers = np.concatenate([before.numbers, numbers])
        merged = np.empty(len(before.documents) + len(documents), dtype="int32")
        append_postings((before.offsets, before.documents.astype("int32", copy=False)), (offsets, documents), merged)
        offsets, documents = before.offsets + offsets, merged
    # Half the space, where it will do.
    documents = documents.astype("uint16" if len(numbers) <= 1 << 16 else "int32", copy=False)
    return Cells(centroids._replace(fit=fitted), numbers, offsets, documents)


def _assign(centroids: Centroids, table: Table, ordinals: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the cell of each token, int32, and the mean similarity of tokens and centroids, in units of a code."""
    isa = instruction_set()
    starts = lengths_to_offsets(lengths)
    cells = np.empty(starts[-1], dtype="int32")
    totals: list[float] = []

    def assign(first: int, last: int) -> None:
        codes, scales = table.rows(ordinals[first:last])
        found, values = (np.empty(len(codes), dtype="int32") for _ in range(2))
        everything = np.arange(len(codes))
        assign_rows(isa, codes, everything, centroids.top, centroids.top_start, found, values)
        # As in `best_groups`: stored centroids may say that a lane beyond the groups is the best.
        np.minimum(found, len(centroids.ranges) - 2, out=found)
        offsets, order = np.zeros(len(centroids.ranges), dtype="int64"), np.empty(len(codes), dtype="int64")
        group_rows(found, offsets, order)
        for group, (begin, end) in enumerate(pairwise(centroids.ranges)):
            mine = order[offsets[group] : offsets[group + 1]]
            own = centroids.cells[begin:end], centroids.cell_start[begin:end]
            assign_rows(isa, codes, mine, *own, found, values)
            found[mine] += begin * LANES  # as a lane of all groups
        cells[starts[first] : starts[last]] = found
        totals.append(float((values * scales).sum(dtype="float64")))

    for_ranges(assign, starts, _WORK)
    return cells, sum(totals) / max(1, len(cells))


def _invert(cells: np.ndarray, lengths: np.ndarray, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each cell's postings begin, and the postings."""
    offsets = np.zeros(count + 1, dtype="int64")
    nothing = np.empty(0, dtype="int32")
    invert_cells(cells, lengths, first, np.full(count, -1, dtype="int32"), offsets[1:], nothing)
    np.cumsum(offsets, out=offsets)
    documents = np.empty(offsets[-1], dtype="int32")
    invert_cells(cells, lengths, first, np.full(count, -1, dtype="int32"), offsets[:-1].copy(), documents)
    return offsets, documents
