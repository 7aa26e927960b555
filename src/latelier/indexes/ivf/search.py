"""One query through the stages of a search, and which of them it takes.

Where few documents may be found, because the index is small, no cells were made yet or a filter leaves few, all their
signs are compared: that costs less than cells can save, and misses nothing. A filter that leaves many is pushed into
the cells, and as much as it leaves out, more of them are visited.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.document_table import Table
from latelier.indexes.ivf.inverted_lists import Cells
from latelier.indexes.ivf.query import Query, prepare_query
from latelier.indexes.ivf.search_parameters import Knobs
from latelier.indexes.ivf.stages import compare_signs, gather, keep_best, keep_likely, probe, score_codes

__all__ = ["Found", "Scope", "search_one"]

# Documents beyond the k best that are scored with the query as it came: those whose order 8 bits may have mistaken.
_MARGIN = 4
# So many documents are scored by their codes without looking at their signs.
_FEW, _FEW_PER_HIT = 80, 8
# Times as many documents as would be compared anyway, up to which all are; once more for each time that as many cells
# would be visited, which takes about as long.
_SCAN = 2
# Filters and short queries widen the visit up to so many times.
_WIDEST = 16


class Found(NamedTuple):
    """The best documents of one query: scores, best first, and numbers in the catalog."""

    scores: np.ndarray
    numbers: np.ndarray


class Scope(NamedTuple):
    """What a search may find.

    Attributes
    ----------
    table, cells
        Of the snapshot; without cells, everything is scanned.
    mask
        ``(documents,)`` uint8; empty where every document of the table counts.
    chosen
        The documents that count, ascending.
    """

    table: Table
    cells: Cells | None
    mask: np.ndarray
    chosen: np.ndarray


def search_one(scope: Scope, vectors: np.ndarray, k: int, knobs: Knobs) -> Found:
    """Find the best documents of one query.

    Parameters
    ----------
    scope
        What may be found.
    vectors
        ``(tokens, dim)`` float32, at least one token.
    k
        How many documents; fewer where there are fewer.
    knobs
        Widths of the stages.
    """
    table, query = scope.table, prepare_query(vectors)
    chosen = scope.chosen if knobs.exact else _candidates(scope, query, k, knobs)
    if len(chosen) > (knobs.rerank or _FEW + _FEW_PER_HIT * k) and not knobs.exact:
        signs = compare_signs(table, chosen, query)
        if knobs.rerank is None:
            chosen = keep_likely(chosen, signs, query, k, knobs.slack)
        else:
            chosen = keep_best(chosen, signs, knobs.rerank)
    if len(chosen) > k + _MARGIN:
        chosen = keep_best(chosen, score_codes(table, chosen, query, fine=False), k + _MARGIN)
    if not len(chosen):
        return Found(np.zeros(0, dtype="float32"), np.zeros(0, dtype="int64"))
    scores, numbers = score_codes(table, chosen, query, fine=True), table.numbers[chosen]
    order = np.lexsort((numbers, -scores))[:k]
    return Found(scores[order], numbers[order])


def _candidates(scope: Scope, query: Query, k: int, knobs: Knobs) -> np.ndarray:
    """Return documents worth looking at: those found in cells and all that are in none, or simply all."""
    table, chosen = scope.table, scope.chosen
    inside = int(np.searchsorted(chosen, table.known))
    enough = knobs.rerank or max(k, knobs.candidates // 2)
    wider = min(_WIDEST, max(1, round(table.known / max(1, inside))))
    if scope.cells is None or inside <= (_SCAN + wider) * knobs.candidates:
        return chosen
    while wider <= _WIDEST:
        visits = probe(scope.cells.centroids, query, knobs.nprobe * wider)
        found = gather(scope.cells, table, visits, scope.mask, knobs.candidates)
        if len(found) >= enough:
            return np.concatenate([found, chosen[inside:]])
        wider *= 4
    return chosen
