"""Recall of an index, measured against scores that are computed anew: in double precision, over every document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.base import Index
from latelier.indexes.results import CheckReport, Hit
from latelier.scores.topk import TopK

__all__ = ["Search", "exact_scores", "measure_recall"]

Search: TypeAlias = "Callable[[Any, int], list[list[Hit]]]"

# Scores in single precision may differ from ours by this much of their size without being wrong.
_TOLERANCE = 1e-5
# A document is a longer query than people ask; this many tokens of it are as many as theirs.
_QUERY_TOKENS = 32
_CHUNK = 256


def measure_recall(index: Index, k: int, queries: int, searches: Sequence[Search] = ()) -> list[CheckReport]:
    """Search with some of the index's own documents and count how many hits belong to the exact best `k`.

    Parameters
    ----------
    index
        Any index; an empty one has recall 1.
    k, queries
        As for `Index.check`.
    searches
        Ways to search it, from queries and `k`; by default `index.search` alone.

    Returns
    -------
    list of CheckReport
        One for each way.
    """
    searches = searches or [index.search]
    ids = index.ids()
    if not ids:
        return [CheckReport(k=k, recall=1.0, worst=1.0, queries=0, documents=0)] * len(searches)
    sample = index.get_embeddings([ids[i] for i in _spread(len(ids), queries)])
    asked = TokenEmbeddings.from_list([matrix[:_QUERY_TOKENS] for matrix in sample])
    exact = TopK(len(asked), min(k, len(ids)))
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        exact.add(exact_scores(asked, index.get_embeddings(chunk)), np.arange(first, first + len(chunk)))
    return [_compare(index, asked, exact, search(asked, k), k, len(ids)) for search in searches]


def _compare(
    index: Index, asked: TokenEmbeddings, exact: TopK, found: list[list[Hit]], k: int, documents: int
) -> CheckReport:
    right = []
    for i, hits in enumerate(found):
        edge = exact.scores[i][-1]
        scores = exact_scores(asked[i : i + 1], index.get_embeddings([hit.id for hit in hits]))[0]
        right.append(np.count_nonzero(scores >= edge - _TOLERANCE * max(1.0, abs(edge))) / len(exact.scores[i]))
    return CheckReport(k, float(np.mean(right)), float(np.min(right)), len(asked), documents)


def exact_scores(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return MaxSim in float64, ``(n_queries, n_documents)``; every text has a token.

    Examples
    --------
    >>> queries = TokenEmbeddings.from_list([[[1.0, 0.0], [0.0, 1.0]]])
    >>> exact_scores(queries, TokenEmbeddings.from_list([[[1.0, 0.0]], [[-0.5, 0.0], [0.0, -0.25]]]))
    array([[1., 0.]])
    """
    similarities = queries.vectors.astype("float64") @ documents.vectors.astype("float64").T
    best = np.maximum.reduceat(similarities, documents.offsets[:-1], axis=1)
    return np.add.reduceat(best, queries.offsets[:-1], axis=0)


def _spread(n: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype("int64"))
