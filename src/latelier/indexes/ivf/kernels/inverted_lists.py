"""Building inverted lists: given the list of each token, collect the distinct documents of each list."""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["append_lists", "invert"]


@kernel()
def invert(
    lists: np.ndarray,
    lengths: np.ndarray,
    first: int,
    begin: int,
    last: np.ndarray,
    places: np.ndarray,
    documents: np.ndarray,
) -> None:
    """Count, or write, the distinct documents of some lists.

    Parameters
    ----------
    lists
        ``(tokens,)`` int32: the list of each token.
    lengths
        ``(n,)`` int64: number of tokens of each document.
    first
        Number of the first document; the others follow.
    begin
        The first of these lists.
    last
        ``(lists,)`` int32: the last document seen in each list, -1 for none; updated.
    places
        ``(lists,)`` int64: the position of the next document of each list; increased for each document.
    documents
        ``(entries,)`` int32, written; empty to count only.
    """
    writing = len(documents) > 0
    token = 0
    for d in range(len(lengths)):
        for _ in range(lengths[d]):
            i = lists[token] - begin
            token += 1
            if 0 <= i < len(last) and last[i] != first + d:
                last[i] = first + d
                if writing:
                    documents[places[i]] = first + d
                places[i] += 1


@kernel()
def append_lists(
    offsets: np.ndarray, documents: np.ndarray, more_offsets: np.ndarray, more: np.ndarray, merged: np.ndarray
) -> None:
    """Append lists to lists: list i of the result is list i of the first ones, then list i of the second ones.

    Parameters
    ----------
    offsets, documents
        The first lists: offsets ``(lists + 1,)`` int64, and the documents of all lists, int32.
    more_offsets, more
        The second lists, in the same form.
    merged
        ``(len(documents) + len(more),)`` int32, written: the documents of the resulting lists.
    """
    n = 0
    for i in range(len(offsets) - 1):
        for place in range(offsets[i], offsets[i + 1]):
            merged[n] = documents[place]
            n += 1
        for place in range(more_offsets[i], more_offsets[i + 1]):
            merged[n] = more[place]
            n += 1
