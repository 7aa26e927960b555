"""The catalog of an index: its tables, its settings, and the rows of its segments.

Every row has a ``checksum``, in ``document`` the fourth column and elsewhere the last one.

``setting``
    The configuration as JSON values; ``uid``, a random name of the index; and
    the counters of the storage, of which ``generation`` changes with every commit.
``user_setting``
    The values that users and tools store in an index, such as the name of the model that encoded it.
``segment``
    The segments and their files. A segment holds the row ids ``first`` to ``last``; these ranges do not overlap. The
    order of the row ids is the order of insertion. ``rows`` counts all of them, ``removed`` those that were removed
    since, and ``documents`` the documents that are left. ``words`` names the folder and the files with the words of
    their texts, see `latelier.indexes.store.postings`; it is null where there are none.
``tombstone``
    Row ids of removed documents that are still in a segment.
``document``
    One row per document: its ``number``, its id (of no declared type, so that 1 and "1" differ), how many passages it
    has, and one column per metadata key that filters can name. What a segment holds of a whole document has its number
    as its row id; n passages have the n row ids from the number on, all in one segment. No number is used twice: each
    version of a document that was ever stored has another one.
``content``
    Text and exact metadata of each document. They are kept out of ``document``, since every filter scans it, and small
    rows are faster.
``passage``
    The range of each passage in the text of its document, what stands before it, and metadata of its own, by row id.
``field``
    The column of ``document`` that holds each metadata key.
``source``, ``file``, ``origin``
    Where documents came from, see `latelier.indexes.store.sources`.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

from latelier.errors import IndexFormatError
from latelier.indexes.store.integrity import (
    COLUMNS,
    check_counters,
    check_row,
    check_segment_row,
    check_tables,
    damaged,
    decode_json,
    row_checksum,
)
from latelier.utils.files import CATALOG
from latelier.utils.values import as_key, check_row_size, encode_json

FORMAT_VERSION = 1
APPLICATION_ID = int.from_bytes(b"LATL", "big")
_TABLES = (
    "CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE user_setting (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE segment (name TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, "
    "rows INTEGER NOT NULL, documents INTEGER NOT NULL, removed INTEGER NOT NULL, tokens INTEGER NOT NULL, "
    "files TEXT NOT NULL, words TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE TABLE tombstone (segment TEXT, number INTEGER, checksum INTEGER NOT NULL, PRIMARY KEY (segment, number)) "
    "WITHOUT ROWID",
    "CREATE TABLE document (number INTEGER PRIMARY KEY, id NOT NULL UNIQUE, passages INTEGER NOT NULL, "
    "checksum INTEGER NOT NULL)",
    "CREATE TABLE content (number INTEGER PRIMARY KEY, metadata TEXT NOT NULL, text TEXT, checksum INTEGER NOT NULL)",
    "CREATE TABLE passage (number INTEGER PRIMARY KEY, start INTEGER NOT NULL, stop INTEGER NOT NULL, "
    "title TEXT NOT NULL, metadata TEXT, checksum INTEGER NOT NULL)",
    "CREATE TABLE field (name TEXT PRIMARY KEY, spelling TEXT NOT NULL, column TEXT NOT NULL UNIQUE, "
    "checksum INTEGER NOT NULL)",
    "CREATE TABLE source (key TEXT PRIMARY KEY, root TEXT NOT NULL, system TEXT NOT NULL, options TEXT NOT NULL, "
    "checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE file (source TEXT, name TEXT, size INTEGER NOT NULL, modified INTEGER NOT NULL, changed INTEGER NOT "
    "NULL, inode INTEGER NOT NULL, hash TEXT NOT NULL, options TEXT NOT NULL, documents INTEGER NOT NULL, seen INTEGER "
    "NOT NULL, place TEXT NOT NULL, state TEXT NOT NULL, skipped TEXT NOT NULL, checksum INTEGER NOT NULL, "
    "PRIMARY KEY (source, name)) WITHOUT ROWID",
    "CREATE TABLE origin (number INTEGER PRIMARY KEY, source TEXT NOT NULL, file TEXT NOT NULL, place TEXT NOT NULL, "
    "hash TEXT NOT NULL, missing INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE INDEX origin_of_file ON origin (source, file, missing)",
)
# Deeper ones could not be read where Python's stack is deep already.
_SETTING_LEVELS = 400
# The row of ``setting`` that names the ANN data; the name is part of the format.
_ANN_DATA = "derived"
# How the names of settings begin that are too large to be read with each commit.
LARGE = "codebook"


# The configuration and the counters.


def create(connection: sqlite3.Connection, settings: dict[str, Any]) -> dict[str, Any]:
    """Make the tables, within a transaction of the caller; return the whole configuration and the counters."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    written = {"uid": secrets.token_hex(16), "generation": 0, "next_number": 0, "dim": None, **settings}
    write_settings(connection, **written)
    return written


def read_configuration(connection: sqlite3.Connection, where: str) -> dict[str, Any] | None:
    """Check the catalog's format, tables and counters; return its configuration, ``None`` if it is still empty.

    Raises `IndexFormatError` if the file was made by another program or by a newer version; raises
    `CorruptedIndexError` if the tables or the configuration are damaged.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not application and not tables:
        return None
    if application != APPLICATION_ID:
        raise IndexFormatError(f"{CATALOG} in {where} is not the catalog of an index; choose another folder.")
    if version > FORMAT_VERSION:
        raise IndexFormatError(
            f"the index in {where} has format version {version}, but this version of latelier reads formats up to "
            f"{FORMAT_VERSION}; upgrade with: pip install --upgrade latelier"
        )
    check_catalog(connection)
    return read_settings(connection)


def check_catalog(connection: sqlite3.Connection) -> None:
    """Check that the catalog has the tables of its format and nothing else."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT_VERSION:
        raise damaged(f"its format version is {version}")
    check_tables(connection, _TABLES)


def read_settings(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the configuration and the counters, without the settings that are large."""
    settings = {}
    for name, value in read_rows(connection, "setting", f"WHERE name NOT GLOB '{LARGE}*'"):
        settings[name] = decode_json(value, f"setting {name!r}")
    check_counters(settings)
    return settings


def read_setting(connection: sqlite3.Connection, name: str) -> Any:
    """Return one setting, which may be large; ``None`` if there is none of this name."""
    rows = list(read_rows(connection, "setting", "WHERE name = ?", (name,)))
    if rows:
        return decode_json(rows[0][1], f"setting {name!r}")
    return None


def read_stamp(connection: sqlite3.Connection) -> Any:
    """Return a value that differs between commits; this is faster than `read_settings`."""
    return connection.execute("SELECT * FROM setting WHERE name = 'generation'").fetchone()


def write_settings(connection: sqlite3.Connection, **values: Any) -> None:
    """Set values of the configuration, or counters."""
    insert_rows(connection, "setting", zip(values, map(json.dumps, values.values()), strict=True))


# The settings of users.


class UserSettings(MutableMapping[str, Any]):
    """JSON values by name, read from the catalog at each access and written to it at each assignment."""

    def __init__(
        self,
        read: Callable[..., Any],
        write: Callable[[], AbstractContextManager[Callable[[], sqlite3.Connection]]],
    ) -> None:
        self._read = read
        self._write = write

    def __getitem__(self, name: str) -> Any:
        rows = self._read(read_rows, "user_setting", "WHERE name = ?", (name,))
        if not rows or rows[0][0] != name:  # SQLite finds "1" for 1
            raise KeyError(name)
        return decode_json(rows[0][1], f"user setting {name!r}")

    def __setitem__(self, name: str, value: Any) -> None:
        what = f"the setting {name!r}"
        check_row_size(what, (name, value))
        row = (as_key(name, what), encode_json(value, what, levels=_SETTING_LEVELS))
        check_row_size(what, row)
        with self._write() as begin:
            insert_rows(begin(), "user_setting", [row])

    def __delitem__(self, name: str) -> None:
        with self._write() as begin:
            if not begin().execute("DELETE FROM user_setting WHERE name = ?", (name,)).rowcount:
                raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, _ in self._read(read_rows, "user_setting", "ORDER BY name")])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"UserSettings({dict(self)})"


# Segments and ANN data.

# The size, shape, dtype and checksum of each file, by file name.
Files: TypeAlias = "dict[str, dict[str, Any]]"


class FolderRow(NamedTuple):
    """A folder of arrays beside those of segments: its name and its files."""

    name: str
    files: Files


class SegmentRow(NamedTuple):
    """The row of a segment; `rows` and `tokens` include what was `removed` since, and `documents` does not."""

    name: str
    first: int
    last: int
    rows: int
    documents: int
    removed: int
    tokens: int
    files: Files
    words: FolderRow | None = None


def read_segments(connection: sqlite3.Connection) -> list[SegmentRow]:
    """Return all segments in the order of insertion."""
    rows: list[SegmentRow] = []
    for values in read_rows(connection, "segment", "ORDER BY first"):
        row = SegmentRow(*values)
        words = _folder_row(decode_json(values[-1], "list of words"), "list of words")
        row = row._replace(files=decode_json(row.files, "list of files"), words=words)
        check_segment_row(row, rows[-1].last + 1 if rows else 0)
        rows.append(row)
    return rows


def write_segment(connection: sqlite3.Connection, row: SegmentRow) -> None:
    """Insert a segment, or replace the row of the same name."""
    insert_rows(connection, "segment", [(*row[:-2], json.dumps(row.files), json.dumps(row.words))])


def delete_segment(connection: sqlite3.Connection, name: str) -> None:
    """Delete the row of a segment and its tombstones."""
    connection.execute("DELETE FROM segment WHERE name = ?", (name,))
    connection.execute("DELETE FROM tombstone WHERE segment = ?", (name,))


def catalog_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of all tables."""
    return connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0]


def tombstones(connection: sqlite3.Connection, row: SegmentRow) -> list[int]:
    """Return the row ids of what was removed of a segment, ascending."""
    row_ids = [n for _, n in read_rows(connection, "tombstone", "WHERE segment = ? ORDER BY number", (row.name,))]
    fits = set(map(type, row_ids)) <= {int} and len(row_ids) == row.removed
    if not fits or (row_ids and not row.first <= row_ids[0] <= row_ids[-1] <= row.last):
        raise damaged(f"its segment {row.name!r:.60} counts {row.removed} removed rows, but lists others")
    return row_ids


def read_ann_data(connection: sqlite3.Connection) -> FolderRow | None:
    """Return the row of the ANN data; ``None`` if the index has none."""
    return _folder_row(read_settings(connection).get(_ANN_DATA), f"setting {_ANN_DATA!r}")


def _folder_row(found: Any, what: str) -> FolderRow | None:
    """Return a folder and its files from what is stored of them; `what` names it in an error."""
    if found is None:
        return None
    if not (isinstance(found, list) and [type(part) for part in found] == [str, dict]):
        raise damaged(f"its {what} does not name a folder and its files")
    return FolderRow(*found)


def write_ann_data(connection: sqlite3.Connection, row: FolderRow | None) -> None:
    """Store the row of the ANN data; ``None`` deletes it."""
    if row is None:
        connection.execute("DELETE FROM setting WHERE name = ?", (_ANN_DATA,))
    else:
        write_settings(connection, **{_ANN_DATA: row})


def referenced_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of all segments and ANN data in the catalog."""
    segments = read_segments(connection)
    folders = [*segments, *(row.words for row in segments), read_ann_data(connection)]
    return {row.name for row in folders if row is not None}


# Rows with checksums.


def insert_rows(connection: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    """Insert rows into a table of `COLUMNS`, replacing rows with the same primary key."""
    marks = ", ".join("?" * (len(COLUMNS[table]) + 1))
    checked = ((*row, row_checksum(table, row)) for row in rows)
    connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", checked)


def read_rows(
    connection: sqlite3.Connection, table: str, tail: str = "", parameters: Sequence[Any] = ()
) -> list[Sequence[Any]]:
    """Return rows of a table of `COLUMNS` that match their checksums; `tail` is the end of the statement."""
    return [check_row(table, row) for row in connection.execute(f"SELECT * FROM {table} {tail}", parameters)]
