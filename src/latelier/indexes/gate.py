"""The gate that filters pass: SQLite asks it about every table, column and function that a statement touches.

The grammar of filters writes nothing that it refuses; it is there in case the grammar has a hole. Open, it lets
everything through. Closed, it lets through only reading the documents and functions that do nothing but compute: no
writing, no other database, no setting, no extension, no recursion.
"""

from __future__ import annotations

import sqlite3
from types import TracebackType

from latelier.indexes.filter_functions import FUNCTIONS

__all__ = ["Gate"]

_LISTS = ("json_each", "json_tree")
_TABLES = {"document", "content", *_LISTS}
_CALLED = frozenset(FUNCTIONS) | {"->", "->>", *_LISTS}


class Gate:
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
