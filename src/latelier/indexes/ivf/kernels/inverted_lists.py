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
    offsets: np.ndarray, documents: np.ndarray, more_offsets: np.ndarray, more: np.ndarray, merged: np.ndarray
) -> None:
    """Append to each list the documents that it has in other lists.

    Parameters
    ----------
    offsets, documents
        The first lists: offsets ``(lists + 1,)`` int64, and the documents of all lists, int32.
    more_offsets, more
        The same of the lists to append.
    merged
        As many int32 as there are in both; written.
    """
    n = 0
    for i in range(len(offsets) - 1):
        for place in range(offsets[i], offsets[i + 1]):
            merged[n] = documents[place]
            n += 1
        for place in range(more_offsets[i], more_offsets[i + 1]):
            merged[n] = more[place]
            n += 1
