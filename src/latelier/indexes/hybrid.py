"""Fusion of what vectors and keywords find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.indexes.documents import prepare_queries
from latelier.indexes.options import SearchOptions
from latelier.indexes.results import Hit, Ranking
from latelier.indexes.store.segments import Snapshot

# The constant of reciprocal rank fusion in its paper.
_RANK_CONSTANT = 60


def fuse_scores(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Ranking:
    """Relative-score fusion: the weighted sum of the scores, each ranking's scaled to 0 to 1.

    That is ``weight * (s - a) / (b - a)`` for the lowest score ``a`` and the highest ``b``, or the weight if they are
    equal; 0 for a document that is missing.
    """
    return _weighted_sum([ranking.numbers for ranking in rankings], [_scaled(r.scores) for r in rankings], weights, k)


def fuse_ranks(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Ranking:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009), with weights.

    A ranking gives the document at rank ``r = 1, 2, ...`` the score ``weight / (60 + r)``, and documents that are
    missing in it 0. The paper has no weights. `rankings`, `weights`, `k`: as for `fuse_scores`.
    """
    reciprocals = [1 / (_RANK_CONSTANT + np.arange(1, len(ranking.numbers) + 1)) for ranking in rankings]
    return _weighted_sum([ranking.numbers for ranking in rankings], reciprocals, weights, k)


def _scaled(scores: np.ndarray) -> np.ndarray:
    """Return scores scaled to the range from 0 to 1; ones if all are equal."""
    if not len(scores):
        return np.zeros(0)
    low, high = float(scores.min()), float(scores.max())
    return np.ones(len(scores)) if high == low else (scores.astype("float64") - low) / (high - low)


def _weighted_sum(
    numbers: Sequence[np.ndarray], scores: Sequence[np.ndarray], weights: Sequence[float], k: int
) -> Ranking:
    every = np.unique(np.concatenate([np.zeros(0, "int64"), *numbers]))
    total = np.zeros(len(every))
    for own, given, weight in zip(numbers, scores, weights, strict=True):
        total[np.searchsorted(every, own)] += weight * given
    return Ranking.sorted(every, total, k)


def combine_sides(
    options: SearchOptions,
    by_vectors: Ranking,
    by_keywords: Ranking,
    score: Callable[[np.ndarray], Ranking],
    k: int,
) -> Ranking:
    """Return the best documents of one query from those that vectors and those that keywords have found.

    `by_vectors`, `by_keywords`: up to `depth` documents each; ``"rerank"`` needs none by vectors.
    """
    if options.mode == "rerank":
        return Ranking.sorted(*score(by_keywords.numbers), k)
    if options.fusion == "rrf":
        return fuse_ranks([by_vectors, by_keywords], options.weights, k)
    scored = score(np.setdiff1d(by_keywords.numbers, by_vectors.numbers))
    every = Ranking(*(np.concatenate(pair) for pair in zip(by_vectors, scored, strict=True)))
    return fuse_scores([every, by_keywords], options.weights, k)


def hits_of(snapshot: Snapshot, rankings: Sequence[Ranking]) -> list[list[Hit]]:
    """Return the documents of rankings as hits, with the ids that users gave."""
    numbers = np.concatenate([np.zeros(0, dtype="int64"), *(ranking.numbers for ranking in rankings)])
    scores = [score for ranking in rankings for score in ranking.scores.tolist()]
    hits = map(Hit._make, zip(snapshot.ids(numbers), scores, strict=True))
    return [list(islice(hits, len(ranking.numbers))) for ranking in rankings]


def check_queries(queries: Any, dim: int | None, texts: list[str], mode: str) -> TokenEmbeddings | None:
    """Return the vectors of the queries of a search, packed; None for ``"keywords"``, which uses none."""
    if mode == "keywords":
        return None
    if queries is None and mode != "vectors":
        raise InvalidArgumentError(f"mode={mode!r} needs the vectors of the queries too; only 'keywords' does not.")
    vectors = prepare_queries(queries, dim)
    if mode != "vectors" and len(vectors) != len(texts):
        raise InvalidArgumentError(
            f"received {len(vectors)} queries and {len(texts)} texts; give one text for each query."
        )
    return vectors
