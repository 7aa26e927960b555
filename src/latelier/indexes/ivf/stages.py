"""The stages of a search, each narrowing what the one before it has left.

1. `probe`: the best cells of each query token, by two levels of centroids.
2. `gather`: documents in those cells, and of them those with the highest sums of what their cells promise.
3. `compare_signs`: of those, the ones with the fewest differing signs.
4. `score_codes`: MaxSim of their codes with the query rounded to 8 bits, and for the few that are left with the query
   as it came.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.document_table import Table
from latelier.indexes.ivf.inverted_lists import Cells, Centroids
from latelier.indexes.ivf.kernels.candidates import MOST_TOKENS, gather_best, sum_bits
from latelier.indexes.ivf.kernels.dots import group_dots, rerank_scores
from latelier.indexes.ivf.kernels.hamming import hamming_scores
from latelier.indexes.ivf.kernels.probing import best_cells, best_groups
from latelier.indexes.ivf.kernels.selection import highest_places, near_highest
from latelier.indexes.ivf.query import Query
from latelier.kernels.cpu import instruction_set
from latelier.kernels.simd import LANES

__all__ = ["Visits", "compare_signs", "gather", "keep_best", "keep_likely", "probe", "score_codes"]

# Groups of cells that a query token looks into, at least; more when it is to visit many cells.
_GROUPS = 4
_CELLS_PER_GROUP = 8
# Documents whose sums, 4 bytes each, stay in the second-level cache.
_BLOCK = 1 << 16
_SCRATCH = threading.local()
# Power of the cosine of two query tokens that says how alike their errors are: next to nothing below 0.7.
_ALIKE = 8
# Query tokens that are compared with all others at a time.
_TOGETHER = 1024


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
        Cells per query token; fewer where there are fewer. Of queries beyond 65,535 tokens, the others visit none.
    """
    rows, tokens = query.rows[:MOST_TOKENS], min(MOST_TOKENS, len(query.rows))
    isa, groups = instruction_set(), len(centroids.ranges) - 1
    everything = np.zeros((tokens, 1, 2), dtype="int64")
    everything[:, 0, 1] = len(centroids.top)
    sums = np.empty((tokens, len(centroids.top), LANES), dtype="int32")
    group_dots(isa, rows, everything, centroids.top, centroids.top_start, sums)
    most = min(groups, max(_GROUPS, nprobe // _CELLS_PER_GROUP))
    ranges = np.empty((tokens, most, 2), dtype="int64")
    longest = best_groups(sums, most, centroids.ranges, ranges)
    sums = np.empty((tokens, longest, LANES), dtype="int32")
    group_dots(isa, rows, ranges, centroids.cells, centroids.cell_start, sums)
    cells, gains = (np.empty((tokens, min(nprobe, LANES * longest)), dtype="int32") for _ in range(2))
    best_cells(sums, ranges, query.scales, (1 << sum_bits(tokens)) - 1 - tokens, cells, gains)
    return Visits(cells, gains)


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
    count = gather_best(
        visits.cells,
        visits.gains,
        (cells.offsets, cells.documents.view("uint8"), cells.documents.itemsize),
        sum_bits(len(visits.cells)),
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
    coded = (query.packed, query.start, query.scales)
    rerank_scores(instruction_set(), table.documents, chosen, table.codec.shape, coded, fine, scores)
    return scores


def keep_best(chosen: np.ndarray, scores: np.ndarray, most: int) -> np.ndarray:
    """Return the documents with the highest scores, in the order given; of equal ones at the edge, the first."""
    if len(chosen) <= most:
        return chosen
    kept = np.empty(most, dtype="int64")
    highest_places(scores, kept)
    return chosen[kept]


def keep_likely(chosen: np.ndarray, scores: np.ndarray, query: Query, k: int, slack: float) -> np.ndarray:
    """Return the documents that may be among the k best by what their signs say, in the order given.

    Signs of a token that is a good match differ in about a fifth, as if each were tossed by itself: the standard
    deviation of their number is 0.4 times the root of how many there are. Variances add up over query tokens, but for
    those that are much the same, as queries filled up with [MASK] have: they find the same tokens, and err alike.
    `slack` is how many standard deviations a document may be worse than the k-th best.
    """
    deviation = 0.4 * math.sqrt(query.vectors.shape[1] * _variance(query))
    kept = np.empty(len(chosen), dtype="int64")
    count = near_highest(scores, min(k, len(chosen)), slack * deviation, kept)
    return chosen[kept[:count]]


def _variance(query: Query) -> float:
    """Return the sum of the query tokens' squared lengths, and of the products of those that are alike."""
    lengths = np.maximum(query.lengths, np.float32(1e-30))
    directions = query.vectors / lengths[:, None]
    longest = lengths.max()  # whose square may be more than a float32 can say
    lengths = lengths / longest
    total = 0.0
    for first in range(0, len(lengths), _TOGETHER):  # so that a query of many thousand tokens takes no square of memory
        rows = slice(first, first + _TOGETHER)
        alike = np.maximum(directions[rows] @ directions.T, 0) ** _ALIKE
        total += float(lengths[rows] @ alike @ lengths)
    return total * float(longest) ** 2
