"""Spherical k-means of tokens, and the assignment of tokens to centroids in two levels."""

from __future__ import annotations

import numpy as np

from latelier.indexes.ivf.kernels.dots import nearest_centroids
from latelier.indexes.ivf.kernels.memory import copy_bytes, prefetch
from latelier.indexes.ivf.kernels.probing import NO_CENTROID
from latelier.kernels.jit import kernel
from latelier.kernels.simd import LANES

__all__ = ["assign_tokens", "group_rows", "pack_rows", "spherical_kmeans"]

_AHEAD = 16  # rows that are prefetched before they are copied


@kernel()
def spherical_kmeans(
    isa: tuple[int, ...],
    rows: np.ndarray,
    scales: np.ndarray,
    order: np.ndarray,
    iterations: int,
    centroids: np.ndarray,
) -> None:
    """Train unit centroids on some tokens.

    The first centroids are the directions of tokens at equal distances in `order`, and so are those that take the place
    of centroids without tokens: the result does not depend on threads.

    Parameters
    ----------
    isa
        `InstructionSet.argument`.
    rows, scales
        Codes ``(n, width)`` uint8, shifted by 128, and scales ``(n,)`` float32.
    order
        ``(m,)`` int64: the rows to train on; at least one.
    iterations
        Number of iterations.
    centroids
        ``(count, dim)`` float32, at most `m`; written.
    """
    count, members = len(centroids), len(order)
    own = np.empty((members, rows.shape[1]), dtype=np.uint8)  # a copy that stays in the processor's cache
    _copy_rows(rows, order, own)
    everything = np.arange(members)
    nearest, dots = np.empty(members, dtype=np.int32), np.empty(members, dtype=np.int32)
    groups = (count + LANES - 1) // LANES
    packed = np.zeros((groups, rows.shape[1] // 4, LANES, 4), dtype=np.int8)
    start, counts = np.empty((groups, LANES), dtype=np.int32), np.empty(count, dtype=np.int64)
    centroids[:] = np.float32(0)
    for c in range(count):
        _add_row(own, c * members // count, np.float32(1), centroids, c)
        _normalize(centroids, c)
    for i in range(iterations):
        pack_rows(centroids, _largest(centroids) / np.float32(127), packed, start)
        nearest_centroids(isa, own, everything, packed, start, nearest, dots)
        centroids[:] = np.float32(0)
        counts[:] = 0
        for n in range(members):
            _add_row(own, n, scales[order[n]], centroids, nearest[n])
            counts[nearest[n]] += 1
        for c in range(count):
            if counts[c] == 0:
                place = (c * (iterations + 1) + i + 1) * members // (count * (iterations + 1))
                _add_row(own, place, np.float32(1), centroids, c)
            _normalize(centroids, c)


@kernel()
def assign_tokens(
    isa: tuple[int, ...],
    rows: np.ndarray,
    coarse: tuple[np.ndarray, np.ndarray],
    fine: tuple[np.ndarray, np.ndarray, np.ndarray],
    nearest: np.ndarray,
    dots: np.ndarray,
) -> None:
    """Find the list of each token: the nearest centroid under its nearest coarse centroid.

    Parameters
    ----------
    isa
        `InstructionSet.argument`.
    rows
        ``(n, width)`` uint8, shifted by 128.
    coarse
        `coarse` and `coarse_start` of `latelier.indexes.ivf.centroids.Centroids`.
    fine
        `fine`, `fine_start` and `fine_offsets` of the same.
    nearest, dots
        ``(n,)`` int32 both, written: the list, and the dot product with its centroid.
    """
    packed, start, ends = fine
    order = np.arange(len(rows))
    nearest_centroids(isa, rows, order, coarse[0], coarse[1], nearest, dots)
    # As in `best_coarse`: starting sums from a damaged file can make a lane without a centroid the nearest.
    np.minimum(nearest, len(ends) - 2, nearest)
    offsets = np.zeros(len(ends), dtype=np.int64)
    group_rows(nearest, offsets, order)
    for c in range(len(ends) - 1):
        first, last, mine = ends[c], ends[c + 1], order[offsets[c] : offsets[c + 1]]
        nearest_centroids(isa, rows, mine, packed[first:last], start[first:last], nearest, dots)
        for n in mine:
            nearest[n] += first * LANES  # from the number under the coarse centroid to the number of the list


@kernel()
def group_rows(clusters: np.ndarray, offsets: np.ndarray, order: np.ndarray) -> None:
    """Sort rows by their cluster, with a stable counting sort.

    Parameters
    ----------
    clusters
        ``(n,)`` int32: the cluster of each row.
    offsets
        ``(clusters + 1,)`` int64, zeros; written: where each cluster begins in `order`.
    order
        ``(n,)`` int64, written: the rows.
    """
    for i in range(len(clusters)):
        offsets[clusters[i] + 1] += 1
    for c in range(len(offsets) - 1):
        offsets[c + 1] += offsets[c]
    places = offsets[:-1].copy()
    for i in range(len(clusters)):
        order[places[clusters[i]]] = i
        places[clusters[i]] += 1


@kernel()
def pack_rows(centroids: np.ndarray, scale: float, packed: np.ndarray, start: np.ndarray) -> None:
    """Quantise centroids to 8 bits and pack them for SIMD: see `latelier.indexes.ivf.centroids.pack_centroids`.

    Parameters
    ----------
    centroids
        ``(n, dim)`` float32.
    scale
        The value of a code of 1; 0 is taken for a very small number.
    packed, start
        ``(groups, width / 4, 16, 4)`` int8, and ``(groups, 16)`` int32, both written. Codes of lanes without a centroid
        and beyond the dim have to be zeros already.
    """
    codes = np.zeros(4 * packed.shape[1], dtype=np.int8)
    words, target = codes.view(np.int32), packed.view(np.int32)
    divisor = max(np.float32(scale), np.float32(1e-30))
    start[:] = NO_CENTROID
    for c in range(len(centroids)):
        total = np.int32(0)
        for i in range(centroids.shape[1]):
            codes[i] = np.int8(min(max(np.rint(centroids[c, i] / divisor), np.float32(-127)), np.float32(127)))
            total += np.int32(codes[i])
        start[c // LANES, c % LANES] = -128 * total
        for word in range(len(words)):
            target[c // LANES, word, c % LANES, 0] = words[word]


@kernel()
def _copy_rows(rows: np.ndarray, order: np.ndarray, copied: np.ndarray) -> None:
    """Copy rows to consecutive places; those that come next are prefetched."""
    members, width = copied.shape
    rows_at, copied_at = np.int64(rows.ctypes.data), np.int64(copied.ctypes.data)
    for n in range(members):
        copy_bytes(copied_at + n * width, rows_at + order[n] * width, width)  # type: ignore[call-arg]
        ahead = rows_at + order[min(n + _AHEAD, members - 1)] * width
        for line in range(0, width, 64):
            prefetch(ahead + line)


@kernel()
def _add_row(rows: np.ndarray, n: int, scale: float, sums: np.ndarray, c: int) -> None:
    """Add a token to a sum; arrays and positions are given, since numba counts references to each view."""
    for i in range(sums.shape[1]):
        sums[c, i] += np.float32(np.int32(rows[n, i]) - 128) * scale


@kernel("reassoc")
def _normalize(vectors: np.ndarray, c: int) -> None:
    square = np.float32(0)
    for i in range(vectors.shape[1]):
        square += vectors[c, i] * vectors[c, i]
    norm = max(np.sqrt(square), np.float32(1e-30))
    for i in range(vectors.shape[1]):
        vectors[c, i] /= norm


@kernel("nnan", "nsz")
def _largest(centroids: np.ndarray) -> float:
    """Return the largest absolute number."""
    largest = np.float32(0)
    for centroid in centroids:
        for value in centroid:
            largest = max(largest, abs(value))
    return largest
