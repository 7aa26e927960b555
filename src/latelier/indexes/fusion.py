"""Fusion of two rankings of the same documents, by vectors and by keywords, into one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latelier.indexes.ranking import Ranking

__all__ = ["fuse_ranks", "fuse_scores"]

# The constant of reciprocal rank fusion in its paper.
_RANK_CONSTANT = 60


def fuse_scores(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Ranking:
    """Relative-score fusion: the weighted sum of the scores, each ranking's scaled to the range from 0 to 1.

    A ranking with the lowest score ``a`` and the highest score ``b`` gives a document with the score ``s``

        weight * (s - a) / (b - a)

    or its weight if ``a = b``. A document that is missing in a ranking gets 0 from it, as the last one of it does.

    Parameters
    ----------
    rankings
        The rankings; each holds a document once.
    weights
        The weight of each ranking.
    k
        Maximum number of documents to return.

    Returns
    -------
    Ranking
        Scores from 0 to the sum of the weights.

    Examples
    --------
    >>> vectors = Ranking(np.array([1, 2, 3]), np.array([9.0, 8.0, 5.0]))
    >>> keywords = Ranking(np.array([3, 1]), np.array([4.0, 2.0]))
    >>> fused = fuse_scores([vectors, keywords], (0.5, 0.5), k=2)
    >>> fused.numbers, fused.scores
    (array([1, 3]), array([0.5, 0.5]))
    """
    return _weighted_sum([ranking.numbers for ranking in rankings], [_scaled(r.scores) for r in rankings], weights, k)


def fuse_ranks(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Ranking:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009), with weights.

    A ranking gives the document at rank ``r = 1, 2, ...`` the score ``weight / (60 + r)``, and documents that are
    missing in it 0. The paper has no weights.

    Parameters
    ----------
    rankings, weights, k
        As for `fuse_scores`.

    Returns
    -------
    Ranking
        Its scores are the sums.

    Examples
    --------
    >>> vectors = Ranking(np.array([1, 2, 3]), np.array([9.0, 8.0, 5.0]))
    >>> keywords = Ranking(np.array([3, 1]), np.array([4.0, 2.0]))
    >>> fused = fuse_ranks([vectors, keywords], (1.0, 1.0), k=3)
    >>> fused.numbers, fused.scores.round(4)
    (array([1, 3, 2]), array([0.0325, 0.0323, 0.0161]))
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
