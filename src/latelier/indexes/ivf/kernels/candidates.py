"""Documents in the visited cells, and of them the best by what the cells promise.

A query token visits its best cells in order; the first in which a document turns up says, to within the size of a cell,
how similar the document's best token is. A document that turns up in none cannot be better than the last cell visited.
That score is what it is credited with, and as everybody gets it, only what lies above it is added up: documents that
were missed then cost nothing.

All visited cells are gone through for one block of documents after the other. A block's sums stay in the second-level
cache from the first gain to the last look at them, so memory is read for the lists alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from latelier.indexes.ivf.kernels.memory import prefetch, read_half, read_word
from latelier.kernels.jit import kernel
from latelier.kernels.simd import INTS, LANES, at, constant, splat

__all__ = ["MOST_TOKENS", "RUN", "gather_best", "sum_bits"]

# Query tokens that can be told apart in one word beside a sum.
MOST_TOKENS = (1 << 16) - 1
# Sums that are compared at a time; blocks are multiples of it.
RUN = 64
# Sums take at most so many bits, of which so many tell the best apart.
_SUM_BITS, _BIN_BITS = 24, 12


def sum_bits(tokens: int) -> int:
    """Return the bits that a document's sum may take for a query of so many tokens, at most `MOST_TOKENS`.

    Examples
    --------
    >>> sum_bits(12), sum_bits(500)
    (24, 23)
    """
    return min(_SUM_BITS, 32 - tokens.bit_length())


@kernel()
def gather_best(
    cells: np.ndarray,
    gains: np.ndarray,
    postings: tuple[np.ndarray, np.ndarray, int],
    bits: int,
    allowed: np.ndarray,
    documents: int,
    sums: np.ndarray,
    best: np.ndarray,
) -> int:
    """Add up, for every document in the visited cells, the gain of each query token's first cell that holds it.

    Parameters
    ----------
    cells, gains
        ``(query_tokens, n)`` int32, best cell first: what to visit, and what a document gains there, 1 or more. Gains
        do not rise along a row; a cell below 0 ends it.
    postings
        Where each cell's documents begin ``(cells + 1,)`` int64; the documents, ascending in each cell, as bytes; and
        how many of those each one takes, 2 or 4. The documents may be anything: what is out of order or out of range
        ends its cell, and nothing outside of the other arrays is read or written.
    bits
        From `sum_bits`: the first gains of all rows together are below ``2 ** bits``.
    allowed
        ``(documents,)`` uint8, 0 for those to leave out; empty where all count.
    documents
        How many there are.
    sums
        ``(block,)`` uint32, scratch: a multiple of `RUN`.
    best
        ``(most,)`` int64, written: the documents with the highest sums, ascending. Sums are sorted into 4,096 bins, so
        at the edge those that differ by that part of the most there can be count as equal, and the first are taken.

    Returns
    -------
    int
        How many were written: `most`, or all that were found.
    """
    most, block = len(best), len(sums)
    lower = (np.int64(1) << bits) - 1
    found, values = np.empty(4 * most + RUN, dtype=np.int64), np.empty(4 * most + RUN, dtype=np.int64)
    count, bar = np.int64(0), np.int64(1)
    ranges = _visited_ranges(cells, postings)
    for base in range(0, documents, block):
        here = min(block, documents - base)
        runs = -(-here // RUN)
        sums[: runs * RUN] = 0
        _add_gains(cells, gains, postings, ranges, base, bits, sums[:here])
        for run in range(runs):
            first = run * RUN
            mask: int = _reaching(np.int64(sums.ctypes.data) + 4 * first, lower, bar)  # type: ignore[call-arg]
            while mask != 0:
                place = first + _lowest_bit(mask)
                mask &= mask - 1
                if len(allowed) == 0 or allowed[base + place] > 0:
                    found[count], values[count] = base + place, sums[place] & lower
                    count += 1
            if count + RUN > len(found):
                count, bar = _keep_best(found, values, count, most, bits)
    if count > most:
        count, bar = _keep_best(found, values, count, most, bits)
    for i in range(count):
        best[i] = found[i]
    return count


@kernel()
def _visited_ranges(cells: np.ndarray, postings: tuple[np.ndarray, np.ndarray, int]) -> np.ndarray:
    """Return where the documents of each visited cell begin and end, ``(query_tokens, n, 2)``; -1 ends a row."""
    offsets, lists, size = postings
    lists_at = np.int64(lists.ctypes.data)
    ranges = np.full((*cells.shape, 2), -1, dtype=np.int64)
    for q in range(cells.shape[0]):
        for c in range(cells.shape[1]):
            cell = cells[q, c]
            if cell < 0:
                break
            ranges[q, c, 0], ranges[q, c, 1] = offsets[cell], offsets[cell + 1]
            prefetch(lists_at + size * offsets[cell])  # type: ignore[call-arg]
    return ranges


@kernel()
def _add_gains(
    cells: np.ndarray,
    gains: np.ndarray,
    postings: tuple[np.ndarray, np.ndarray, int],
    ranges: np.ndarray,
    base: int,
    bits: int,
    sums: np.ndarray,
) -> None:
    """Add the gains of the documents of one block, from `base`, and advance the ranges to the next.

    A word of `sums` holds a sum in its lower bits, and above them the query token that last added to it.
    """
    lists_at, size, room = np.int64(postings[1].ctypes.data), postings[2], np.uint64(len(sums))
    lower, shift = np.uint32((np.int64(1) << bits) - 1), np.uint32(bits)
    for q in range(cells.shape[0]):
        mark = np.uint32(q + 1) << shift
        for c in range(cells.shape[1]):
            i, last = ranges[q, c]
            if i < 0:
                break
            gain = np.uint32(gains[q, c])
            while i < last:
                place = lists_at + size * i
                document = np.int64(read_half(place) if size == 2 else read_word(place))
                # Postings come from the disk unchecked, there are too many of them. Without a sign, one comparison
                # finds those of later blocks and those that no index would write: below the block, or above all.
                d = np.uint64(document - base)
                if d >= room:
                    break
                # Without branches: whether a document was seen before is anybody's guess, the processor's too.
                before = sums[d]
                sums[d] = mark | ((before & lower) + (gain if before < mark else np.uint32(0)))
                i += 1
            ranges[q, c, 0] = i
            # What the next block will begin with.
            prefetch(lists_at + size * i)  # type: ignore[call-arg]
            prefetch(lists_at + size * i + 128)


@kernel()
def _keep_best(found: np.ndarray, values: np.ndarray, count: int, most: int, bits: int) -> tuple[int, int]:
    """Keep the documents with the highest sums, in their order; return how many, and what others have to reach."""
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
def _reaching(typing_context: Any, address: Any, lower: Any, bar: Any) -> Any:
    """Return a bit for each of 64 words at an address: whether ``word & lower >= bar``."""
    signature = types.int64(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        word, long = ir.IntType(32), ir.IntType(64)
        lower, bar = (splat(builder, builder.trunc(number, word), INTS) for number in arguments[1:])
        mask = constant(0)
        for part in range(RUN // LANES):
            place = at(builder, builder.add(arguments[0], constant(4 * LANES * part)), INTS)
            numbers = builder.and_(builder.load(place, align=4), lower)
            bits = builder.bitcast(builder.icmp_unsigned(">=", numbers, bar), ir.IntType(LANES))
            mask = builder.or_(mask, builder.shl(builder.zext(bits, long), constant(LANES * part)))
        return mask

    return signature, generate


@intrinsic
def _lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Return the place of the lowest bit that is set; at least one is."""
    signature = types.int64(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return signature, generate
