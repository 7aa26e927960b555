"""Centroids in two levels: training, packing, the nearest of each token, and the lists that a query probes.

Rows are tokens as bytes shifted by 128; they are multiplied with groups of 16 centroids, packed so that each has a SIMD
lane. Products of integers are exact, so results are equal for all instruction sets and in numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.kernels.codes import succeeded
from latelier.indexes.ivf.layout import GROUP
from latelier.kernels.library import NUMPY, Kernel, instruction_set

# Starting sum of lanes without a centroid: below every dot product.
NO_CENTROID = -(1 << 30)
# Rows that numpy multiplies at a time.
_ROWS = 4096

_TWO_LEVELS = ["int8*", "int32*", "int64", "int8*", "int32*", "int64*", "int64", "int64"]
_nearest = Kernel("nearest_centroids", "uint8*", "int64", "int64", "int8*", "int32*", "int64", "int32*", "int32*")
_in_two_levels = Kernel("nearest_in_two_levels", "uint8*", "int64", *_TWO_LEVELS, "int32*", "int32*")
_kmeans = Kernel("spherical_kmeans", "uint8*", "float32*", *["int64"] * 3, "float32*", "int64", "int64")
_find_lists = Kernel("find_lists", "float32*", "int64", "int64", *_TWO_LEVELS, *["int64"] * 3, "int32*", "int32*")


class PackedCentroids(NamedTuple):
    """Centroids in 8 bits, packed for SIMD: number ``16 * group + lane``.

    `packed`: ``(groups, width / 4, 16, 4)`` int8. `start`: ``(groups, 16)`` int32, ``-128 * sum(codes)``, which cancels
    the shift by 128 of the rows that are multiplied with them; that of a lane without a centroid is `NO_CENTROID`.
    """

    packed: np.ndarray
    start: np.ndarray

    def unpacked(self) -> np.ndarray:
        """Return the codes of each lane, ``(16 * groups, width)`` int8."""
        groups, words, lanes, four = self.packed.shape
        return self.packed.transpose(0, 2, 1, 3).reshape(groups * lanes, words * four)


class CentroidLevels(NamedTuple):
    """Two levels: coarse centroid ``c`` has the fine groups ``offsets[c]`` to ``offsets[c + 1] - 1``, int64."""

    coarse: PackedCentroids
    fine: PackedCentroids
    offsets: np.ndarray

    def arguments(self) -> tuple[np.ndarray | int, ...]:
        """Return what kernels take."""
        count = len(self.offsets) - 1
        return *self.coarse, len(self.coarse.start), *self.fine, self.offsets, count, self.coarse.packed.shape[1]

    def under(self, c: int) -> PackedCentroids:
        """Return the fine centroids under a coarse one."""
        some = slice(self.offsets[c], self.offsets[c + 1])
        return PackedCentroids(self.fine.packed[some], self.fine.start[some])


def pack_centroids(centroids: np.ndarray, width: int, scale: float) -> PackedCentroids:
    """Quantise centroids, ``(n, dim)`` float32, to 8 bits and pack them; `scale`: the value of a code of 1."""
    groups = -(-len(centroids) // GROUP)
    codes = np.zeros((groups * GROUP, width), dtype="int8")
    divisor = np.float32(max(scale, 1e-30))
    codes[: len(centroids), : centroids.shape[1]] = np.rint(centroids / divisor).clip(-127, 127)
    start = np.full(groups * GROUP, NO_CENTROID, dtype="int32")
    start[: len(centroids)] = -128 * codes[: len(centroids)].sum(axis=1, dtype="int32")
    packed = codes.reshape(groups, GROUP, width // 4, 4).transpose(0, 2, 1, 3)
    return PackedCentroids(np.ascontiguousarray(packed), start.reshape(groups, GROUP))


def nearest_centroids(rows: np.ndarray, centroids: PackedCentroids) -> tuple[np.ndarray, np.ndarray]:
    """Return the centroid with the highest dot product for each row, of equal ones the first, and the product.

    `rows`: ``(n, width)`` uint8, shifted by 128. Returns ``(n,)`` int32 both.
    """
    if instruction_set() == NUMPY:
        return nearest_plainly(rows, centroids)
    nearest, dots = (np.empty(len(rows), dtype="int32") for _ in range(2))
    succeeded(_nearest(rows, len(rows), rows.shape[1] // 4, *centroids, len(centroids.start), nearest, dots))
    return nearest, dots


def nearest_plainly(rows: np.ndarray, centroids: PackedCentroids) -> tuple[np.ndarray, np.ndarray]:
    """`nearest_centroids` in numpy."""
    nearest, dots = (np.empty(len(rows), dtype="int32") for _ in range(2))
    for first in range(0, len(rows), _ROWS):
        some = slice(first, first + _ROWS)
        products = _products(rows[some], centroids)
        nearest[some] = products.argmax(axis=1)
        dots[some] = products.max(axis=1)
    return nearest, dots


def _products(rows: np.ndarray, centroids: PackedCentroids) -> np.ndarray:
    """Return all dot products, which float64 holds exactly, ``(n, 16 * groups)`` int64."""
    products = rows.astype("float64") @ centroids.unpacked().astype("float64").T
    return products.astype("int64") + centroids.start.reshape(-1)


def nearest_in_two_levels(rows: np.ndarray, levels: CentroidLevels) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest centroid of each row under its nearest coarse centroid, and the dot product, both int32."""
    if instruction_set() == NUMPY:
        return nearest_in_two_levels_plainly(rows, levels)
    nearest, dots = (np.empty(len(rows), dtype="int32") for _ in range(2))
    succeeded(_in_two_levels(rows, len(rows), *levels.arguments(), nearest, dots))
    return nearest, dots


def nearest_in_two_levels_plainly(rows: np.ndarray, levels: CentroidLevels) -> tuple[np.ndarray, np.ndarray]:
    """`nearest_in_two_levels` in numpy."""
    nearest, dots = nearest_plainly(rows, levels.coarse)
    # Starting sums from a damaged file can make a lane without a centroid the nearest.
    coarse = np.minimum(nearest, len(levels.offsets) - 2)
    for c in np.unique(coarse):
        own = coarse == c
        found, dots[own] = nearest_plainly(rows[own], levels.under(c))
        nearest[own] = found + GROUP * levels.offsets[c]
    return nearest, dots


def spherical_kmeans(rows: np.ndarray, scales: np.ndarray, iterations: int, centroids: np.ndarray) -> None:
    """Train unit centroids on some tokens.

    The first centroids are the directions of tokens at equal distances in `rows`, and so are those that take the place
    of centroids without tokens: the result does not depend on threads. `rows`, `scales`: codes ``(n, width)`` uint8,
    shifted by 128, and scales ``(n,)`` float32; at least one. `centroids`: ``(count, dim)`` float32, at most `n`;
    written.
    """
    if instruction_set() == NUMPY:
        kmeans_plainly(rows, scales, iterations, centroids)
        return
    succeeded(_kmeans(rows, scales, len(rows), rows.shape[1] // 4, iterations, centroids, *centroids.shape))


def kmeans_plainly(rows: np.ndarray, scales: np.ndarray, iterations: int, centroids: np.ndarray) -> None:
    """`spherical_kmeans` in numpy."""
    count, dim = centroids.shape
    members = len(rows)
    vectors = rows[:, :dim].astype("float64") - 128
    for i in range(iterations + 1):
        sums = np.zeros((count, dim))
        without = np.arange(count)  # at first, all centroids are without tokens
        if i > 0:
            nearest, _ = nearest_plainly(rows, pack_centroids(centroids, rows.shape[1], np.abs(centroids).max() / 127))
            np.add.at(sums, nearest, vectors * scales[:, None])
            without = np.flatnonzero(np.bincount(nearest, minlength=count) == 0)
        sums[without] = vectors[(without * members + i * members // (iterations + 1)) // count]
        centroids[:] = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-30)


def group_rows(clusters: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows by their cluster, ``(n,)``; return where each cluster begins, ``(count + 1,)`` int64, and the rows."""
    order = np.argsort(clusters.astype("uint16") if count <= 1 << 16 else clusters, kind="stable")
    return np.append(0, np.cumsum(np.bincount(clusters, minlength=count))), order


class ProbedLists(NamedTuple):
    """The inverted lists that each query token probes, best first (-1: fewer), and the excess of their imputed score.

    ``(query_tokens, nprobe)`` int32 both. The excess of a list over the last one is ``floor((dot - last) * scale *
    share) + 1`` with ``share = (2 ** bits - 1 - tokens) / sum over tokens of (first - last) * scale``: the first
    excesses of all tokens add up to less than ``2 ** bits``. It is 0 where there is no list.
    """

    lists: np.ndarray
    excess: np.ndarray


def find_lists(vectors: np.ndarray, levels: CentroidLevels, coarse: int, nprobe: int, bits: int) -> ProbedLists:
    """Find the inverted lists that every query token probes, by two levels of centroids, and the scores they impute.

    `vectors`: ``(tokens, dim)`` float32. `coarse`: coarse centroids under which a token looks for lists.
    """
    if instruction_set() == NUMPY:
        return find_lists_plainly(vectors, levels, coarse, nprobe, bits)
    tokens = len(vectors)
    lists, excess = (np.empty(tokens * nprobe, dtype="int32") for _ in range(2))
    limits = coarse, nprobe, (1 << bits) - 1 - tokens
    most = succeeded(_find_lists(vectors, *vectors.shape, *levels.arguments(), *limits, lists, excess))
    return ProbedLists(*(each[: tokens * most].reshape(tokens, most) for each in (lists, excess)))


def find_lists_plainly(vectors: np.ndarray, levels: CentroidLevels, coarse: int, nprobe: int, bits: int) -> ProbedLists:
    """`find_lists` in numpy."""
    tokens, dim = vectors.shape
    scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(127)
    inverses = np.where(scales > 1e-42, 1 / np.maximum(scales, np.float32(1e-42)).astype("float64"), 0)
    rows = np.full((tokens, 4 * levels.coarse.packed.shape[1]), 128, dtype="uint8")
    rows[:, :dim] = np.floor(vectors * inverses[:, None] + 128.5)
    lists = np.full((tokens, nprobe), -1, dtype="int32")
    dots = np.full((tokens, nprobe), NO_CENTROID, dtype="int64")
    longest = 0
    for t in range(tokens):
        some, _ = _best(_products(rows[t : t + 1], levels.coarse)[0], coarse)
        # With starting sums from a damaged file, a lane without a centroid can be among the best.
        some = some[some < len(levels.offsets) - 1]
        numbers = [np.arange(GROUP * levels.offsets[c], GROUP * levels.offsets[c + 1]) for c in some]
        products = [_products(rows[t : t + 1], levels.under(c))[0] for c in some]
        own = np.concatenate([np.zeros(0, "int64"), *numbers])
        by_number = np.argsort(own)
        found, values = _best(np.concatenate([np.zeros(0, "int64"), *products])[by_number], nprobe)
        lists[t, : len(found)], dots[t, : len(found)] = own[by_number][found], values
        longest = max(longest, len(own))
    lists, dots = lists[:, :longest], dots[:, :longest]
    if not lists.size:
        return ProbedLists(lists, np.zeros_like(lists))
    counts = np.maximum(1, (lists >= 0).sum(axis=1))
    above = dots - dots[np.arange(tokens), counts - 1][:, None]
    share = ((1 << bits) - 1 - tokens) / (1e-30 + float(np.cumsum(above[:, 0] * scales.astype("float64"))[-1]))
    excess = np.where(lists >= 0, above * (scales.astype("float64") * share)[:, None], -1).astype("int32") + 1
    return ProbedLists(np.ascontiguousarray(lists), np.ascontiguousarray(np.where(lists >= 0, excess, 0)))


def _best(dots: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the highest dot products of centroids, best first, of equal ones the first; and these."""
    order = np.argsort(-dots, kind="stable")[:most]
    order = order[dots[order] >= NO_CENTROID // 2]
    return order, dots[order]
