"""Checksums of rows and what they say of damage.

SQLite notices when the structure of a page is damaged, but not when a bit of a text, a number or an id has changed.
Format 1 of the catalog had no checksums: its rows are one column shorter and are read without a check.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from latelier.errors import CorruptedIndexError

__all__ = [
    "CATALOG",
    "COLUMNS",
    "check_row",
    "column_checksums",
    "damaged",
    "decode_json",
    "has_checksums",
    "insert_columns",
    "insert_rows",
    "is_intact",
    "placeholders",
    "read_rows",
    "row_checksum",
    "spell",
]

CATALOG = "catalog.sqlite"

# The columns that a row's checksum covers. `document` and `content` are read and written in `document_rows`.
COLUMNS = {
    "setting": ("name", "value"),
    "user_setting": ("name", "value"),
    "segment": ("name", "first", "last", "documents", "removed", "tokens", "files"),
    "tombstone": ("segment", "number"),
    "field": ("name", "spelling", "column"),
}
# The type is part of the checksum, so that 1 and "1" differ. All other types, which no index stores, count as "x".
_TYPES = {str: "\x1fs", int: "\x1fi", float: "\x1ff", type(None): "\x1fn"}
_MOST_VALUES = 900  # in one statement; SQLite before 3.32 allows 999
# Rows have a checksum from this format of the catalog on.
_FIRST_FORMAT_WITH_CHECKSUMS = 2


def row_checksum(table: str, values: Sequence[Any]) -> int:
    """Return the CRC-32 of the name of a table and the values of a row."""
    return zlib.crc32("".join([table, *spell(values)]).encode())


def column_checksums(table: str, spelled: Sequence[Sequence[str]]) -> list[int]:
    """Return the `row_checksum` of each row of some columns, given as `spell` returns them."""
    lines = map("".join, zip(repeat(table), *spelled, strict=False))
    return list(map(zlib.crc32, map(str.encode, lines)))


def spell(values: Iterable[Any]) -> list[str]:
    """Return what a checksum covers of some values: their types, and what they are as a text."""
    # Not the repr of a text, since that depends on the system and the version of Python.
    return [_TYPES.get(type(value), "\x1fx") + str(value) for value in values]


def has_checksums(connection: sqlite3.Connection) -> bool:
    """Whether rows of this catalog's format have checksums."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0]) >= _FIRST_FORMAT_WITH_CHECKSUMS


def insert_rows(connection: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    """Insert rows into a table of `COLUMNS`, replacing rows with the same primary key."""
    count = len(COLUMNS[table])
    if has_checksums(connection):
        count += 1
        rows = ((*row, row_checksum(table, row)) for row in rows)
    connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({placeholders(count)})", rows)


def insert_columns(connection: sqlite3.Connection, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Insert new rows into a table, many in one statement, which takes half the time of a statement for each.

    `columns`: the names of its columns, and the values of each in the new rows.
    """
    width, values = len(columns), list(columns.values())
    row, count = f"({placeholders(width)})", max(1, _MOST_VALUES // width)
    statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {row}"
    several = len(values[0]) // count * count
    row_by_row: list[Any] = [None] * (several * width)
    for place, column in enumerate(values):
        row_by_row[place::width] = column[:several]
    full = f"{statement}{f', {row}' * (count - 1)}"
    for first in range(0, len(row_by_row), count * width):
        connection.execute(full, row_by_row[first : first + count * width])
    connection.executemany(statement, zip(*(column[several:] for column in values), strict=True))


def read_rows(
    connection: sqlite3.Connection, table: str, tail: str = "", parameters: Sequence[Any] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a table of `COLUMNS`, without their checksums.

    `tail`: the end of the statement: ``"WHERE name = ? ORDER BY first"``; `parameters`: the values of the ``?`` in
    `tail`; raises `CorruptedIndexError` if a row differs from its checksum.
    """
    count = len(COLUMNS[table])
    for row in connection.execute(f"SELECT * FROM {table} {tail}", parameters):
        yield check_row(table, row[:count], row[count:])


def check_row(table: str, values: tuple[Any, ...], checksum: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of a row if they match its checksum; `checksum` is empty in a format without checksums.

    Raises `CorruptedIndexError` if the checksum differs.
    """
    if not checksum or checksum[0] == row_checksum(table, values):
        return values
    raise CorruptedIndexError(
        f"the catalog of this index is damaged: the row {values[0]!r:.60} of its table {table!r} does not match its "
        f"checksum. verify() lists all damage; restore {CATALOG} from a backup or rebuild the index."
    )


def is_intact(table: str, row: Sequence[Any]) -> bool:
    """Whether the last value of a row is the checksum of the values before it."""
    return bool(row[-1] == row_checksum(table, row[:-1]))


def placeholders(count: int) -> str:
    """Return `count` question marks for a statement.

    Examples
    --------
    >>> placeholders(3)
    '?, ?, ?'
    """
    return ", ".join("?" * count)


def decode_json(value: object, what: str) -> Any:
    """Return the value of a column that holds JSON; `what` names the column in an error.

    Raises `CorruptedIndexError` if the column does not hold JSON.
    """
    try:
        return json.loads(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged(f"its {what} is not JSON") from error


def damaged(reason: str) -> CorruptedIndexError:
    """Return the error for a catalog with values that this library never writes."""
    return CorruptedIndexError(
        f"the catalog of this index is damaged: {reason}. Restore {CATALOG} from a backup or rebuild the index."
    )
