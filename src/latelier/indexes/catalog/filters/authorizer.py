"""SQLite's authorizer for filters: it is asked about every table, column and function that a statement touches.

The grammar of filters writes nothing that the authorizer refuses: this is the second line, should the grammar have a
hole. SQLite asks when it compiles a statement, not when it runs one that `sqlite3` has compiled before.
"""

from __future__ import annotations

import sqlite3
from types import TracebackType

from latelier.indexes.catalog.filters.functions import FUNCTIONS

__all__ = ["Authorizer"]

_LISTS = ("json_each", "json_tree")
_TABLES = {"document", "content", *_LISTS}
_CALLED = frozenset(FUNCTIONS) | {"->", "->>", *_LISTS}


class Authorizer:
    """An authorizer for `sqlite3.Connection.set_authorizer`; closed within its own ``with`` block."""

    def __init__(self) -> None:
        self._closed = False

    def __enter__(self) -> None:
        self._closed = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = False

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Answer SQLite; what `first` and `second` mean depends on the action."""
        allowed = (
            not self._closed
            or action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and first in _TABLES)
            or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _CALLED)
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
