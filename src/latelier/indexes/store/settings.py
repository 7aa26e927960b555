"""Settings of the index and rows of its segments.

``setting`` holds the configuration and the counters of the storage. ``user_setting`` holds the values that users and
tools store in an index, such as the name of the model that encoded it; ``index.settings`` is a `UserSettings`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

from latelier.indexes.store.checks import damaged, decode_json, insert_rows, read_rows
from latelier.indexes.values import as_key, encode_json, is_unicode

__all__ = [
    "AnnDataRow",
    "Files",
    "SegmentRow",
    "UserSettings",
    "count_documents",
    "delete_segments",
    "find_setting",
    "read_ann_data",
    "read_segments",
    "read_setting",
    "read_settings",
    "read_stamp",
    "tombstones",
    "write_ann_data",
    "write_segment",
    "write_setting",
    "write_tombstones",
]


def read_setting(connection: sqlite3.Connection, name: str) -> Any:
    """Return one value of the configuration, or a counter.

    Raises `CorruptedIndexError` if it is missing or damaged.
    """
    found = find_setting(connection, name)
    if found is None:
        raise damaged(f"its setting {name!r} is missing")
    return found[0]


def find_setting(connection: sqlite3.Connection, name: str) -> tuple[Any] | None:
    """Return one value of the configuration, or a counter, in a tuple; ``None`` if there is none of this name.

    Raises `CorruptedIndexError` if it is damaged.
    """
    for _, value in read_rows(connection, "setting", "WHERE name = ?", (name,)):
        return (decode_json(value, f"setting {name!r}"),)
    return None


def read_settings(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the whole configuration and the counters.

    Raises `CorruptedIndexError` if one is damaged.
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


# The size, shape, dtype and checksum of each file, by file name.
Files: TypeAlias = "dict[str, dict[str, Any]]"

# The row of ``setting`` that names the ANN data; the name is part of the format.
_ANN_DATA = "derived"


class SegmentRow(NamedTuple):
    """The row of a segment.

    `name`: name of its folder; `first`, `last`: the numbers of its first and last document; `documents`, `removed`:
    number of documents that it holds, and number of those that were removed since; `tokens`: number of tokens of all
    its documents, removed ones included; `files`: the size, shape, dtype and checksum of each of its files.
    """

    name: str
    first: int
    last: int
    documents: int
    removed: int
    tokens: int
    files: Files


class AnnDataRow(NamedTuple):
    """The row of an index's ANN data: arrays made from the documents, stored in a folder like those of a segment."""

    name: str
    files: Files


def read_segments(connection: sqlite3.Connection) -> list[SegmentRow]:
    """Return all segments in the order of insertion.

    Raises `CorruptedIndexError` if a row is damaged, or its values are impossible.
    """
    rows = []
    next_first = 0
    for values in read_rows(connection, "segment", "ORDER BY first"):
        row = SegmentRow(*values)
        if not (isinstance(row.name, str) and all(type(number) is int for number in row[1:6])):
            raise damaged(f"its segment {row.name!r:.60} has values of a wrong type")
        count = row.last - row.first + 1
        if not (next_first <= row.first and 0 <= row.removed < row.documents <= min(count, row.tokens)):
            raise damaged(f"its segment {row.name!r:.60} has impossible numbers or counts")
        if row.last >= 2**62 or not isinstance(files := decode_json(row.files, "list of files"), dict):
            raise damaged(f"its segment {row.name!r:.60} has no list of files")
        rows.append(row._replace(files=files))
        next_first = row.last + 1
    return rows


def write_segment(connection: sqlite3.Connection, row: SegmentRow) -> None:
    """Insert a segment, or replace the row of the same name."""
    insert_rows(connection, "segment", [(*row[:-1], json.dumps(row.files))])


def delete_segments(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Delete the rows of segments and their tombstones."""
    rows = [(name,) for name in names]
    connection.executemany("DELETE FROM segment WHERE name = ?", rows)
    connection.executemany("DELETE FROM tombstone WHERE segment = ?", rows)


def count_documents(connection: sqlite3.Connection) -> int:
    """Return the number of documents in the index."""
    return sum(row.documents - row.removed for row in read_segments(connection))


def tombstones(connection: sqlite3.Connection, row: SegmentRow) -> list[int]:
    """Return the numbers of a segment's removed documents, ascending.

    Raises `CorruptedIndexError` if their count differs from the segment's row, or a number is outside of the segment.
    """
    numbers = [n for _, n in read_rows(connection, "tombstone", "WHERE segment = ? ORDER BY number", (row.name,))]
    fits = all(type(number) is int and row.first <= number <= row.last for number in numbers)
    if not fits or len(numbers) != row.removed:
        raise damaged(f"its segment {row.name!r:.60} counts {row.removed} removed documents, but lists others")
    return numbers


def write_tombstones(connection: sqlite3.Connection, row: SegmentRow, numbers: Sequence[int]) -> SegmentRow:
    """Mark documents of a segment as removed, and return its new row."""
    insert_rows(connection, "tombstone", ((row.name, number) for number in numbers))
    row = row._replace(removed=row.removed + len(numbers))
    write_segment(connection, row)
    return row


def read_ann_data(connection: sqlite3.Connection) -> AnnDataRow | None:
    """Return the row of the ANN data; ``None`` if the index has none.

    Raises `CorruptedIndexError` if the row is damaged.
    """
    for _, value in read_rows(connection, "setting", "WHERE name = ?", (_ANN_DATA,)):
        row = decode_json(value, f"setting {_ANN_DATA!r}")
        if not (isinstance(row, list) and [type(part) for part in row] == [str, dict]):
            raise damaged(f"its setting {_ANN_DATA!r} does not name a folder and its files")
        return AnnDataRow(*row)
    return None


def write_ann_data(connection: sqlite3.Connection, row: AnnDataRow | None) -> None:
    """Store the row of the ANN data; ``None`` deletes it."""
    connection.execute("DELETE FROM setting WHERE name = ?", (_ANN_DATA,))
    if row is not None:
        write_setting(connection, _ANN_DATA, row)
