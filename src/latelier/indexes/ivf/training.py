"""Training of centroids: spherical k-means in two levels, on a sample of the index's own tokens.

An index of n tokens gets about ``14 * sqrt(n)`` inverted lists. With fewer lists, centroids represent their tokens too
coarsely; with more, comparing the centroids takes more time than the shorter lists save.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from latelier.indexes.ivf.centroids import Centroids, TrainingStatistics, pack_centroids
from latelier.indexes.ivf.code_layout import byte_width
from latelier.indexes.ivf.document_table import DocumentTable, TokenRows
from latelier.indexes.ivf.inverted_lists import InvertedLists, build_lists
from latelier.indexes.ivf.kernels.dots import nearest_centroids
from latelier.indexes.ivf.kernels.kmeans import add_rows, group_rows
from latelier.indexes.ivf.search_parameters import size_factor
from latelier.kernels.instruction_sets import instruction_set
from latelier.kernels.simd import LANES
from latelier.kernels.threads import thread_count

__all__ = ["list_count", "train_centroids", "train_lists"]

# Tokens sampled per centroid, and iterations, for each level. Larger numbers take time and find no better centroids.
_COARSE_SAMPLE, _FINE_SAMPLE = 64, 32
_COARSE_ITERATIONS, _FINE_ITERATIONS = 8, 4
_MAX_SAMPLE = 1 << 21
# list_count = 14.4 * sqrt(tokens) * size_factor ** 0.3: in large indexes, lists would get too long without the factor.
_LISTS_PER_ROOT, _EXPONENT = 0.9 * LANES, 0.3


def list_count(tokens: int) -> int:
    """Return the number of inverted lists for a number of tokens, a multiple of 16.

    Examples
    --------
    >>> list_count(1_180_000), list_count(100), list_count(100_000_000)
    (15648, 144, 287312)
    """
    return LANES * max(1, round(_LISTS_PER_ROOT / LANES * tokens**0.5 * size_factor(tokens) ** _EXPONENT))


def train_centroids(table: DocumentTable, ordinals: np.ndarray, most: int = _MAX_SAMPLE) -> Centroids:
    """Train centroids on a sample of the tokens of some documents.

    Parameters
    ----------
    table
        Documents.
    ordinals
        Ordinals of the documents to sample; at least one.
    most
        Maximum number of tokens in the sample, which limits the memory of training.

    Returns
    -------
    Centroids
        With statistics in which the similarities are still 0.
    """
    dim, tokens = table.codec.dim, table.count_tokens(ordinals)
    lists = list_count(tokens)
    coarse_count = LANES * max(1, round((lists**0.5) / LANES))
    rng = np.random.default_rng(0)
    rows = _sample_rows(table, ordinals, min(most, _MAX_SAMPLE, _FINE_SAMPLE * lists))
    some = rng.permutation(len(rows.codes))[: _COARSE_SAMPLE * coarse_count]
    coarse = _kmeans(rows, some, coarse_count, dim, _COARSE_ITERATIONS, rng)
    packed_coarse, coarse_start = pack_centroids(coarse, rows.codes.shape[1], _scale(coarse))
    nearest = _assign(rows, np.arange(len(rows.codes)), packed_coarse, coarse_start)
    offsets, order = np.zeros(len(coarse) + 1, dtype="int64"), np.empty(len(nearest), dtype="int64")
    group_rows(nearest, offsets, order)
    # Number of groups of 16 centroids under each coarse centroid, in proportion to its share of the tokens.
    shares = np.maximum(1, np.round(np.diff(offsets) * (lists / LANES / len(nearest)))).astype("int64")

    def train_under(c: int) -> np.ndarray:
        mine = order[offsets[c] : offsets[c + 1]]
        if not len(mine):
            return coarse[c : c + 1]
        own = TokenRows(rows.codes[mine], rows.scales[mine])  # a copy that stays in the processor's cache
        everything = np.arange(len(mine))
        return _kmeans(own, everything, LANES * int(shares[c]), dim, _FINE_ITERATIONS, np.random.default_rng(c))

    fine = _map_in_threads(train_under, len(coarse))
    scale = max(map(_scale, fine))
    packed = [pack_centroids(centroids, rows.codes.shape[1], scale) for centroids in fine]
    return Centroids(
        coarse=packed_coarse,
        coarse_start=coarse_start,
        fine=np.concatenate([codes for codes, _ in packed]),
        fine_start=np.concatenate([start for _, start in packed]),
        fine_offsets=np.cumsum([0, *(len(codes) for codes, _ in packed)], dtype="int64"),
        statistics=TrainingStatistics(tokens, trained_similarity=0, latest_similarity=0, dim=dim),
    )


def train_lists(table: DocumentTable, memory: int) -> InvertedLists:
    """Return inverted lists of the living documents, for newly trained centroids.

    Parameters
    ----------
    table
        Documents, at least one of them alive.
    memory
        Maximum size of the sample of tokens, in bytes.
    """
    ordinals = table.living[np.argsort(table.numbers[table.living], kind="stable")]
    centroids = train_centroids(table, ordinals, most=memory // byte_width(table.codec.dim))
    return build_lists(centroids, table, ordinals)


def _sample_rows(table: DocumentTable, ordinals: np.ndarray, most: int) -> TokenRows:
    """Return all tokens of every n-th document, with n such that there are about `most` tokens."""
    step = max(1.0, table.count_tokens(ordinals) / most)
    return table.unpack(ordinals[np.unique((np.arange(0, len(ordinals), step)).astype("int64"))])


def _kmeans(
    rows: TokenRows, order: np.ndarray, count: int, dim: int, iterations: int, rng: np.random.Generator
) -> np.ndarray:
    """Return unit centroids ``(count, dim)`` float32 of the rows in `order`; fewer if there are fewer rows."""
    count = min(count, len(order))
    centroids = _directions(rows, rng.choice(order, count, replace=False), dim)
    for _ in range(iterations):
        nearest = _assign(rows, order, *pack_centroids(centroids, rows.codes.shape[1], _scale(centroids)))
        sums, counts = np.zeros((count, dim), dtype="float32"), np.zeros(count, dtype="int64")
        add_rows(rows.codes, rows.scales, order, nearest, sums, counts)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = _directions(rows, rng.choice(order, len(empty)), dim)
        centroids = _unit(sums)
    return centroids


def _assign(rows: TokenRows, order: np.ndarray, packed: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the nearest centroid of the rows in `order`, ``(rows,)`` int32."""
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
