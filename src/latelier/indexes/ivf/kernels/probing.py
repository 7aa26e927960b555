"""Probing: selects the centroids with the highest dot products for each query token, and computes imputed scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from latelier.indexes.ivf.kernels.bits import lowest_bit
from latelier.indexes.ivf.kernels.dots import centroid_dots
from latelier.indexes.ivf.kernels.queries import quantise_query
from latelier.indexes.ivf.kernels.selection import nth_highest, sort_falling
from latelier.kernels.jit import intrinsic, ir, kernel, types
from latelier.kernels.simd import INTS, LANES, at, declare, shuffle, splat

__all__ = ["NO_CENTROID", "best_centroids", "find_lists", "fine_ranges", "imputed_excess"]

# Starting sum of SIMD lanes without a centroid: below every dot product.
NO_CENTROID = -(1 << 30)
_LAST = (1 << 32) - 1
_HALF = LANES // 2


@intrinsic
def _highest_of_halves(typing_context: Any, address: Any) -> Any:
    """Return the highest of the first eight, and of the last eight, of sixteen int32 at an address."""
    signature = types.UniTuple(types.int32, 2)(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        word, half = ir.IntType(32), ir.VectorType(ir.IntType(32), _HALF)
        numbers = builder.load(at(builder, arguments[0], INTS), align=4)
        highest = declare(builder.module, f"llvm.vector.reduce.smax.v{_HALF}i32", [half], word)
        halves = (shuffle(builder, numbers, range(first, first + _HALF)) for first in (0, _HALF))
        found = [builder.call(highest, [numbers]) for numbers in halves]
        return context.make_tuple(builder, signature.return_type, found)

    return signature, generate


@intrinsic
def _lanes_from(typing_context: Any, address: Any, lowest: Any) -> Any:
    """Return a bit for each of sixteen int32 at an address: whether it is at least `lowest`."""
    signature = types.int64(types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        numbers = builder.load(at(builder, arguments[0], INTS), align=4)
        edge = splat(builder, builder.trunc(arguments[1], ir.IntType(32)), INTS)
        reaching = builder.bitcast(builder.icmp_signed(">=", numbers, edge), ir.IntType(LANES))
        return builder.zext(reaching, ir.IntType(64))

    return signature, generate


@kernel()
def best_centroids(dots: np.ndarray, ranges: np.ndarray, best: np.ndarray, values: np.ndarray) -> None:
    """Find the centroids with the highest dot products for every query token, best first; of equal ones, the first.

    Parameters
    ----------
    dots
        ``(tokens, groups, 16)`` int32: for each token, the dot products of the groups in its ranges, one range after
        the other.
    ranges
        ``(tokens, n, 2)`` int64: first and last (exclusive) group of each range.
    best, values
        ``(tokens, most)`` int32 both, written: the centroid, ``group * 16 + lane``, or -1 if there are fewer; and its
        dot product.
    """
    most, groups = best.shape[1], dots.shape[1]
    keys, highest = np.empty(2 * most + LANES, dtype=np.int64), np.empty(2 * groups, dtype=np.int64)
    for t in range(dots.shape[0]):
        dots_at = np.int64(dots.ctypes.data) + 4 * LANES * groups * t
        own_groups = _count_groups(ranges[t])
        lowest = np.int64(NO_CENTROID // 2)
        if 2 * own_groups >= most > 0:
            # Of groups of eight, as many as are wanted hold a number of at least this.
            for g in range(own_groups):
                place = dots_at + 4 * LANES * g
                highest[2 * g], highest[2 * g + 1] = _highest_of_halves(place)  # type: ignore[call-arg]
            lowest = max(lowest, nth_highest(highest[: 2 * own_groups], most))
        count, g = 0, 0
        for n in range(ranges.shape[1]):
            for group in range(ranges[t, n, 0], ranges[t, n, 1]):
                mask: int = _lanes_from(dots_at + 4 * LANES * g, lowest)  # type: ignore[call-arg]
                while mask != 0:
                    lane = lowest_bit(mask)
                    mask &= mask - 1
                    # One key that sorts by dot product, highest first, then by centroid, lowest first.
                    keys[count] = (np.int64(dots[t, g, lane]) << 32) + (_LAST - (group * LANES + lane))
                    count += 1
                if count > 2 * most:
                    lowest = nth_highest(keys[:count], most) >> 32
                    count = most
                g += 1
        sort_falling(keys[:count], most)
        for n in range(most):
            best[t, n] = _LAST - (keys[n] & _LAST) if n < count else -1
            values[t, n] = keys[n] >> 32 if n < count else NO_CENTROID


@kernel(inner=True)
def _count_groups(ranges: np.ndarray) -> int:
    """Return the number of groups in the ranges of a token, ``(n, 2)``."""
    total = 0
    for n in range(len(ranges)):
        total += ranges[n, 1] - ranges[n, 0]
    return total


@kernel()
def fine_ranges(best: np.ndarray, fine_offsets: np.ndarray, ranges: np.ndarray) -> int:
    """Look up where the second-level centroids of every query token's best coarse centroids are.

    Parameters
    ----------
    best
        ``(tokens, most)`` int32: coarse centroids, from `best_centroids`.
    fine_offsets
        ``(coarse centroids + 1,)`` int64: where the groups of second-level centroids of each begin.
    ranges
        ``(tokens, most, 2)`` int64, written: first and last (exclusive) group of second-level centroids.

    Returns
    -------
    int
        The largest number of groups in all ranges of a token.
    """
    longest = 0
    for t in range(len(best)):
        for n in range(best.shape[1]):
            c = best[t, n]
            # With starting sums from a damaged file, a lane without a centroid can be among the best.
            exists = 0 <= c < len(fine_offsets) - 1
            ranges[t, n, 0], ranges[t, n, 1] = (fine_offsets[c], fine_offsets[c + 1]) if exists else (0, 0)
        longest = max(longest, _count_groups(ranges[t]))
    return longest


@kernel()
def imputed_excess(lists: np.ndarray, values: np.ndarray, scales: np.ndarray, room: int) -> None:
    """Replace the dot products of the lists that every query token probes by the scores they impute to their documents.

    The imputed score of a document for a query token is the token's dot product with the centroid of the best probed
    list that holds the document, or of the last probed list if none does. The kernel writes the excess of each list
    over the last one, as an integer. With ``share = room / sum over tokens of (first - last) * scale``, it is
    ``excess = floor((dot - last) * scale * share) + 1``.

    Parameters
    ----------
    lists, values
        ``(tokens, nprobe)`` int32 both, from `best_centroids`. The kernel replaces the dot products in `values` by the
        excess, 0 where there is no list.
    scales
        ``(tokens,)`` float32: the value of a dot product of 1.
    room
        Upper bound of the sum over tokens of ``excess - 1`` of the first list.
    """
    tokens, nprobe = lists.shape
    if nprobe == 0:
        return
    last = np.empty(tokens, dtype=np.int32)
    total = 1e-30
    for t in range(tokens):
        last[t] = values[t, 0]
        for n in range(nprobe):
            if lists[t, n] >= 0:
                last[t] = values[t, n]
        total += np.float64(values[t, 0] - last[t]) * scales[t]
    for t in range(tokens):
        share = np.float64(scales[t]) * (room / total)
        for n in range(nprobe):
            values[t, n] = np.int32((values[t, n] - last[t]) * share) + 1 if lists[t, n] >= 0 else 0


@kernel()
def find_lists(
    isa: tuple[int, ...],
    vectors: np.ndarray,
    centroids: tuple[np.ndarray, ...],
    coarse: int,
    nprobe: int,
    bits: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the inverted lists that every query token probes, by two levels of centroids, and the scores they impute.

    It is one kernel, as is `latelier.indexes.ivf.kernels.candidates.find_candidates`, since each call waits for the
    interpreter lock when it returns, while another thread runs Python.

    Parameters
    ----------
    isa
        `InstructionSet.argument`.
    vectors
        ``(tokens, dim)`` float32: the query.
    centroids
        The arrays of `Centroids`, in their order, as a plain tuple.
    coarse, nprobe
        Number of coarse centroids under which a token looks for lists, and maximum number of lists.
    bits
        From `candidates.sum_bits`: the first excesses of all tokens add up to less than ``2 ** bits``.

    Returns
    -------
    tuple of numpy.ndarray
        The lists, best first, -1 if there are fewer; and their excess. Both are ``(tokens, nprobe)`` int32, or have
        fewer columns if no token has so many lists.
    """
    packed, start, fine, fine_start, fine_offsets = centroids
    query = quantise_query(vectors, 1)
    rows, scales = query.rows, query.scales
    tokens, groups = len(rows), len(packed)
    everything = np.empty((tokens, 1, 2), dtype=np.int64)
    for t in range(tokens):
        everything[t, 0, 0], everything[t, 0, 1] = 0, groups
    dots = np.empty((tokens, groups, LANES), dtype=np.int32)
    centroid_dots(isa, rows, everything, packed, start, dots)
    best, values = np.empty((tokens, coarse), dtype=np.int32), np.empty((tokens, coarse), dtype=np.int32)
    best_centroids(dots, everything, best, values)
    ranges = np.empty((tokens, coarse, 2), dtype=np.int64)
    longest = fine_ranges(best, fine_offsets, ranges)
    dots = np.empty((tokens, longest, LANES), dtype=np.int32)
    centroid_dots(isa, rows, ranges, fine, fine_start, dots)
    most = min(nprobe, LANES * longest)
    lists, excess = np.empty((tokens, most), dtype=np.int32), np.empty((tokens, most), dtype=np.int32)
    best_centroids(dots, ranges, lists, excess)
    imputed_excess(lists, excess, scales, (np.int64(1) << bits) - 1 - tokens)
    return lists, excess
