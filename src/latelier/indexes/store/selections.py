"""The row ids that filters select from one commit, kept for the next search with the same filter."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from latelier.indexes.filter_sql import to_sql
from latelier.indexes.filters import Filter, Operation, walk

# Capacity in bytes, and the size of an entry in addition to its row ids.
_CAPACITY = 1 << 24
_OVERHEAD = 1 << 10
# Types of parameters that can be part of a key.
_KEY_TYPES = frozenset({str, bytes, int, float, bool, type(None)})
_TIME_FUNCTIONS = ("date(", "datetime(", "julianday(", "unixepoch(")


def selection_key(filter: Filter, values: tuple[Any, ...]) -> Hashable | None:
    """Return the key of a filter, equal for filters that differ only in spelling; None if it must not be cached."""
    normalized = _normalized(filter)
    types = tuple(map(type, values))  # part of the key: 1, 1.0 and True are equal in Python, but not in SQL
    if normalized is not None and _KEY_TYPES.issuperset(types):
        return (normalized, types, values)
    return None


@lru_cache(maxsize=64)
def _normalized(filter: Filter) -> str | None:
    """Return the SQL of a filter with the names of its fields; None if it may ask for the time."""
    if any(isinstance(node, Operation) and node.words[0].startswith(_TIME_FUNCTIONS) for node in walk(filter.tree)):
        return None
    return to_sql(filter.tree, lambda field: '"' + field.name.replace('"', '""') + '"')


class SelectionCache:
    """A least-recently-used cache of the row ids of selected documents."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0
        # Never waited for: in a forked child, nobody might release it.
        self._lock = threading.Lock()

    def find(self, key: Hashable, select: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the cached row ids of a key; if there are none, select and cache them."""
        found = self._kept.get(key)
        if found is None:
            found = select()
        if self._lock.acquire(blocking=False):
            try:
                self._keep(key, found)
            finally:
                self._lock.release()
        return found

    def _keep(self, key: Hashable, found: np.ndarray) -> None:
        if key in self._kept:
            self._kept.move_to_end(key)
        elif found.nbytes + _OVERHEAD <= _CAPACITY:
            self._kept[key] = found
            self._bytes += found.nbytes + _OVERHEAD
            while self._bytes > _CAPACITY:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
