"""`Settings`: what users and tools keep with an index, such as the name of the model that filled it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.rows import insert_rows
from latelier.indexes.catalog.statements import read_user_setting, user_setting_names
from latelier.indexes.values import encode_setting, is_unicode

__all__ = ["Settings"]


class Settings(MutableMapping[str, Any]):
    """JSON values by name, read from the catalog at each access and written to it at each assignment.

    Parameters
    ----------
    ask
        Asks the catalog a question, given as a function of the connection and other arguments.
    change
        Begins a transaction that writes; its connection is called for.

    Examples
    --------
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> index.settings["model"] = {"name": "my-colbert", "max_length": 350}
    >>> index.settings["model"]["name"], index.settings.get("language"), len(index.settings)
    ('my-colbert', None, 1)
    """

    def __init__(
        self, ask: Callable[..., Any], change: Callable[[], AbstractContextManager[Callable[[], Connection]]]
    ) -> None:
        self._ask, self._change = ask, change

    def __getitem__(self, name: str) -> Any:
        _refuse_other_names(name)
        return self._ask(read_user_setting, name)

    def __setitem__(self, name: str, value: Any) -> None:
        row = encode_setting(name, value)
        with self._change() as begin:
            insert_rows(begin(), "user_setting", [row])

    def __delitem__(self, name: str) -> None:
        _refuse_other_names(name)
        with self._change() as begin:
            if not begin().execute("DELETE FROM user_setting WHERE name = ?", (name,)).rowcount:
                raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ask(user_setting_names))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Settings({dict(self)})"


def _refuse_other_names(name: object) -> None:
    """Raise the error of a name that is not there for one that cannot be."""
    if not isinstance(name, str) or not is_unicode(name):
        raise KeyError(name)
