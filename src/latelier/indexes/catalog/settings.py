"""The tables ``setting`` and ``user_setting``: JSON values by name, of the index itself and of its users.

``setting`` holds the configuration and the counters of the storage. ``user_setting`` holds the values that users and
tools store in an index, such as the name of the model that encoded it; ``index.settings`` is a `UserSettings`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

from latelier.indexes.catalog.rows import damaged, decode_json, insert_rows, read_rows
from latelier.indexes.catalog.values import as_key, encode_json, is_unicode

__all__ = ["UserSettings", "find_setting", "read_setting", "read_settings", "read_stamp", "write_setting"]


def read_setting(connection: sqlite3.Connection, name: str) -> Any:
    """Return one value of the configuration, or a counter.

    Raises
    ------
    CorruptedIndexError
        If it is missing or damaged.
    """
    found = find_setting(connection, name)
    if found is None:
        raise damaged(f"its setting {name!r} is missing")
    return found[0]


def find_setting(connection: sqlite3.Connection, name: str) -> tuple[Any] | None:
    """Return one value of the configuration, or a counter, in a tuple; ``None`` if there is none of this name.

    Raises
    ------
    CorruptedIndexError
        If it is damaged.
    """
    for _, value in read_rows(connection, "setting", "WHERE name = ?", (name,)):
        return (decode_json(value, f"setting {name!r}"),)
    return None


def read_settings(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the whole configuration and the counters.

    Raises
    ------
    CorruptedIndexError
        If one is damaged.
    """
    return {name: decode_json(value, f"setting {name!r}") for name, value in read_rows(connection, "setting")}


def read_stamp(connection: sqlite3.Connection) -> Any:
    """Return a value that differs between commits; this is faster than `read_setting` of the generation."""
    return connection.execute("SELECT * FROM setting WHERE name = 'generation'").fetchone()


def write_setting(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Set one value of the configuration, or a counter."""
    insert_rows(connection, "setting", [(name, json.dumps(value))])


class UserSettings(MutableMapping[str, Any]):
    """JSON values by name, read from the catalog at each access and written to it at each assignment.

    Parameters
    ----------
    read
        ``read(function, *arguments)`` returns ``function(connection, *arguments)`` for the latest commit.
    write
        Returns the context of a writing transaction, which yields a function that returns the connection.

    Examples
    --------
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> index.settings["model"] = {"name": "my-colbert", "max_length": 350}
    >>> index.settings["model"]["name"], index.settings.get("language")
    ('my-colbert', None)
    >>> len(index.settings)
    1
    """

    def __init__(
        self,
        read: Callable[..., Any],
        write: Callable[[], AbstractContextManager[Callable[[], sqlite3.Connection]]],
    ) -> None:
        self._read, self._write = read, write

    def __getitem__(self, name: str) -> Any:
        _check_name(name)
        return self._read(_read_user_setting, name)

    def __setitem__(self, name: str, value: Any) -> None:
        what = f"the setting {name!r}"
        row = (as_key(name, what), encode_json(value, what))
        with self._write() as begin:
            insert_rows(begin(), "user_setting", [row])

    def __delitem__(self, name: str) -> None:
        _check_name(name)
        with self._write() as begin:
            if not begin().execute("DELETE FROM user_setting WHERE name = ?", (name,)).rowcount:
                raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read(_user_setting_names))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"UserSettings({dict(self)})"


def _check_name(name: object) -> None:
    """Raise `KeyError` for a name that no setting can have."""
    if not isinstance(name, str) or not is_unicode(name):
        raise KeyError(name)


def _read_user_setting(connection: sqlite3.Connection, name: str) -> Any:
    for _, value in read_rows(connection, "user_setting", "WHERE name = ?", (name,)):
        return decode_json(value, f"user setting {name!r}")
    raise KeyError(name)


def _user_setting_names(connection: sqlite3.Connection) -> list[str]:
    """Return the names in alphabetical order."""
    names = [name for name, _ in read_rows(connection, "user_setting", "ORDER BY name")]
    if not all(isinstance(name, str) for name in names):
        raise damaged("it has settings whose names are not text")
    return names
