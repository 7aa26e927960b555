"""What a connection may do: SQLite asks the authorizer about every table, column and function of a statement.

The grammar of filters writes nothing that the authorizer denies: it is the second line of defence, should the grammar
have a hole. SQLite asks when it compiles a statement, not when it runs one that `sqlite3` has compiled before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from types import TracebackType

__all__ = ["Authorizer"]

_LISTS = ("json_each", "json_tree")
_TABLES = {"document", "content", *_LISTS}
# To SQLite these are functions too.
_OPERATORS = ("->", "->>")


class Authorizer:
    """A callback for `sqlite3.Connection.set_authorizer`.

    Within ``with authorizer.restricted_to(functions):`` statements can only read documents and call these functions.
    """

    def __init__(self) -> None:
        self._restricted = False
        self._functions: Collection[str] = ()

    def restricted_to(self, functions: Collection[str]) -> Authorizer:
        """Return itself as a context in which all but reading documents with these functions is denied."""
        self._functions = functions
        return self

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
            or (action == sqlite3.SQLITE_FUNCTION and self._is_callable(str(second).lower()))
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _is_callable(self, name: str) -> bool:
        return name in self._functions or name in _OPERATORS or name in _LISTS
