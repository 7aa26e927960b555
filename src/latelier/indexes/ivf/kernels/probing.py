"""Queries in the form that integer kernels read, and the best of many lanes for each of their tokens."""

from __future__ import annotations

import numpy as np

from latelier.indexes.ivf.kernels.selection import nth_highest, sort_falling
from latelier.kernels.jit import kernel

__all__ = ["NO_LANE", "best_cells", "best_groups", "best_lanes", "encode_query"]

# Starting sum of lanes that hold nothing: below every dot product.
NO_LANE = -(1 << 30)
_LANES = 16
_LAST = (1 << 32) - 1
_LARGEST = float(np.finfo(np.float32).max)


@kernel()
def encode_query(
    vectors: np.ndarray,
    codes: np.ndarray,
    rows: np.ndarray,
    packed: np.ndarray,
    start: np.ndarray,
    signs: np.ndarray,
    numbers: tuple[np.ndarray, np.ndarray],
) -> None:
    """Quantise a query, each token by its largest number, to three bytes per number.

    A number is its token's scale times ``c0 + c1 / 254 + c2 / 254**2``, off by no more than a float32 is. The first
    byte alone is what most stages read.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.
    codes
        ``(3, tokens, width)`` int8, zeros; written: the three bytes.
    rows
        ``(tokens, width)`` uint8, filled with 128; written: the first bytes shifted by 128.
    packed, start
        ``(3, groups, width / 4, 16, 4)`` int8 and ``(3, groups, 16)`` int32, zeros; written: the bytes in lanes, and
        minus 128 times their sums.
    signs
        ``(groups, words, 16)`` uint32, zeros; written: a bit is set where the first byte is not negative.
    numbers
        The scale and the length of each token, ``(tokens,)`` float32 both; written.
    """
    scales, lengths = numbers
    tokens, dim = vectors.shape
    rest = np.empty(dim, dtype=np.float64)
    for t in range(tokens):
        group, lane = t // _LANES, t % _LANES
        peak, square = np.float32(0), 0.0
        for i in range(dim):
            x = vectors[t, i]
            size = -x if x < 0 else x
            peak = size if size > peak else peak
            square += np.float64(x) * np.float64(x)
        # The length of finite numbers may be more than a float32 can say: as long as it can.
        scales[t], lengths[t] = peak / np.float32(127), min(np.sqrt(square), _LARGEST)
        inverse = 1 / np.float64(scales[t]) if scales[t] > 1e-37 else 0.0
        for i in range(dim):
            rest[i] = np.float64(vectors[t, i]) * inverse
        for plane in range(3):
            total = np.int32(0)
            for i in range(dim):
                # Rounded: what is left is at most a half, and the shift makes truncation go down.
                code = np.int32(rest[i] + 128.5) - np.int32(128)
                rest[i] = (rest[i] - code) * 254
                codes[plane, t, i] = code
                total += code
            start[plane, group, lane] = -128 * total
            for i in range(dim):
                packed[plane, group, i >> 2, lane, i & 3] = codes[plane, t, i]
        for i in range(dim):
            rows[t, i] = np.int32(codes[0, t, i]) + 128
            if codes[0, t, i] >= 0:
                signs[group, i >> 5, lane] |= np.uint32(1) << np.uint32(i & 31)


@kernel()
def best_lanes(dots: np.ndarray, ranges: np.ndarray, lanes: np.ndarray, values: np.ndarray) -> None:
    """Find the highest of some lanes for every row, best first; of equal ones, the first.

    Parameters
    ----------
    dots
        ``(rows, groups, 16)`` int32: for each row the lanes of its ranges, one range after the other.
    ranges
        ``(rows, n, 2)`` int64: first and last (exclusive) group of each range, among all groups.
    lanes, values
        ``(rows, most)`` int32 both, written: ``group * 16 + lane`` among all groups, -1 where there are fewer, and the
        dot product.
    """
    most = lanes.shape[1]
    keys = np.empty(2 * most + _LANES, dtype=np.int64)
    for row in range(dots.shape[0]):
        lowest = np.int64(NO_LANE // 2)
        count, g = 0, 0
        for n in range(ranges.shape[1]):
            for group in range(ranges[row, n, 0], ranges[row, n, 1]):
                for lane in range(_LANES):
                    value = np.int64(dots[row, g, lane])
                    if value >= lowest:
                        # One number that has the order of both: of equal values, the first lane is the highest.
                        keys[count] = (value << 32) + (_LAST - (group * _LANES + lane))
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
            lanes[row, n] = _LAST - (keys[n] & _LAST) if n < count else -1
            values[row, n] = keys[n] >> 32 if n < count else NO_LANE


@kernel()
def best_groups(dots: np.ndarray, most: int, rows: np.ndarray, ranges: np.ndarray) -> int:
    """Find where the cells of the best groups of every query token are.

    Parameters
    ----------
    dots
        ``(tokens, n, 16)`` int32, with the centroids of all groups.
    most
        Groups per token.
    rows
        ``(groups + 1,)`` int64: which rows of lanes hold the cells of a group.
    ranges
        ``(tokens, most, 2)`` int64, written: first and last (exclusive) row of each.

    Returns
    -------
    int
        The most rows that a token has in all its ranges.
    """
    tokens = dots.shape[0]
    lanes, values = np.empty((tokens, most), dtype=np.int32), np.empty((tokens, most), dtype=np.int32)
    everything = np.zeros((tokens, 1, 2), dtype=np.int64)
    everything[:, 0, 1] = dots.shape[1]
    best_lanes(dots, everything, lanes, values)
    longest = 0
    for t in range(tokens):
        total = 0
        for n in range(most):
            group = lanes[t, n]
            # Lanes beyond the groups hold none, unless the disk gave their starting sums other values.
            held = 0 <= group < len(rows) - 1
            ranges[t, n, 0], ranges[t, n, 1] = (rows[group], rows[group + 1]) if held else (0, 0)
            total += ranges[t, n, 1] - ranges[t, n, 0]
        longest = max(longest, total)
    return longest


@kernel()
def best_cells(
    dots: np.ndarray, ranges: np.ndarray, scales: np.ndarray, room: int, cells: np.ndarray, gains: np.ndarray
) -> None:
    """Find the best cells of every query token, and what a document gains in each.

    Every document gets what the last cell visited promises, so only what is above it counts, and one for being there.

    Parameters
    ----------
    dots, ranges
        As for `best_lanes`.
    scales
        ``(tokens,)`` float32, what a dot product of 1 stands for.
    room
        What the first gains of all tokens may add up to, those ones not counted.
    cells, gains
        ``(tokens, most)`` int32, written: best cell first, -1 where there are fewer.
    """
    tokens, most = cells.shape
    if most == 0:
        return
    best_lanes(dots, ranges, cells, gains)
    last = np.empty(tokens, dtype=np.int32)
    total = 1e-30
    for t in range(tokens):
        last[t] = gains[t, 0]
        for n in range(most):
            if cells[t, n] >= 0:
                last[t] = gains[t, n]
        total += np.float64(gains[t, 0] - last[t]) * scales[t]
    for t in range(tokens):
        share = np.float64(scales[t]) * (room / total)
        for n in range(most):
            gains[t, n] = np.int32((gains[t, n] - last[t]) * share) + 1 if cells[t, n] >= 0 else 0
