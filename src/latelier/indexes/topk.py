"""The k best documents of every query, kept while an index is scanned block by block.

Blocks come in the order of insertion and sorting is stable, so documents of equal score end up in that order.
"""

from __future__ import annotations

import numpy as np

__all__ = ["TopK"]


class TopK:
    """A running top k.

    Parameters
    ----------
    queries
        Number of queries.
    k
        How many documents to keep of each.

    Examples
    --------
    >>> best = TopK(queries=1, k=2)
    >>> best.add(np.array([[1.0, 3.0, 1.0]]), np.array([10, 11, 12]))
    >>> best.add(np.array([[2.0, 3.0]]), np.array([13, 14]))
    >>> best.numbers[0], best.scores[0]
    (array([11, 14]), array([3., 3.]))
    """

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.scores = [np.zeros(0, dtype="float32")] * queries
        self.numbers = [np.zeros(0, dtype="int64")] * queries

    def add(self, scores: np.ndarray, numbers: np.ndarray) -> None:
        """Offer a block.

        Parameters
        ----------
        scores
            ``(queries, documents)``.
        numbers
            ``(documents,)``, what to call them; later than those of earlier blocks.
        """
        for query, row in enumerate(scores):
            kept = self.scores[query]
            if len(kept) == self.k:
                # Only better ones matter: of equal scores the earlier document stays.
                candidates = np.flatnonzero(row > kept[-1])
                if not len(candidates):
                    continue
            else:
                candidates = np.arange(len(row))
            candidates = candidates[_best(row[candidates], self.k)]
            merged = np.concatenate([kept, row[candidates]])
            order = np.argsort(-merged, kind="stable")[: self.k]
            self.scores[query] = merged[order]
            self.numbers[query] = np.concatenate([self.numbers[query], numbers[candidates]])[order]


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the positions, ascending, of the k highest scores; of equal ones at the edge, the first."""
    if len(scores) <= k:
        return np.arange(len(scores))
    edge = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > edge)
    return np.sort(np.concatenate([above, np.flatnonzero(scores == edge)[: k - len(above)]]))
