"""The documents that filters have selected from one commit, kept for further searches with the same filter.

A commit never changes, so a filter selects the same documents from it each time, unless it calls a function of dates:
such filters are not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from latelier.indexes.catalog import forks
from latelier.indexes.catalog.filters.sql import Filter

__all__ = ["SelectionCache", "selection_key"]

# The most bytes kept for one commit, and the bytes that a selection needs beside its numbers.
_BYTES, _OVERHEAD = 1 << 24, 1 << 10
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})


def selection_key(filter: Filter, values: tuple[Any, ...]) -> Hashable | None:
    """Return a key that is equal for filters that select the same documents; ``None`` for a filter not to be kept.

    Parameters
    ----------
    filter, values
        From `latelier.indexes.catalog.filters.evaluation.read_filter`.

    Examples
    --------
    >>> from latelier.indexes.catalog.filters.evaluation import read_filter
    >>> key = selection_key(*read_filter("year > ?", [2020]))
    >>> key == selection_key(*read_filter("year>:y", {"y": 2020}))
    True
    >>> selection_key(*read_filter("date < date('now')", ())) is None
    True
    """
    if filter.depends_on_time:
        return None
    kinds = tuple(map(type, values))
    # 1, 1.0 and True are equal in Python, but not in SQL.
    return (filter.normalized, kinds, values) if _PLAIN.issuperset(kinds) else None


class SelectionCache:
    """Numbers of selected documents by key; the least recently used are dropped first.

    Examples
    --------
    >>> cache = SelectionCache()
    >>> cache.find("cheap", lambda: np.array([1, 2]))
    array([1, 2])
    >>> cache.find("cheap", lambda: np.array([3]))
    array([1, 2])
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0
        self._lock = forks.Lock()

    def find(self, key: Hashable, select: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the numbers kept for a key, or else select them.

        Parameters
        ----------
        key
            From `selection_key`.
        select
            Evaluates the filter; called without a lock, so several threads may call it at once.
        """
        with self._lock.current:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = select()
        if found.nbytes + _OVERHEAD <= _BYTES:
            self._keep(key, found)
        return found

    def _keep(self, key: Hashable, found: np.ndarray) -> None:
        with self._lock.current:
            if key in self._kept:  # another thread was quicker
                return
            self._kept[key] = found
            self._bytes += found.nbytes + _OVERHEAD
            while self._bytes > _BYTES:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
