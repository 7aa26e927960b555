"""The k best documents of every query, updated while documents are scored block by block.

Blocks are scored in the order of the documents and sorting is stable, so documents of equal score keep that order.
"""

from __future__ import annotations

import numpy as np

__all__ = ["TopK"]


class TopK:
    """The k best documents of each query so far.

    Parameters
    ----------
    queries
        Number of queries.
    k
        Number of documents to keep for each query.

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
        """Merge the scores of a block of documents.

        Parameters
        ----------
        scores
            ``(queries, documents)``.
        numbers
            ``(documents,)`` int64: the documents' numbers. Among equal scores, those added first stay first.
        """
        # NaN in the embeddings gives NaN scores, which cannot be sorted: they are replaced by minus infinity.
        for query, row in enumerate(np.fmax(scores, np.float32(-np.inf))):
            kept = self.scores[query]
            if len(kept) == self.k:
                # Only higher scores matter: of equal scores the earlier document stays.
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
    """Return the positions of the k highest scores, ascending; among scores equal to the k-th, the first are taken."""
    if len(scores) <= k:
        return np.arange(len(scores))
    edge = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > edge)
    return np.sort(np.concatenate([above, np.flatnonzero(scores == edge)[: k - len(above)]]))
