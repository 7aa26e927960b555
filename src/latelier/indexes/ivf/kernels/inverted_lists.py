"""Building inverted lists: from the list of each token to the distinct documents of each list."""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["append_lists", "invert"]


@kernel()
def invert(
    lists: np.ndarray, lengths: np.ndarray, first: int, last: np.ndarray, places: np.ndarray, documents: np.ndarray
) -> None:
    """Count, or write, the distinct documents of each list.

    Parameters
    ----------
    lists
        ``(tokens,)`` int32: the list of each token.
    lengths
        ``(n,)`` int64: tokens of each document.
    first
        Number of the first document; the others follow.
    last
        ``(lists,)`` int32, all -1: scratch, the last document seen in each list.
    places
        ``(lists,)`` int64: where the next document of each list goes; counted up.
    documents
        ``(entries,)`` int32, written; empty to count only.
    """
    writing = len(documents) > 0
    token = 0
    for d in range(len(lengths)):
        for _ in range(lengths[d]):
            i = lists[token]
            token += 1
            if last[i] != first + d:
                last[i] = first + d
                if writing:
                    documents[places[i]] = first + d
                places[i] += 1


@kernel()
def append_lists(
    before: tuple[np.ndarray, np.ndarray], more: tuple[np.ndarray, np.ndarray], merged: np.ndarray
) -> None:
    """Write the documents of each list, those of `before` first.

    Parameters
    ----------
    before, more
        Offsets ``(lists + 1,)`` int64, and the documents of all lists, int32.
    merged
        As many int32 as both have; written.
    """
    n = 0
    for i in range(len(before[0]) - 1):
        for place in range(before[0][i], before[0][i + 1]):
            merged[n] = before[1][place]
            n += 1
        for place in range(more[0][i], more[0][i + 1]):
            merged[n] = more[1][place]
            n += 1
