"""Integer dot products in plain loops, for any processor: the functions of `dots_vnni`, with equal results."""

from __future__ import annotations

import numpy as np

from latelier.scores.kernels.codes import ROWS, load_rows
from latelier.scores.kernels.jit import kernel

__all__ = ["assign_rows", "group_dots", "lane_dots", "rerank_scores"]

# Of a group, as in `vectors`.
_LANES = 16


@kernel()
def lane_dots(row: np.ndarray, packed: np.ndarray, start: np.ndarray, out: np.ndarray) -> None:
    """See `dots_vnni.lane_dots`."""
    groups, words = packed.shape[0], packed.shape[1]
    for g in range(groups):
        lanes = packed[g].reshape(words, 4 * _LANES)
        for lane in range(_LANES):
            out[g, lane] = start[g, lane]
        for w in range(words):
            a, b = np.int32(row[4 * w]), np.int32(row[4 * w + 1])
            c, d = np.int32(row[4 * w + 2]), np.int32(row[4 * w + 3])
            for lane in range(_LANES):
                i = 4 * lane
                out[g, lane] += a * lanes[w, i] + b * lanes[w, i + 1] + c * lanes[w, i + 2] + d * lanes[w, i + 3]


@kernel()
def group_dots(rows: np.ndarray, ranges: np.ndarray, packed: np.ndarray, start: np.ndarray, out: np.ndarray) -> None:
    """See `dots_vnni.group_dots`."""
    for n in range(len(rows)):
        g = 0
        for m in range(ranges.shape[1]):
            first, last = ranges[n, m, 0], ranges[n, m, 1]
            lane_dots(rows[n], packed[first:last], start[first:last], out[n, g : g + last - first])
            g += last - first


@kernel()
def assign_rows(
    rows: np.ndarray, order: np.ndarray, packed: np.ndarray, start: np.ndarray, lanes: np.ndarray, dots: np.ndarray
) -> None:
    """See `dots_vnni.assign_rows`."""
    groups = packed.shape[0]
    out = np.empty((groups, _LANES), dtype=np.int32)
    flat = out.reshape(-1)
    for n in order:
        lane_dots(rows[n], packed, start, out)
        lane = 0
        for i in range(1, len(flat)):
            lane = i if flat[i] > flat[lane] else lane
        lanes[n] = lane
        dots[n] = flat[lane]


@kernel()
def rerank_scores(
    documents: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    chosen: np.ndarray,
    shape: tuple[int, int, int],
    query: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    fine: bool,
    scores: np.ndarray,
) -> None:
    """See `dots_vnni.rerank_scores`."""
    signs, codes, scales, lengths = documents
    query_codes, _, start, query_scales = query
    bits, dim, sign_count = shape
    width = 32 * sign_count
    starts = start.reshape(3, -1)
    finer = np.float32(1 / 254)
    rows = np.empty((ROWS, width), dtype=np.uint8)
    row_scales = np.empty(ROWS, dtype=np.float32)
    best = np.empty(len(query_scales), dtype=np.float32)
    stride = dim if bits == 8 else (bits - 1) * sign_count * 4
    for n in range(len(chosen)):
        d = chosen[n]
        best[:] = -np.inf
        for first in range(0, lengths[d], ROWS):
            count = min(ROWS, lengths[d] - first)
            here = (signs[d] + first * sign_count * 4, codes[d] + first * stride, scales[d] + first * 2)
            load_rows(here, shape, count, rows, row_scales)
            for r in range(count):
                for q in range(len(query_scales)):
                    value = np.float32(0)
                    for plane in range(2 if fine else 0, -1, -1):
                        dot = np.int32(0)
                        for i in range(dim):
                            dot += np.int32(rows[r, i]) * np.int32(query_codes[plane, q, i])
                        value = np.float32(dot + starts[plane, q]) + value * finer
                    value *= row_scales[r]
                    best[q] = value if value > best[q] else best[q]
        total = np.float32(0)
        for i in range(len(query_scales)):
            total += best[i] * query_scales[i]
        scores[n] = total
