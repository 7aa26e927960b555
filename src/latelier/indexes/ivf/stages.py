"""The stages of a search, each narrowing what the one before it has left.

1. `probe`: the best cells of each query token, by two levels of centroids.
2. `gather`: documents in those cells, and of them those with the highest sums of what their cells promise.
3. `compare_signs`: of those, the ones with the fewest differing signs.
4. `score_codes`: MaxSim of their codes with the query rounded to 8 bits, and for the few that are left with the query
   as it came.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.cells import Cells, Centroids
from latelier.indexes.ivf.kernels import dots
from latelier.indexes.ivf.query import Query
from latelier.indexes.ivf.table import Table
from latelier.scores.kernels.gathering import MOST_TOKENS, gather_best, sum_bits
from latelier.scores.kernels.hamming import hamming_scores
from latelier.scores.kernels.probing import best_lanes
from latelier.scores.kernels.selection import highest_places
from latelier.scores.kernels.vectors import LANES

__all__ = ["Visits", "compare_signs", "gather", "keep_best", "probe", "score_codes"]

# Groups of cells that a query token looks into, at least; more when it is to visit many cells.
_GROUPS = 4
_CELLS_PER_GROUP = 8
# Documents whose sums, 4 bytes each, stay in the second-level cache.
_BLOCK = 1 << 16
_SCRATCH = threading.local()


class Visits(NamedTuple):
    """Which cells each query token visits, best first, and what a document found there gains; int32 both."""

    cells: np.ndarray
    gains: np.ndarray


def probe(centroids: Centroids, query: Query, nprobe: int) -> Visits:
    """Find the best cells of each query token.

    Parameters
    ----------
    centroids
        Of the index.
    query
        The query.
    nprobe
        Cells per query token; fewer where there are fewer.
    """
    kernels, tokens = dots(), len(query.rows)
    rows = len(centroids.top)
    everything = np.zeros((tokens, 1, 2), dtype="int64")
    everything[:, 0, 1] = rows
    sums = np.empty((tokens, rows, LANES), dtype="int32")
    kernels.group_dots(query.rows, everything, centroids.top, centroids.top_start, sums)
    most = min(len(centroids.ranges) - 1, max(_GROUPS, nprobe // _CELLS_PER_GROUP))
    groups, _ = _best(sums, everything, most)
    ranges = np.stack([centroids.ranges[groups], centroids.ranges[groups + 1]], axis=2)
    rows = int((ranges[:, :, 1] - ranges[:, :, 0]).sum(axis=1).max())
    sums = np.empty((tokens, rows, LANES), dtype="int32")
    kernels.group_dots(query.rows, ranges, centroids.cells, centroids.cell_start, sums)
    cells, values = _best(sums, ranges, min(nprobe, LANES * rows))
    # Every document gets what the last cell visited promises, so only what is above it counts.
    last = np.where(cells < 0, np.int32(np.iinfo("int32").max), values).min(axis=1, keepdims=True)
    above = np.where(cells < 0, 0, (values - last)) * query.scales[:, None]
    total = max(float(above[:MOST_TOKENS, 0].sum()), 1e-30)
    # What a document gains at least, one for being there, leaves so much for the rest.
    room = 2 ** sum_bits(min(MOST_TOKENS, tokens)) - 1 - min(MOST_TOKENS, tokens)
    return Visits(cells, (above * (max(0, room) / total)).astype("int32") + 1)


def _best(sums: np.ndarray, ranges: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    lanes, values = (np.empty((len(sums), most), dtype="int32") for _ in range(2))
    best_lanes(sums, ranges, lanes, values)
    return lanes, values


def gather(cells: Cells, table: Table, visits: Visits, allowed: np.ndarray, most: int) -> np.ndarray:
    """Return the documents in the visited cells that promise most, ascending.

    Parameters
    ----------
    cells
        Of the index.
    table
        Its documents.
    visits
        From `probe`.
    allowed
        ``(documents,)`` uint8; empty where all may be found.
    most
        How many to return; fewer where fewer were found.
    """
    best = np.empty(most, dtype="int64")
    tokens = min(MOST_TOKENS, len(visits.cells))
    count = gather_best(
        visits.cells[:tokens],
        visits.gains[:tokens],
        (cells.offsets, cells.documents),
        sum_bits(tokens),
        allowed,
        len(table.numbers),
        _sums(),
        best,
    )
    return best[:count]


def _sums() -> np.ndarray:
    """Return memory for a block of documents, which each thread keeps."""
    if not hasattr(_SCRATCH, "sums"):
        _SCRATCH.sums = np.empty(_BLOCK, dtype="uint32")
    return _SCRATCH.sums


def compare_signs(table: Table, chosen: np.ndarray, query: Query) -> np.ndarray:
    """Return minus the weighted sum of differing signs of each chosen document, float32."""
    scores = np.empty(len(chosen), dtype="float32")
    hamming_scores((table.signs, table.lengths), chosen, (query.signs, query.lengths), scores)
    return scores


def score_codes(table: Table, chosen: np.ndarray, query: Query, *, fine: bool) -> np.ndarray:
    """Return MaxSim of each chosen document's codes with the query, rounded to 8 bits or as it came, float32."""
    scores = np.empty(len(chosen), dtype="float32")
    coded = (query.codes, query.packed, query.start, query.scales)
    dots().rerank_scores(table.documents, chosen, table.codec.shape, coded, fine, scores)
    return scores


def keep_best(chosen: np.ndarray, scores: np.ndarray, most: int) -> np.ndarray:
    """Return the documents with the highest scores, in the order given; of equal ones at the edge, the first."""
    if len(chosen) <= most:
        return chosen
    kept = np.empty(most, dtype="int64")
    highest_places(scores, kept)
    return chosen[kept]
