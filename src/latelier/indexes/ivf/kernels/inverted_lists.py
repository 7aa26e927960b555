"""Inverted lists of cells: which documents have a token in each."""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["append_postings", "group_rows", "invert_cells"]


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
