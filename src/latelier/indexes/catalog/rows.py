"""Rows of the catalog, each stored with a checksum of what it holds, which every reader compares.

SQLite notices when a page's structure is damaged, but not when a bit of a text, a number or an id has changed. The
first format of the catalog had no checksums: its rows are one column shorter, and are taken as they are.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from latelier.errors import CorruptedIndexError

__all__ = ["COLUMNS", "has_checksums", "insert_rows", "row_checksum", "select_rows", "unchecked", "whole_row"]

# What a row's checksum covers. Those of `document` have columns of their own and are read and written in `catalog`.
COLUMNS = {
    "setting": ("name", "value"),
    "user_setting": ("name", "value"),
    "segment": ("name", "first", "last", "documents", "removed", "tokens", "files"),
    "tombstone": ("segment", "number"),
    "field": ("name", "spelling", "column"),
}
# By which 1 and "1" differ; bytes, which we never write, are among the others.
_TYPES = {str: "s", int: "i", float: "f", type(None): "n"}
# The format of the catalog from which on rows have a checksum.
_FIRST_CHECKED_FORMAT = 2


def row_checksum(table: str, values: Sequence[Any]) -> int:
    """Return the CRC-32 of a row's values and of the name of its table.

    Examples
    --------
    >>> row_checksum("setting", ("dim", "128")) == row_checksum("setting", ("dim", "129"))
    False
    >>> row_checksum("document", (1, "1")) == row_checksum("document", (1, 1))
    False
    """
    # The same on every system and version of Python, which cannot be said of the repr of a text.
    return zlib.crc32("\x1f".join([table, *[f"{_TYPES.get(type(value), 'x')}{value}" for value in values]]).encode())


def has_checksums(connection: sqlite3.Connection) -> bool:
    """Whether the catalog's format gives each row a checksum."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0]) >= _FIRST_CHECKED_FORMAT


def insert_rows(connection: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    """Insert rows of one of the tables in `COLUMNS`, or put them in the place of those with the same key."""
    count = len(COLUMNS[table])
    if has_checksums(connection):
        count += 1
        rows = ((*row, row_checksum(table, row)) for row in rows)
    connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * count)})", rows)


def select_rows(
    connection: sqlite3.Connection, table: str, tail: str = "", parameters: Sequence[Any] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of one of the tables in `COLUMNS`.

    Parameters
    ----------
    connection
        In a transaction.
    table
        Its name.
    tail
        The end of the statement: ``"WHERE name = ? ORDER BY first"``.
    parameters
        The values of its ``?``.

    Raises
    ------
    CorruptedIndexError
        If a row is not the one that was written.
    """
    count = len(COLUMNS[table])
    for row in connection.execute(f"SELECT * FROM {table} {tail}", parameters):
        yield whole_row(table, row[:count], row[count:])


def whole_row(table: str, values: tuple[Any, ...], checksum: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of a row that has no checksum, or the right one.

    Raises
    ------
    CorruptedIndexError
        If the checksum differs.
    """
    if not checksum or checksum[0] == row_checksum(table, values):
        return values
    raise _damaged_row(table, f"{values[0]!r:.60}")


def _damaged_row(table: str, which: str) -> CorruptedIndexError:
    """Return the error for a row that is not the one that was written."""
    return CorruptedIndexError(
        f"the catalog of this index is damaged: the row {which} of its table {table!r} is not what was written. "
        "verify() lists what is damaged; put catalog.sqlite back from a copy or build the index anew."
    )


def unchecked(table: str, row: Sequence[Any]) -> bool:
    """Whether a row's last value is not the checksum of the others."""
    return bool(row[-1] != row_checksum(table, row[:-1]))
