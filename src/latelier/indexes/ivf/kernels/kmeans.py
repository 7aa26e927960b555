"""Spherical k-means of tokens, and a counting sort of tokens by their cluster."""

from __future__ import annotations

import numpy as np

from latelier.indexes.ivf.kernels.candidates import NO_CENTROID
from latelier.indexes.ivf.kernels.centroids import nearest_centroids, nearest_of_groups
from latelier.kernels.jit import LANES, kernel
from latelier.kernels.multiply import instruction_set

# A float32 of at most 127, added to it, has no digits after the point: it is rounded, half to even.
_ROUND = np.float32(3 << 22)


@kernel()
def spherical_kmeans(
    isa: tuple[int, ...],
    rows: np.ndarray,
    scales: np.ndarray,
    iterations: int,
    centroids: np.ndarray,
) -> None:
    """Train unit centroids on some tokens.

    The first centroids are the directions of tokens at equal distances in `rows`, and so are those that take the place
    of centroids without tokens: the result does not depend on threads. `isa`: `InstructionSet.argument`. `rows`,
    `scales`: codes ``(n, width)`` uint8, shifted by 128, and scales ``(n,)`` float32; at least one. `centroids`:
    ``(count, dim)`` float32, at most `n`; written.
    """
    count = len(centroids)
    members = len(rows)
    width = rows.shape[1]
    nearest = np.empty(members, dtype=np.int32)
    dots = np.empty(members, dtype=np.int32)
    everything = np.arange(members)
    others = np.empty(count, dtype=np.int64)
    groups = -(-count // LANES)
    # As `empty_groups`.
    words = np.zeros((groups, width // 4, LANES, 1), dtype=np.int32)
    packed = words.view(np.int8)
    start = np.full((groups, LANES), NO_CENTROID, dtype=np.int32)
    for i in range(iterations + 1):
        if i > 0:
            pack_rows(centroids, _peak(centroids) / np.float32(127), words, start)
            nearest_centroids(isa, rows, everything, packed, start, nearest, dots)
        for c in range(count):
            others[c] = (c * members + i * members // (iterations + 1)) // count
        # at first, all centroids are without tokens
        if i > 0:
            assigned = members
        else:
            assigned = 0
        _add_to_centroids(rows, scales, nearest[:assigned], others, centroids)


def empty_groups(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return memory for `pack_rows`: codes that are zeros, and starting sums of lanes without a centroid."""
    groups = -(-count // LANES)
    packed = np.zeros((groups, width // 4, LANES, 4), dtype="int8")
    return packed, np.full((groups, LANES), NO_CENTROID, dtype="int32")


def pack_centroids(centroids: np.ndarray, width: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Quantise centroids, ``(n, dim)`` float32, to 8 bits and pack them for SIMD, 16 to a group.

    `scale`: the value of a code of 1, the same for all centroids that are compared with each other. Returns codes
    ``(groups, width / 4, 16, 4)`` int8, and starting sums ``(groups, 16)`` int32. The starting sum of a centroid,
    ``-128 * sum(codes)``, cancels the shift by 128 of the rows that are multiplied with it; that of a lane without a
    centroid is `NO_CENTROID`, which is below any dot product.
    """
    packed, start = empty_groups(len(centroids), width)
    pack_rows(centroids, np.float32(scale), packed.view("int32"), start)
    return packed, start


@kernel()
def group_rows(clusters: np.ndarray, offsets: np.ndarray, order: np.ndarray) -> None:
    """Sort rows by their cluster, with a stable counting sort.

    `clusters`: ``(n,)`` int32: the cluster of each row. `offsets`: ``(clusters + 1,)`` int64, zeros; written: where
    each cluster begins in `order`. `order`: ``(n,)`` int64, written: the rows.
    """
    for i in range(len(clusters)):
        offsets[clusters[i] + 1] += 1
    for c in range(len(offsets) - 1):
        offsets[c + 1] += offsets[c]
    places = offsets[:-1].copy()
    for i in range(len(clusters)):
        order[places[clusters[i]]] = i
        places[clusters[i]] += 1


def nearest_in_two_levels(
    rows: np.ndarray, coarse: tuple[np.ndarray, np.ndarray], fine: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest centroid of each row under its nearest coarse centroid, and the dot product, both int32.

    `coarse`: `packed` and `start`, as for `centroid_dots`; `fine`: `centroids`, as for `nearest_of_groups`.
    """
    isa = instruction_set().argument
    offsets = fine[2]
    nearest, dots = (np.empty(len(rows), dtype="int32") for _ in range(2))
    nearest_centroids(isa, rows, np.arange(len(rows)), *coarse, nearest, dots)
    # As in `fine_ranges`: starting sums from a damaged file can make a lane without a centroid the nearest.
    np.minimum(nearest, len(offsets) - 2, out=nearest)
    begins = np.zeros(len(offsets), dtype="int64")
    order = np.empty(len(rows), dtype="int64")
    group_rows(nearest, begins, order)
    before = (offsets[nearest] * LANES).astype("int32")
    nearest_of_groups(isa, rows, (begins, order), fine, nearest, dots)
    return nearest + before, dots  # from the number under a coarse centroid to the number of all


@kernel()
def pack_rows(centroids: np.ndarray, scale: float, words: np.ndarray, start: np.ndarray) -> None:
    """Quantise centroids to 8 bits and pack them for SIMD: see `pack_centroids`.

    `centroids`: ``(n, dim)`` float32. `scale`: the value of a code of 1; 0 is taken for a very small number. `words`,
    `start`: from `empty_groups`, the codes as int32 ``(groups, width / 4, 16, 1)``; written for these centroids.
    """
    dim = centroids.shape[1]
    divisor = max(np.float32(scale), np.float32(1e-30))
    for c in range(len(centroids)):
        group = c // LANES
        lane = c % LANES
        total = np.int32(0)
        for word in range((dim + 3) // 4):
            packed = np.uint32(0)
            for i in range(min(4, dim - 4 * word)):
                value = (centroids[c, 4 * word + i] / divisor + _ROUND) - _ROUND
                code = np.int32(max(min(value, np.float32(127)), np.float32(-127)))
                total += code
                packed |= np.uint32(code & 255) << np.uint32(8 * i)
            words[group, word, lane, 0] = np.int32(packed)
        start[group, lane] = -128 * total


@kernel("reassoc")
def _add_to_centroids(
    rows: np.ndarray, scales: np.ndarray, nearest: np.ndarray, others: np.ndarray, centroids: np.ndarray
) -> None:
    """Write the direction of the sum of each centroid's rows, or of the one in `others` if it has none.

    The first rows are those that have a centroid in `nearest`.
    """
    count, dim = centroids.shape
    counts = np.zeros(count, dtype=np.int64)
    for c in range(count):
        for i in range(dim):  # the assignment of a slice would take seconds to compile
            centroids[c, i] = np.float32(0)
    for n in range(len(nearest)):
        _add_row(rows, n, scales[n], centroids, np.int64(nearest[n]))
        counts[nearest[n]] += 1
    for c in range(count):
        if counts[c] == 0:
            _add_row(rows, others[c], np.float32(1), centroids, np.int64(c))
        square = np.float32(0)
        for i in range(dim):
            square += centroids[c, i] * centroids[c, i]
        norm = max(np.sqrt(square), np.float32(1e-30))
        for i in range(dim):
            centroids[c, i] /= norm


@kernel(inner=True)
def _peak(centroids: np.ndarray) -> float:
    """Return the largest absolute number."""
    highest = np.float32(0)
    for c in range(centroids.shape[0]):
        for i in range(centroids.shape[1]):
            highest = max(highest, abs(centroids[c, i]))
    return highest


@kernel(inner=True)
def _add_row(rows: np.ndarray, n: int, scale: float, sums: np.ndarray, c: int) -> None:
    """Add a token to a sum; arrays and positions are given, since numba counts references to each view."""
    for i in range(sums.shape[1]):
        sums[c, i] += np.float32(np.int32(rows[n, i]) - 128) * scale
