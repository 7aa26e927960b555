"""The tables of the catalog, how they come into being, and how a folder that is not ours is told apart.

``setting``
    The configuration as JSON values, and the counters of the storage: ``generation`` changes with every commit.
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
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latelier.errors import IndexFormatError

__all__ = [
    "APPLICATION_ID",
    "CATALOG",
    "FORMAT_VERSION",
    "check_folder",
    "create",
    "integrity",
    "read_settings",
    "write_setting",
]

CATALOG = "catalog.sqlite"
FORMAT_VERSION = 1
APPLICATION_ID = int.from_bytes(b"LATL", "big")

_TABLES = (
    "CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE user_setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE segment (name TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, "
    "documents INTEGER NOT NULL, removed INTEGER NOT NULL, tokens INTEGER NOT NULL, files TEXT NOT NULL)",
    "CREATE TABLE tombstone (segment TEXT, number INTEGER, PRIMARY KEY (segment, number)) WITHOUT ROWID",
    "CREATE TABLE document (number INTEGER PRIMARY KEY, id NOT NULL UNIQUE)",
    "CREATE TABLE content (number INTEGER PRIMARY KEY, metadata TEXT NOT NULL, text TEXT)",
    "CREATE TABLE field (name TEXT PRIMARY KEY, spelling TEXT NOT NULL, column TEXT NOT NULL UNIQUE)",
)


def create(connection: sqlite3.Connection, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Make the tables within the transaction of the caller; return the configuration as it was written."""
    for statement in _TABLES:
        connection.execute(statement)
    written = {"generation": 0, "next_number": 0, "dim": None, **settings}
    for name, value in written.items():
        write_setting(connection, name, value)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    return written


def read_settings(connection: sqlite3.Connection, where: str) -> dict[str, Any] | None:
    """Return the configuration, or ``None`` if the catalog is still empty.

    Raises
    ------
    IndexFormatError
        If the file is another program's, or a newer version's.
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
    return {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM setting")}


def write_setting(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Set one value of the configuration."""
    connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, json.dumps(value)))


def check_folder(folder: Path, *, create: bool) -> None:
    """Refuse a folder that holds something else, or no index where one is expected.

    Raises
    ------
    IndexFormatError
        If there is no index in the folder, and none may be made there.
    """
    if (folder / CATALOG).is_file():
        return
    if folder.exists() and not folder.is_dir():
        raise IndexFormatError(f"{folder} is a file; an index is a folder.")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if found:
        shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise IndexFormatError(f"{folder} is not an index: it holds {shown}. Choose a new or an empty folder.")
    if not create:
        raise IndexFormatError(f"there is no index in {folder}; create one with indexes.Flat(path).")


def integrity(connection: sqlite3.Connection) -> str:
    """Return what is wrong with the catalog, or nothing."""
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        return str(found)
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM document), (SELECT count(*) FROM content), "
        "(SELECT coalesce(sum(documents - removed), 0) FROM segment)"
    ).fetchone()
    return "" if len(set(counts)) == 1 else "its tables name {} documents, {} texts and {} in segments".format(*counts)


def give_back_pages(connection: sqlite3.Connection) -> None:
    """Shrink the file by the pages that nothing uses any more."""
    unused = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(unused):
        # Works page by page, and Python asks for the first one only.
        connection.execute("PRAGMA incremental_vacuum")
