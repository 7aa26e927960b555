"""Probing: selects the centroids with the highest dot products for each query token, and computes imputed scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from latelier.indexes.ivf.kernels.masks import lowest_bit
from latelier.indexes.ivf.kernels.selection import nth_highest, sort_falling
from latelier.kernels.jit import kernel
from latelier.kernels.simd import INTS, LANES, at, declare, shuffle, splat

__all__ = ["NO_CENTROID", "best_centroids", "best_coarse", "best_lists"]

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
    keys, highest = np.empty(2 * most + LANES, dtype=np.int64), np.empty(2 * groups, dtype=np.int32)
    for t in range(dots.shape[0]):
        dots_at = np.int64(dots.ctypes.data) + 4 * LANES * groups * t
        own_groups = (ranges[t, :, 1] - ranges[t, :, 0]).sum()
        lowest = np.int64(NO_CENTROID // 2)
        if 2 * own_groups >= most > 0:
            # Of groups of eight, as many as are wanted hold a number of at least this.
            for g in range(own_groups):
                place = dots_at + 4 * LANES * g
                highest[2 * g], highest[2 * g + 1] = _highest_of_halves(place)  # type: ignore[call-arg]
            lowest = max(lowest, np.int64(nth_highest(highest[: 2 * own_groups], most)))
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
        if count > most:
            nth_highest(keys[:count], most)
            count = most
        sort_falling(keys[:count])
        for n in range(most):
            best[t, n] = _LAST - (keys[n] & _LAST) if n < count else -1
            values[t, n] = keys[n] >> 32 if n < count else NO_CENTROID


@kernel()
def best_coarse(dots: np.ndarray, most: int, fine_offsets: np.ndarray, ranges: np.ndarray) -> int:
    """Find the best coarse centroids of every query token, and where their second-level centroids are.

    Parameters
    ----------
    dots
        ``(tokens, groups, 16)`` int32: dot products with all coarse centroids.
    most
        Number of coarse centroids per token.
    fine_offsets
        ``(coarse centroids + 1,)`` int64: where the groups of second-level centroids of each begin.
    ranges
        ``(tokens, most, 2)`` int64, written: first and last (exclusive) group of second-level centroids.

    Returns
    -------
    int
        The largest number of groups in all ranges of a token.
    """
    tokens = dots.shape[0]
    best, values = np.empty((tokens, most), dtype=np.int32), np.empty((tokens, most), dtype=np.int32)
    everything = np.zeros((tokens, 1, 2), dtype=np.int64)
    everything[:, 0, 1] = dots.shape[1]
    best_centroids(dots, everything, best, values)
    longest = 0
    for t in range(tokens):
        total = 0
        for n in range(most):
            c = best[t, n]
            # With starting sums from a damaged file, a lane without a centroid can be among the best.
            exists = 0 <= c < len(fine_offsets) - 1
            ranges[t, n, 0], ranges[t, n, 1] = (fine_offsets[c], fine_offsets[c + 1]) if exists else (0, 0)
            total += ranges[t, n, 1] - ranges[t, n, 0]
        longest = max(longest, total)
    return longest


@kernel()
def best_lists(
    dots: np.ndarray, ranges: np.ndarray, scales: np.ndarray, room: int, lists: np.ndarray, excess: np.ndarray
) -> None:
    """Find the inverted lists that every query token probes, and the scores they impute to their documents.

    The imputed score of a document for a query token is the token's dot product with the centroid of the best probed
    list that holds the document, or of the last probed list if none does. The kernel writes the excess of each list
    over the last one, as an integer. With ``share = room / sum over tokens of (first - last) * scale``, it is
    ``excess = floor((dot - last) * scale * share) + 1``.

    Parameters
    ----------
    dots, ranges
        As for `best_centroids`, of second-level centroids.
    scales
        ``(tokens,)`` float32: the value of a dot product of 1.
    room
        Upper bound of the sum over tokens of ``excess - 1`` of the first list.
    lists, excess
        ``(tokens, nprobe)`` int32, written: best list first; -1 and 0 if there are fewer.
    """
    tokens, nprobe = lists.shape
    if nprobe == 0:
        return
    best_centroids(dots, ranges, lists, excess)
    last = np.empty(tokens, dtype=np.int32)
    total = 1e-30
    for t in range(tokens):
        last[t] = excess[t, 0]
        for n in range(nprobe):
            if lists[t, n] >= 0:
                last[t] = excess[t, n]
        total += np.float64(excess[t, 0] - last[t]) * scales[t]
    for t in range(tokens):
        share = np.float64(scales[t]) * (room / total)
        for n in range(nprobe):
            excess[t, n] = np.int32((excess[t, n] - last[t]) * share) + 1 if lists[t, n] >= 0 else 0
