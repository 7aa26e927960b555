"""`Ranking`: some documents by number with their scores, best first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Ranking"]


class Ranking(NamedTuple):
    """Documents of one query, best first; those with equal scores by number.

    Attributes
    ----------
    numbers
        ``(documents,)`` int64: the documents' numbers in the catalog.
    scores
        ``(documents,)`` float; higher is better.
    """

    numbers: np.ndarray
    scores: np.ndarray

    @classmethod
    def sorted(cls, numbers: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
        """Return the `k` best of some documents.

        Examples
        --------
        >>> Ranking.sorted(np.array([7, 3, 5]), np.array([1.0, 1.0, 2.0]), k=2).numbers
        array([5, 3])
        """
        order = np.lexsort((numbers, -scores))[:k]
        return cls(numbers[order], scores[order])
