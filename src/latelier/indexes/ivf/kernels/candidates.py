"""Candidates: the documents in the probed lists with the highest imputed scores.

For each query token a document gets the score of the best probed list that holds it; a document missing from all of
them gets the score of the last probed centroid. We accumulate the difference, so documents that were missed add zero
and need no work.

Documents are processed in blocks whose sums stay in the L2 cache: the kernel accumulates the entries of all probed
lists that fall into one block, selects its best documents, and goes on to the next block. Only the lists are read from
main memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.indexes.ivf.kernels.bits import lowest_bit
from latelier.indexes.ivf.kernels.memory import prefetch, read_half, read_word
from latelier.indexes.ivf.kernels.probing import find_lists
from latelier.indexes.ivf.kernels.selection import nth_highest
from latelier.kernels.jit import intrinsic, ir, kernel, types
from latelier.kernels.simd import INTS, LANES, at, constant, splat

__all__ = [
    "MOST_TOKENS",
    "RUN",
    "CandidateLimits",
    "ListEntries",
    "find_candidates",
    "select_candidates",
    "select_near",
    "sum_bits",
]

# A word of 32 bits holds a document's sum and the number of a query token; this many tokens leave 16 bits for the sum.
MOST_TOKENS = (1 << 16) - 1
# Number of sums that are compared at a time; the size of a block is a multiple of it.
RUN = 64
# Maximum number of bits of a sum, and how many of its highest bits give its bin.
_SUM_BITS, _BIN_BITS = 24, 12


class ListEntries(NamedTuple):
    """All inverted lists, as the kernel reads them.

    Attributes
    ----------
    offsets
        ``(lists + 1,)`` int64: where the entries of each list begin.
    documents
        The entries, ascending in each list, as bytes.
    itemsize
        Bytes of an entry: 2 or 4.
    """

    offsets: np.ndarray
    documents: np.ndarray
    itemsize: int


class CandidateLimits(NamedTuple):
    """Which documents are candidates.

    Attributes
    ----------
    bits
        From `sum_bits`.
    documents
        Number of documents in the index.
    most
        Maximum number of candidates.
    k, share
        Of these, only documents with at least this share of the k-th highest sum are returned.
    """

    bits: int
    documents: int
    most: int
    k: int
    share: float


def sum_bits(tokens: int) -> int:
    """Return the number of bits of a document's sum, for a query of `tokens` tokens, at most `MOST_TOKENS`.

    Examples
    --------
    >>> sum_bits(12), sum_bits(500)
    (24, 23)
    """
    return min(_SUM_BITS, 32 - tokens.bit_length())


@kernel()
def find_candidates(
    isa: tuple[int, ...],
    vectors: np.ndarray,
    centroids: tuple[np.ndarray, ...],
    probing: tuple[int, int],
    lists: ListEntries,
    limits: CandidateLimits,
    allowed: np.ndarray,
    sums: np.ndarray,
) -> tuple[int, np.ndarray]:
    """Find the candidates of a query: `find_lists`, then `select_near`, whose result it returns.

    Parameters
    ----------
    isa, vectors, centroids
        See `find_lists`.
    probing
        `coarse` and `nprobe` of `find_lists`.
    lists, limits, allowed, sums
        See `select_near`.
    """
    coarse, nprobe = probing
    probed, excess = find_lists(isa, vectors, centroids, coarse, nprobe, CandidateLimits(*limits).bits)
    return select_near(probed, excess, lists, limits, allowed, sums)


@kernel()
def select_near(
    probed: np.ndarray,
    excess: np.ndarray,
    lists: ListEntries,
    limits: CandidateLimits,
    allowed: np.ndarray,
    sums: np.ndarray,
) -> tuple[int, np.ndarray]:
    """Find the documents in the probed lists with the highest imputed scores, if they are near that of the k-th.

    Parameters
    ----------
    probed, excess, lists, allowed, sums
        See `select_candidates`.
    limits
        `CandidateLimits`, as a plain tuple.

    Returns
    -------
    tuple
        The number of documents that `select_candidates` finds; and those of them that are near, ascending, int64.
    """
    limits = CandidateLimits(*limits)
    best = np.empty((2, limits.most), dtype=np.int64)
    count = select_candidates(probed, excess, lists, limits.bits, allowed, limits.documents, sums, best)
    documents, best_sums = best[0, :count], best[1, :count]
    if count <= limits.k or limits.share <= 0:
        return count, documents
    edge, near = limits.share * nth_highest(best_sums.copy(), limits.k), 0
    for i in range(count):
        if best_sums[i] >= edge:
            documents[near] = documents[i]
            near += 1
    return count, documents[:near]


@kernel()
def select_candidates(
    probed: np.ndarray,
    excess: np.ndarray,
    lists: ListEntries,
    bits: int,
    allowed: np.ndarray,
    documents: int,
    sums: np.ndarray,
    best: np.ndarray,
) -> int:
    """Find the documents in the probed lists with the highest imputed scores.

    The sum of a document is the sum over query tokens of the excess of the first probed list that holds the document.

    Parameters
    ----------
    probed, excess
        ``(query_tokens, nprobe)`` int32, from `probing.find_lists`: the lists, best first, and the excess of their
        imputed score, which is at least 1 and never increases along a row. A negative list ends its row.
    lists
        `ListEntries`, as a plain tuple. The entries may hold any numbers: one that is out of order or out of range
        ends its list, and no memory outside of the arrays is read or written.
    bits
        From `sum_bits`: the first excesses of all rows add up to less than ``2 ** bits``.
    allowed
        ``(documents,)`` uint8, 0 for documents that a filter excludes; empty if all are allowed.
    documents
        Number of documents.
    sums
        ``(block,)`` uint32, scratch memory; `block` is a multiple of `RUN`.
    best
        ``(2, most)`` int64, written: the documents with the highest sums, ascending, and their sums. Sums are sorted
        into 4,096 bins; of the documents in the lowest bin that is needed, the first are taken.

    Returns
    -------
    int
        Number of documents written: `most`, or all that were found.
    """
    lists = ListEntries(*lists)
    most, block = best.shape[1], len(sums)
    lower = (np.int64(1) << bits) - 1
    found, values = np.empty(4 * most + RUN, dtype=np.int64), np.empty(4 * most + RUN, dtype=np.int64)
    count, threshold = np.int64(0), np.int64(1)
    ranges = _probed_ranges(probed, lists)
    for base in range(0, documents, block):
        here = min(block, documents - base)
        runs = -(-here // RUN)
        sums[: runs * RUN] = 0
        _accumulate(probed, excess, lists, ranges, base, bits, sums[:here])
        for run in range(runs):
            first = run * RUN
            mask: int = _reaching(np.int64(sums.ctypes.data) + 4 * first, lower, threshold)  # type: ignore[call-arg]
            while mask != 0:
                place = first + lowest_bit(mask)
                mask &= mask - 1
                if len(allowed) == 0 or allowed[base + place] > 0:
                    found[count], values[count] = base + place, sums[place] & lower
                    count += 1
            if count + RUN > len(found):
                count, threshold = _keep_best(found, values, count, most, bits)
    if count > most:
        count, threshold = _keep_best(found, values, count, most, bits)
    for i in range(count):
        best[0, i], best[1, i] = found[i], values[i]
    return count


@kernel(inner=True)
def _probed_ranges(probed: np.ndarray, lists: ListEntries) -> np.ndarray:
    """Return where the entries of each probed list begin and end, ``(query_tokens, nprobe, 2)``; -1 ends a row."""
    entries_at, size = np.int64(lists.documents.ctypes.data), lists.itemsize
    ranges = np.empty((*probed.shape, 2), dtype=np.int64)
    for q in range(probed.shape[0]):
        for n in range(probed.shape[1]):
            i = probed[q, n]
            if i < 0:
                ranges[q, n, 0] = -1
                break
            ranges[q, n, 0], ranges[q, n, 1] = lists.offsets[i], lists.offsets[i + 1]
            prefetch(entries_at + size * lists.offsets[i])  # type: ignore[call-arg]
    return ranges


@kernel(inner=True)
def _accumulate(
    probed: np.ndarray,
    excess: np.ndarray,
    lists: ListEntries,
    ranges: np.ndarray,
    base: int,
    bits: int,
    sums: np.ndarray,
) -> None:
    """Accumulate the excess of the documents of one block, from `base`, and advance the ranges to the next block.

    A word of `sums` holds a sum in its lower bits, and above them the query token that last added to it.
    """
    entries_at, size, room = np.int64(lists.documents.ctypes.data), lists.itemsize, np.uint64(len(sums))
    lower, shift = np.uint32((np.int64(1) << bits) - 1), np.uint32(bits)
    for q in range(probed.shape[0]):
        mark = np.uint32(q + 1) << shift
        for n in range(probed.shape[1]):
            i, last = ranges[q, n]
            if i < 0:
                break
            added = np.uint32(excess[q, n])
            while i < last:
                place = entries_at + size * i
                document = np.int64(read_half(place) if size == 2 else read_word(place))
                # Entries are read from the disk unchecked, since there are too many. As an unsigned number,
                # document - base is at least `room` for documents after this block, before it, and out of range.
                d = np.uint64(document - base)
                if d >= room:
                    break
                # No branch, as a processor could not predict whether this query token has added to the sum before.
                before = sums[d]
                sums[d] = mark | ((before & lower) + (added if before < mark else np.uint32(0)))
                i += 1
            ranges[q, n, 0] = i
            # Prefetch the entries with which the next block begins.
            prefetch(entries_at + size * i)  # type: ignore[call-arg]
            prefetch(entries_at + size * i + 128)


@kernel(inner=True)
def _keep_best(found: np.ndarray, values: np.ndarray, count: int, most: int, bits: int) -> tuple[int, int]:
    """Keep the documents with the highest sums, in their order; return their number, and the lowest sum of their bins.

    A document with a lower sum cannot be among the best any more.
    """
    shift = max(0, bits - _BIN_BITS)
    bins = np.zeros(1 << _BIN_BITS, dtype=np.int32)
    for i in range(count):
        bins[values[i] >> shift] += 1
    edge, above = (1 << _BIN_BITS) - 1, 0
    while above + bins[edge] < most:
        above += bins[edge]
        edge -= 1
    room, kept = most - above, 0
    for i in range(count):
        place = values[i] >> shift
        if place > edge or (place == edge and room > 0):
            room -= place == edge
            found[kept], values[kept] = found[i], values[i]
            kept += 1
    return kept, max(np.int64(1), np.int64(edge) << shift)


@intrinsic
def _reaching(typing_context: Any, address: Any, lower: Any, threshold: Any) -> Any:
    """Return a bit for each of 64 words at an address: whether ``word & lower >= threshold``."""
    signature = types.int64(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        word, long = ir.IntType(32), ir.IntType(64)
        lower, threshold = (splat(builder, builder.trunc(number, word), INTS) for number in arguments[1:])
        mask = constant(0)
        for part in range(RUN // LANES):
            place = at(builder, builder.add(arguments[0], constant(4 * LANES * part)), INTS)
            numbers = builder.and_(builder.load(place, align=4), lower)
            bits = builder.bitcast(builder.icmp_unsigned(">=", numbers, threshold), ir.IntType(LANES))
            mask = builder.or_(mask, builder.shl(builder.zext(bits, long), constant(LANES * part)))
        return mask

    return signature, generate
