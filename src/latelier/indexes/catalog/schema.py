"""The tables of the catalog, how they come into being, and how a folder that is not ours is told apart.

Every row has a ``checksum`` in its last column (see `latelier.indexes.catalog.rows`; in ``document`` it is the third),
which the first format had not.

``setting``
    The configuration as JSON values, ``uid``, a random name by which the index is told from others, and the counters
    of the storage: ``generation`` changes with every commit.
``user_setting``
    What users and tools keep with the index.
``segment``
    The segments and their files. Their numbers ``first`` to ``last`` do not overlap; ordered by them, the documents
    stand in the order of insertion.
``tombstone``
    Documents that are still in a segment but were removed.
``document``
    One row per document: its number, its id (of no declared type, so that 1 and "1" differ), and a column of each
    metadata key that filters can name.
``content``
    Text and exact metadata, apart from what filters read, because rows of small columns are quick to scan.
``field``
    Which column of ``document`` holds which metadata key.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latelier.errors import CorruptedIndexError, IndexFormatError
from latelier.indexes.catalog.rows import insert_rows, select_rows

__all__ = [
    "APPLICATION_ID",
    "CATALOG",
    "FORMAT_VERSION",
    "check_folder",
    "check_tables",
    "create",
    "create_tables",
    "damaged",
    "give_back_pages",
    "parse_json",
    "read_settings",
    "write_setting",
]

CATALOG = "catalog.sqlite"
FORMAT_VERSION = 2
APPLICATION_ID = int.from_bytes(b"LATL", "big")
# How SQLite ends a journal that names another one: https://www.sqlite.org/fileformat.html#the_rollback_journal
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
# Numbers per token; a catalog that names more is not believed.
_MOST_DIM = 1 << 20

_TABLES = (
    "CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE user_setting (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE segment (name TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, "
    "documents INTEGER NOT NULL, removed INTEGER NOT NULL, tokens INTEGER NOT NULL, files TEXT NOT NULL, "
    "checksum INTEGER NOT NULL)",
    "CREATE TABLE tombstone (segment TEXT, number INTEGER, checksum INTEGER NOT NULL, PRIMARY KEY (segment, number)) "
    "WITHOUT ROWID",
    "CREATE TABLE document (number INTEGER PRIMARY KEY, id NOT NULL UNIQUE, checksum INTEGER NOT NULL)",
    "CREATE TABLE content (number INTEGER PRIMARY KEY, metadata TEXT NOT NULL, text TEXT, checksum INTEGER NOT NULL)",
    "CREATE TABLE field (name TEXT PRIMARY KEY, spelling TEXT NOT NULL, column TEXT NOT NULL UNIQUE, "
    "checksum INTEGER NOT NULL)",
)
_FIRST_TABLES = tuple(statement.replace(", checksum INTEGER NOT NULL", "") for statement in _TABLES)
# Of `document`: its statement without the closing parenthesis, and the columns that metadata has added.
_FIELD_COLUMNS = re.compile(r"(CREATE TABLE document \(.*?)(?:, f\d+)*\)")


def create(connection: sqlite3.Connection, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Make the tables within the transaction of the caller; return the configuration as it was written."""
    create_tables(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    written = {"uid": secrets.token_hex(16), "generation": 0, "next_number": 0, "dim": None, **settings}
    for name, value in written.items():
        write_setting(connection, name, value)
    return written


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the empty tables of the newest format."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def read_settings(connection: sqlite3.Connection, where: str) -> dict[str, Any] | None:
    """Return the configuration, or ``None`` if the catalog is still empty.

    Raises
    ------
    IndexFormatError
        If the file is another program's, or a newer version's.
    CorruptedIndexError
        If a table or the configuration is not as it was written.
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
            f"the index in {where} has format version {version}, this version reads up to {FORMAT_VERSION}; upgrade "
            "with: pip install --upgrade latelier"
        )
    check_tables(connection)
    settings = {name: parse_json(value, f"setting {name!r}") for name, value in select_rows(connection, "setting")}
    for name in ("generation", "next_number"):
        if not _is_count(settings.get(name)):
            raise damaged(f"its {name} is {settings.get(name)!r}")
    dim = settings.get("dim")
    if dim is not None and not (_is_count(dim) and 1 <= dim <= _MOST_DIM):
        raise damaged(f"its dim is {dim!r}")
    return settings


def check_tables(connection: sqlite3.Connection) -> None:
    """Refuse a catalog with other tables than ours: a view or a trigger in it would change what we read and write.

    Raises
    ------
    CorruptedIndexError
        If it has one, or lacks one.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    expected = {1: _FIRST_TABLES, FORMAT_VERSION: _TABLES}.get(version)
    if expected is None:
        raise damaged(f"its format version is {version}")
    found = set()
    for kind, name, statement in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        if kind == "index" and statement is None:
            continue  # SQLite's own, of a primary key or a unique column
        whole = _FIELD_COLUMNS.fullmatch(str(statement))
        found.add(f"{whole[1]})" if whole else statement)
        if statement is None or kind != "table":
            raise damaged(f"it has the {kind} {name!r}, which no index has")
    if found != set(expected):
        raise damaged("its tables are not those of an index")


def write_setting(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Set one value of the configuration."""
    insert_rows(connection, "setting", [(name, json.dumps(value))])


def parse_json(value: object, what: str) -> Any:
    """Return a stored JSON value.

    Raises
    ------
    CorruptedIndexError
        If it is none.
    """
    try:
        return json.loads(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged(f"its {what} is no JSON") from error


def damaged(reason: str) -> CorruptedIndexError:
    """Return the error for a catalog that says what no index would."""
    return CorruptedIndexError(
        f"the catalog of this index is damaged: {reason}. Put {CATALOG} back from a copy or build the index anew."
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def check_folder(folder: Path, *, create: bool) -> None:
    """Refuse a folder that holds something else, or no index where one is expected.

    Raises
    ------
    IndexFormatError
        If there is no index in the folder, and none may be made there.
    """
    if (folder / CATALOG).is_file():
        _check_side_files(folder)
        return
    if folder.exists() and not folder.is_dir():
        raise IndexFormatError(f"{folder} is a file; an index is a folder.")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if found:
        shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise IndexFormatError(f"{folder} is not an index: it holds {shown}. Choose a new or an empty folder.")
    if not create:
        raise IndexFormatError(f"there is no index in {folder}; create one with indexes.Flat(path).")


def _check_side_files(folder: Path) -> None:
    """Refuse files that would make SQLite write, or delete, elsewhere, or wait for ever.

    That are links, pipes and the like, and a journal that names another one (a "super-journal"), which SQLite would
    delete.
    """
    for name in (CATALOG, *(f"{CATALOG}-{suffix}" for suffix in ("wal", "shm", "journal"))):
        file = folder / name
        if file.is_symlink():
            raise damaged(f"{file} is a link, which is not followed")
        if file.exists() and not file.is_file():
            raise damaged(f"{file} is no plain file")
    journal = folder / f"{CATALOG}-journal"
    if journal.is_file() and journal.read_bytes().endswith(_SUPER_JOURNAL):
        raise damaged(f"{journal} is not a journal that an index makes")


def give_back_pages(connection: sqlite3.Connection) -> None:
    """Shrink the file by the pages that nothing uses any more."""
    unused = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(unused):
        # Works page by page, and Python asks for the first one only.
        connection.execute("PRAGMA incremental_vacuum")
