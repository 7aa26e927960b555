"""The authorizer of a connection: SQLite calls it for every table, column and function that a statement uses.

It is a second line of defence behind the grammar of filters, which produces only what the authorizer allows. SQLite
calls it when a statement is compiled, but not when `sqlite3` runs a compiled statement from its cache.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from types import TracebackType

__all__ = ["Authorizer"]

_TABLE_FUNCTIONS = ("json_each", "json_tree")
_TABLES = {"document", "content", *_TABLE_FUNCTIONS}
# SQLite reports these operators as functions.
_OPERATORS = ("->", "->>")


class Authorizer:
    """A callback for `sqlite3.Connection.set_authorizer`.

    Within ``with authorizer.restricted_to(functions):``, statements can only read documents and call `functions`.
    """

    def __init__(self) -> None:
        self._restricted = False
        self._functions: Collection[str] = ()

    def restricted_to(self, functions: Collection[str]) -> Authorizer:
        """Return this object, as a context that denies everything except reading documents and calling `functions`."""
        self._functions = functions
        return self

    def __enter__(self) -> None:
        self._restricted = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restricted = False

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Return ``SQLITE_OK`` or ``SQLITE_DENY``; what `first` and `second` name depends on `action`."""
        allowed = (
            not self._restricted
            or action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and first in _TABLES)
            or (action == sqlite3.SQLITE_FUNCTION and self._is_callable(str(second).lower()))
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _is_callable(self, name: str) -> bool:
        return name in self._functions or name in _OPERATORS or name in _TABLE_FUNCTIONS
