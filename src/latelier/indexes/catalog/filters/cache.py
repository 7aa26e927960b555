"""What filters have selected from one commit, kept for searches that ask again: with a tenant's or a shelf's name.

A commit never changes, so neither does what a filter selects from it, unless the filter asks for the time: those that
call a function of dates are evaluated each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from latelier.indexes.catalog import forks
from latelier.indexes.catalog.filters.query import Filter

__all__ = ["Selections", "as_question"]

# All that is kept for one commit, and what a selection takes beside its numbers.
_BYTES, _OVERHEAD = 1 << 24, 1 << 10
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})


def as_question(filter: Filter, values: tuple[Any, ...]) -> Hashable | None:
    """Return what the selection of a filter depends on; ``None`` where it may depend on more.

    Parameters
    ----------
    filter, values
        From `latelier.indexes.catalog.filters.evaluation.read_filter`.

    Examples
    --------
    >>> from latelier.indexes.catalog.filters.evaluation import read_filter
    >>> as_question(*read_filter("year > ?", [2020])) == as_question(*read_filter("year>:y", {"y": 2020}))
    True
    >>> as_question(*read_filter("date < date('now')", ())) is None
    True
    """
    if filter.asks_time:
        return None
    kinds = tuple(map(type, values))
    # 1, 1.0 and True are equal, but SQL can tell some of them apart.
    return (filter.question, kinds, values) if _PLAIN.issuperset(kinds) else None


class Selections:
    """Numbers of documents by the question that selected them; those asked for longest ago are forgotten first.

    Examples
    --------
    >>> selections = Selections()
    >>> selections.find("cheap", lambda: np.array([1, 2]))
    array([1, 2])
    >>> selections.find("cheap", lambda: np.array([3]))
    array([1, 2])
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0
        self._lock = forks.Lock()

    def find(self, question: Hashable, select: Callable[[], np.ndarray]) -> np.ndarray:
        """Return what is kept for a question, or else select it.

        Parameters
        ----------
        question
            What the selection depends on.
        select
            Called without a lock, at the worst by several threads.
        """
        with self._lock.current:
            found = self._kept.get(question)
            if found is not None:
                self._kept.move_to_end(question)
                return found
        found = select()
        if found.nbytes + _OVERHEAD <= _BYTES:
            self._keep(question, found)
        return found

    def _keep(self, question: Hashable, found: np.ndarray) -> None:
        with self._lock.current:
            if question in self._kept:  # another thread was quicker
                return
            self._kept[question] = found
            self._bytes += found.nbytes + _OVERHEAD
            while self._bytes > _BYTES:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
