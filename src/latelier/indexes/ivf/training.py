"""Where the centroids of cells come from: spherical k-means in two levels, on a sample of the index's own tokens.

Fourteen times the root of the number of tokens is as many cells as pay: a cell then holds about as many documents as
there are cells to visit, and its centroid is close enough to its tokens to stand for them. Two levels make both
training and searching take time with the root of the number of cells.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from latelier.indexes.ivf.document_table import Rows, Table
from latelier.indexes.ivf.inverted_lists import Centroids, pack_centroids
from latelier.indexes.ivf.kernels.dots import assign_rows
from latelier.indexes.ivf.kernels.inverted_lists import group_rows
from latelier.indexes.ivf.kernels.kmeans import add_rows
from latelier.indexes.ivf.search_parameters import largeness
from latelier.kernels.cpu import instruction_set
from latelier.kernels.simd import LANES

__all__ = ["cell_count", "sample_rows", "train_centroids"]

# Of the whole collection; more of them cost time and gain nothing.
_TOP_SAMPLE, _CELL_SAMPLE = 64, 32  # tokens per centroid
_TOP_ITERATIONS, _CELL_ITERATIONS = 8, 4
_MOST_SAMPLES = 1 << 21
# Power of `largeness` by which there are more cells than the root of the tokens: their lists would get too long.
_GROWTH = 0.3


def cell_count(tokens: int) -> int:
    """Return how many cells pay for so many tokens, a multiple of 16.

    Examples
    --------
    >>> cell_count(1_180_000), cell_count(100), cell_count(100_000_000)
    (15648, 144, 287312)
    """
    return LANES * max(1, round(0.9 * tokens**0.5 * largeness(tokens) ** _GROWTH))


def sample_rows(table: Table, ordinals: np.ndarray, most: int) -> Rows:
    """Return all tokens of documents spread evenly over those given, about `most` tokens.

    Parameters
    ----------
    table
        Documents.
    ordinals
        Which of them to draw from.
    most
        Tokens.
    """
    tokens = int(table.lengths[ordinals].sum())
    step = max(1.0, tokens / most)
    chosen = ordinals[np.unique((np.arange(0, len(ordinals), step)).astype("int64"))]
    return table.rows(chosen)


def train_centroids(table: Table, ordinals: np.ndarray, most: int = _MOST_SAMPLES) -> Centroids:
    """Find centroids for the tokens of some documents.

    Parameters
    ----------
    table
        Documents.
    ordinals
        Which of them; at least one.
    most
        Tokens to train with at most, which bounds the memory this takes.
    """
    dim, tokens = table.codec.dim, int(table.lengths[ordinals].sum())
    cells = cell_count(tokens)
    groups = LANES * max(1, round((cells**0.5) / LANES))
    rng = np.random.default_rng(0)
    rows = sample_rows(table, ordinals, min(most, _MOST_SAMPLES, _CELL_SAMPLE * cells))
    some = rng.permutation(len(rows.codes))[: _TOP_SAMPLE * groups]
    top = _kmeans(rows, some, groups, dim, _TOP_ITERATIONS, rng)
    top_lanes, top_start = pack_centroids(top, rows.codes.shape[1], _scale(top))
    owners, _ = _assign(rows, np.arange(len(rows.codes)), top_lanes, top_start)
    offsets, order = np.zeros(len(top) + 1, dtype="int64"), np.empty(len(owners), dtype="int64")
    group_rows(owners, offsets, order)
    shares = np.maximum(1, np.round(np.diff(offsets) * (cells / LANES / len(owners)))).astype("int64")

    def within(group: int) -> np.ndarray:
        mine = order[offsets[group] : offsets[group + 1]]
        own = np.random.default_rng(group)
        if not len(mine):
            return top[group : group + 1]
        together = Rows(rows.codes[mine], rows.scales[mine])  # read again and again: small enough to stay in the cache
        return _kmeans(together, np.arange(len(mine)), LANES * int(shares[group]), dim, _CELL_ITERATIONS, own)

    found = _in_threads(within, len(top))
    scale = max(map(_scale, found))
    packed = [pack_centroids(centroids, rows.codes.shape[1], scale) for centroids in found]
    return Centroids(
        top_lanes,
        top_start,
        np.concatenate([lanes for lanes, _ in packed]),
        np.concatenate([start for _, start in packed]),
        np.cumsum([0, *(len(lanes) for lanes, _ in packed)], dtype="int64"),
        np.array([tokens, 0, 0, dim], dtype="float64"),
    )


def _kmeans(
    rows: Rows, order: np.ndarray, count: int, dim: int, iterations: int, rng: np.random.Generator
) -> np.ndarray:
    """Return unit centroids ``(count, dim)`` float32 or fewer: never more than there are tokens."""
    count = min(count, len(order))
    centroids = _directions(rows, rng.choice(order, count, replace=False), dim)
    for _ in range(iterations):
        lanes, _ = _assign(rows, order, *pack_centroids(centroids, rows.codes.shape[1], _scale(centroids)))
        sums, counts = np.zeros((count, dim), dtype="float32"), np.zeros(count, dtype="int64")
        add_rows(rows.codes, rows.scales, order, lanes, sums, counts)
        empty = np.flatnonzero(counts == 0)
        sums[empty] = _directions(rows, rng.choice(order, len(empty)), dim)
        centroids = _unit(sums)
    return centroids


def _assign(rows: Rows, order: np.ndarray, lanes: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, values = (np.zeros(len(rows.codes), dtype="int32") for _ in range(2))
    assign_rows(instruction_set(), rows.codes, order, lanes, start, found, values)
    return found, values


def _directions(rows: Rows, chosen: np.ndarray, dim: int) -> np.ndarray:
    return _unit(rows.codes[chosen, :dim].astype("float32") - np.float32(128))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-30))


def _scale(centroids: np.ndarray) -> float:
    return max(float(np.abs(centroids).max(initial=0)) / 127, 1e-30)


def _in_threads(function: Callable[[int], np.ndarray], count: int) -> list[np.ndarray]:
    threads = torch.get_num_threads()
    if threads < 2:
        return list(map(function, range(count)))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, range(count)))
