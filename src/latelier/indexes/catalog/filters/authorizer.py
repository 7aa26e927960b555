"""SQLite's authorizer for filters, which SQLite asks about every table, column and function of a statement.

The grammar of filters writes nothing that the authorizer denies: it is the second line of defence, should the grammar
have a hole. SQLite asks when it compiles a statement, not when it runs one that `sqlite3` has compiled before.
"""

from __future__ import annotations

import sqlite3
from types import TracebackType

from latelier.indexes.catalog.filters.functions import FUNCTIONS

__all__ = ["Authorizer"]

_LISTS = ("json_each", "json_tree")
_TABLES = {"document", "content", *_LISTS}
_CALLABLE = frozenset(FUNCTIONS) | {"->", "->>", *_LISTS}


class Authorizer:
    """A callback for `sqlite3.Connection.set_authorizer`; within its ``with`` block only documents can be read."""

    def __init__(self) -> None:
        self._restricted = False

    def __enter__(self) -> None:
        self._restricted = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restricted = False

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Return whether an action is allowed; what `first` and `second` name depends on the action."""
        allowed = (
            not self._restricted
            or action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and first in _TABLES)
            or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _CALLABLE)
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
