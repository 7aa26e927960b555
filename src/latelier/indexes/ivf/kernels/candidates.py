"""The first stage of a query: documents of the probed lists get scores of their centroids.

For each query token a document gets the score of the best probed list that holds it; a document missing from all of
them gets the score of the last probed centroid. We accumulate the difference, so documents that were missed add zero
and need no work.

Documents are processed in blocks whose sums stay in the L2 cache: the kernel accumulates the entries of all probed
lists that fall into one block, selects its best documents, and goes on to the next block. Only the lists are read from
main memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.kernels.centroids import ProbedLists
from latelier.indexes.ivf.kernels.codes import succeeded
from latelier.kernels.library import NUMPY, Kernel, instruction_set

_invert = Kernel("invert", "int32*", "int64*", *["int64"] * 4, "int32*", "int64*", "int32*")
_select = Kernel(
    "select_candidates",
    *("int32*", "int32*", "int64", "int64", "int64*", "uint8*", "int64", "int64", "uint8*", "int64", "int64", "int64*"),
)

# A word of 32 bits holds a document's sum and the number of a query token; this many tokens leave 16 bits for the sum.
MOST_TOKENS = (1 << 16) - 1
# Maximum number of bits of a sum; so many of the highest of them give its bin.
_SUM_BITS = 24
_BIN_BITS = 12


def sum_bits(tokens: int) -> int:
    """Return the number of bits of a document's sum, for a query of `tokens` tokens, at most `MOST_TOKENS`."""
    return min(_SUM_BITS, 32 - tokens.bit_length())


def invert(
    lists: np.ndarray,
    lengths: np.ndarray,
    first: int,
    begin: int,
    last: np.ndarray,
    places: np.ndarray,
    documents: np.ndarray | None,
) -> None:
    """Count, or write, the distinct documents of the lists from `begin` on.

    `lists`: ``(tokens,)`` int32: the list of each token. `lengths`: ``(n,)`` int64: number of tokens of each document.
    `first`: number of the first document; the others follow. `last`: ``(lists,)`` int32: the last document seen in each
    list, -1 for none; updated. `places`: ``(lists,)`` int64: the position of the next document of each list; increased
    for each document. `documents`: ``(entries,)`` int32, written; None to count only.
    """
    if instruction_set() != NUMPY:
        _invert(lists, lengths, len(lengths), first, begin, begin + len(last), last, places, documents)
        return
    owners = np.repeat(np.arange(first, first + len(lengths)), lengths)
    for i, d in zip((lists - begin).tolist(), owners.tolist(), strict=True):
        if 0 <= i < len(last) and last[i] != d:
            last[i] = d
            if documents is not None:
                documents[places[i]] = d
            places[i] += 1


def append_lists(offsets: np.ndarray, documents: np.ndarray, more_offsets: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Append lists to lists: list i of the result is list i of the first ones, then list i of the second ones.

    `offsets`, `documents`: the first lists: offsets ``(lists + 1,)`` int64, and the documents of all lists;
    `more_offsets`, `more`: the second lists, in the same form. Returns the documents of the resulting lists, int32.
    """
    merged = np.empty(len(documents) + len(more), dtype="int32")
    merged[np.arange(len(documents)) + np.repeat(more_offsets[:-1], np.diff(offsets))] = documents
    merged[np.arange(len(more)) + np.repeat(offsets[1:], np.diff(more_offsets))] = more
    return merged


class ListEntries(NamedTuple):
    """Inverted lists.

    `offsets`: ``(lists + 1,)`` int64: where the entries of each list begin; `documents`: the entries, ascending in each
    list, uint16 or int32. They may hold any numbers: one out of order or range ends its list.
    """

    offsets: np.ndarray
    documents: np.ndarray


class Candidates(NamedTuple):
    """Documents of probed lists, ascending, and their sums; int64 both."""

    documents: np.ndarray
    sums: np.ndarray


def select_candidates(
    probed: ProbedLists, entries: ListEntries, bits: int, allowed: np.ndarray, documents: int, most: int
) -> Candidates:
    """Find the documents in the probed lists with the highest imputed scores, at most `most`.

    A score is the sum, over query tokens, of the excess of the first probed list that holds the document. `bits`: from
    `sum_bits`. `allowed`: ``(documents,)`` uint8, empty if all are. Sums are sorted into 4,096 bins; of those in the
    lowest bin that is needed, the first are taken.
    """
    if instruction_set() == NUMPY:
        return select_plainly(probed, entries, bits, allowed, documents, most)
    best = np.empty((2, most), dtype="int64")
    own = allowed if len(allowed) else None
    read = entries.offsets, entries.documents.view("uint8"), entries.documents.itemsize
    count = succeeded(_select(*probed, *probed.lists.shape, *read, bits, own, documents, most, best))
    return Candidates(best[0, :count], best[1, :count])


def select_plainly(
    probed: ProbedLists, entries: ListEntries, bits: int, allowed: np.ndarray, documents: int, most: int
) -> Candidates:
    """`select_candidates` in numpy."""
    sums = imputed_sums(probed, entries, documents)
    if len(allowed):
        sums[allowed == 0] = 0
    found = np.flatnonzero(sums)
    if len(found) > most:
        bins = sums[found] >> max(0, bits - _BIN_BITS)
        edge = np.sort(bins)[len(bins) - most]
        at_edge = np.flatnonzero(bins == edge)[: most - np.count_nonzero(bins > edge)]
        found = found[np.sort(np.concatenate([np.flatnonzero(bins > edge), at_edge]))]
    return Candidates(found, sums[found])


def imputed_sums(probed: ProbedLists, entries: ListEntries, documents: int) -> np.ndarray:
    """Return the sum over query tokens of the excess of the first probed list that holds each document.

    ``(documents,)`` int64, 0 for documents in no probed list.
    """
    sums = np.zeros(documents, dtype="int64")
    for row, excess in zip(probed.lists, probed.excess, strict=True):
        best = np.zeros(documents, dtype="int64")
        for i, added in zip(row.tolist(), excess.tolist(), strict=True):
            if i < 0:  # ends the row
                break
            held = entries.documents[entries.offsets[i] : entries.offsets[i + 1]]
            held = held[(held >= 0) & (held < documents)]
            best[held] = np.maximum(best[held], added)
        sums += best
    return sums
