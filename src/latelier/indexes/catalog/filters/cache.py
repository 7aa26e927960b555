"""Cache of the documents that filters have selected from one commit, for further searches with the same filter.

A commit never changes, so a filter selects the same documents from it each time. Only filters that call date functions
may not; their selections are not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from latelier.indexes.catalog import forks
from latelier.indexes.catalog.filters.sql import Filter

__all__ = ["SelectionCache", "selection_key"]

# Capacity of the cache of one commit, in bytes, and the size of an entry in addition to its numbers.
_CAPACITY, _OVERHEAD = 1 << 24, 1 << 10
# Types of parameters that can be part of a key.
_KEY_TYPES = frozenset({str, bytes, int, float, bool, type(None)})


def selection_key(filter: Filter, values: tuple[Any, ...]) -> Hashable | None:
    """Return the key of a filter, equal for filters that differ only in spelling; ``None`` if it must not be cached.

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
    types = tuple(map(type, values))  # part of the key: 1, 1.0 and True are equal in Python, but not in SQL
    return (filter.normalized, types, values) if _KEY_TYPES.issuperset(types) else None


class SelectionCache:
    """A least-recently-used cache of the numbers of selected documents.

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
        """Return the cached numbers of a key; if there are none, select and cache them.

        Parameters
        ----------
        key
            From `selection_key`.
        select
            Evaluates the filter. No lock is held during the call, so several threads may evaluate one filter at once.
        """
        with self._lock.current:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = select()
        if found.nbytes + _OVERHEAD <= _CAPACITY:
            self._keep(key, found)
        return found

    def _keep(self, key: Hashable, found: np.ndarray) -> None:
        with self._lock.current:
            if key in self._kept:  # another thread has selected the same meanwhile
                return
            self._kept[key] = found
            self._bytes += found.nbytes + _OVERHEAD
            while self._bytes > _CAPACITY:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
