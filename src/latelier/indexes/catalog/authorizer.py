"""The authorizer of a connection: SQLite calls it for every table, column and function that a statement uses.

It is a second line of defence behind the grammar of filters, which produces only what the authorizer allows. SQLite
calls it when a statement is compiled, but not when `sqlite3` runs a compiled statement from its cache.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager

__all__ = ["Authorizer"]

_TABLE_FUNCTIONS = ("json_each", "json_tree")
_TABLES = {"document", "content", *_TABLE_FUNCTIONS}
# SQLite reports these operators as functions.
_OPERATORS = ("->", "->>")


class Authorizer:
    """A callback for `sqlite3.Connection.set_authorizer`."""

    def __init__(self) -> None:
        self._functions: Collection[str] | None = None

    @contextmanager
    def restricted_to(self, functions: Collection[str]) -> Iterator[None]:
        """Deny everything except reading documents and calling `functions`, within a ``with`` block."""
        self._functions = functions
        try:
            yield
        finally:
            self._functions = None

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Return ``SQLITE_OK`` or ``SQLITE_DENY``; what `first` and `second` name depends on `action`."""
        allowed = (
            self._functions is None
            or action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and first in _TABLES)
            or (
                action == sqlite3.SQLITE_FUNCTION
                and str(second).lower() in (*self._functions, *_OPERATORS, *_TABLE_FUNCTIONS)
            )
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
