"""Training of centroids: spherical k-means in two levels, on a sample of the index's own tokens.

An index of n tokens gets about ``14 * sqrt(n)`` inverted lists. With fewer lists, centroids represent their tokens too
coarsely; with more, comparing the centroids takes more time than the shorter lists save.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from latelier.indexes.ivf.centroids import Centroids, TrainingStatistics, pack_centroids
from latelier.indexes.ivf.code_layout import byte_width
from latelier.indexes.ivf.document_table import DocumentTable, TokenRows
from latelier.indexes.ivf.inverted_lists import InvertedLists, build_lists
from latelier.indexes.ivf.kernels.dots import nearest_centroids
from latelier.indexes.ivf.kernels.kmeans import add_rows, group_rows
from latelier.indexes.ivf.search_parameters import list_count
from latelier.indexes.ivf.training_sample import TrainingSample
from latelier.indexes.storage.files import release_memory
from latelier.indexes.storage.scratch import Scratch
from latelier.kernels.instruction_sets import instruction_set
from latelier.kernels.simd import LANES
from latelier.kernels.threads import thread_count
from latelier.utils.ranges import lengths_to_offsets, split_by_rows

__all__ = ["train_centroids", "train_lists"]

# Tokens sampled per centroid, and iterations, for each level. Larger numbers take time and find no better centroids.
_COARSE_SAMPLE, _FINE_SAMPLE = 64, 32
_COARSE_ITERATIONS, _FINE_ITERATIONS = 8, 4
_MAX_SAMPLE = 1 << 21


def train_centroids(
    table: DocumentTable, ordinals: np.ndarray, memory: int | None = None, scratch: Scratch | None = None
) -> Centroids:
    """Train centroids on a sample of the tokens of some documents.

    Parameters
    ----------
    table
        Documents.
    ordinals
        Ordinals of the documents to sample; at least one.
    memory
        Maximum size of the sampled tokens that are in memory at once, in bytes; None: all of them. It has no influence
        on the centroids: a sample that does not fit is read several times.
    scratch
        Where large arrays are made; None: in memory.

    Returns
    -------
    Centroids
        With statistics in which the similarities are still 0.
    """
    dim, tokens, width = table.codec.dim, table.count_tokens(ordinals), byte_width(table.codec.dim)
    lists = list_count(tokens)
    coarse_count = LANES * max(1, round((lists**0.5) / LANES))
    rng = np.random.default_rng(0)
    sample = TrainingSample(table, ordinals, min(_MAX_SAMPLE, _FINE_SAMPLE * lists), memory)
    rows = sample.take(rng.permutation(len(sample))[: _COARSE_SAMPLE * coarse_count])
    coarse = _kmeans(rows, coarse_count, dim, _COARSE_ITERATIONS, rng)
    packed_coarse, coarse_start = pack_centroids(coarse, width, _scale(coarse))
    nearest = np.empty(len(sample), dtype="int32")
    for first, rows in sample.blocks():
        nearest[first : first + len(rows.scales)] = _assign(rows, packed_coarse, coarse_start)
        del rows
    offsets = lengths_to_offsets(np.bincount(nearest, minlength=len(coarse)))
    # Number of groups of 16 centroids under each coarse centroid, in proportion to its share of the tokens.
    shares = np.maximum(1, np.round(np.diff(offsets) * (lists / LANES / len(nearest)))).astype("int64")
    # Number of centroids under each coarse centroid: itself, where it has no tokens.
    counts = np.maximum(1, np.minimum(LANES * shares, np.diff(offsets)))
    ends, groups = lengths_to_offsets(counts), lengths_to_offsets(-(-counts // LANES))
    centroids = (scratch or Scratch()).empty((ends[-1], dim), "float32")
    scale = 0.0
    for begin, end in split_by_rows(offsets, sample.at_once):
        some = centroids[ends[begin] : ends[end]]
        np.concatenate(_train_fine(sample, nearest, coarse, range(begin, end), shares), out=some)
        scale = max(scale, _scale(some))
        release_memory(centroids)
    fine = np.empty((groups[-1], width // 4, LANES, 4), dtype="int8")
    fine_start = np.empty((groups[-1], LANES), dtype="int32")
    for c, (first, last) in enumerate(pairwise(groups)):
        fine[first:last], fine_start[first:last] = pack_centroids(centroids[ends[c] : ends[c + 1]], width, scale)
    statistics = TrainingStatistics(tokens, trained_similarity=0, latest_similarity=0, dim=dim)
    return Centroids(packed_coarse, coarse_start, fine, fine_start, groups, statistics)


def train_lists(table: DocumentTable, *, memory: int | None = None, scratch: Scratch | None = None) -> InvertedLists:
    """Return inverted lists of the living documents, for newly trained centroids.

    Parameters
    ----------
    table
        Documents, at least one of them alive.
    memory
        See `train_centroids`.
    scratch
        Where large arrays are made; None: in memory.
    """
    ordinals = table.living[np.argsort(table.numbers[table.living], kind="stable")]
    return build_lists(train_centroids(table, ordinals, memory, scratch), table, ordinals, scratch)


def _train_fine(
    sample: TrainingSample, nearest: np.ndarray, coarse: np.ndarray, some: range, shares: np.ndarray
) -> list[np.ndarray]:
    """Return the centroids under some of the coarse centroids, given the nearest coarse centroid of each token."""
    numbers = np.flatnonzero((nearest >= some.start) & (nearest < some.stop))
    rows = sample.take(numbers)
    offsets, order = np.zeros(len(some) + 1, dtype="int64"), np.empty(len(numbers), dtype="int64")
    group_rows(nearest[numbers] - np.int32(some.start), offsets, order)

    def train(i: int) -> np.ndarray:
        c, mine = some[i], order[offsets[i] : offsets[i + 1]]
        if not len(mine):
            return coarse[c : c + 1]
        own = TokenRows(rows.codes[mine], rows.scales[mine])  # a copy that stays in the processor's cache
        return _kmeans(own, LANES * int(shares[c]), coarse.shape[1], _FINE_ITERATIONS, np.random.default_rng(c))

    return _map_in_threads(train, len(some))


def _kmeans(rows: TokenRows, count: int, dim: int, iterations: int, rng: np.random.Generator) -> np.ndarray:
    """Return unit centroids ``(count, dim)`` float32; fewer if there are fewer rows."""
    order = np.arange(len(rows.codes))
    count = min(count, len(order))
    centroids = _directions(rows, rng.choice(order, count, replace=False), dim)
    for _ in range(iterations):
        nearest = _assign(rows, *pack_centroids(centroids, rows.codes.shape[1], _scale(centroids)))
        sums, counts = np.zeros((count, dim), dtype="float32"), np.zeros(count, dtype="int64")
        add_rows(rows.codes, rows.scales, order, nearest, sums, counts)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = _directions(rows, rng.choice(order, len(empty)), dim)
        centroids = _unit(sums)
    return centroids


def _assign(rows: TokenRows, packed: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the nearest centroid of each row, ``(rows,)`` int32."""
    order = np.arange(len(rows.codes))
    nearest, dots = (np.zeros(len(rows.codes), dtype="int32") for _ in range(2))
    nearest_centroids(instruction_set().argument, rows.codes, order, packed, start, nearest, dots)
    return nearest


def _directions(rows: TokenRows, chosen: np.ndarray, dim: int) -> np.ndarray:
    return _unit(rows.codes[chosen, :dim].astype("float32") - np.float32(128))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-30))


def _scale(centroids: np.ndarray) -> float:
    """Return the scale for which the largest absolute number has the code 127."""
    return max(float(np.abs(centroids).max(initial=0)) / 127, 1e-30)


def _map_in_threads(function: Callable[[int], np.ndarray], count: int) -> list[np.ndarray]:
    threads = thread_count()
    if threads < 2:
        return list(map(function, range(count)))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, range(count)))
