"""Tables of the catalog.

Every row ends with a ``checksum`` (in ``document`` it is the third column), which format 1 did not have.

``setting``
    The configuration as JSON values; ``uid``, a random name of the index; and the counters of the storage, of which
    ``generation`` changes with every commit.
``user_setting``
    The values of ``index.settings``.
``segment``
    The segments and their files. A segment holds documents with the numbers ``first`` to ``last``; these ranges do not
    overlap. The order of the numbers is the order of insertion.
``tombstone``
    Removed documents that are still in a segment.
``document``
    One row per document: its number, its id (of no declared type, so that 1 and "1" differ), and one column per
    metadata key that filters can name.
``content``
    Text and exact metadata. They are kept out of ``document``, since every filter scans it, and small rows are faster.
``field``
    The column of ``document`` that holds each metadata key.
``keyword``
    The keyword index of the texts, see `latelier.indexes.store.keywords`. An index may have none; formats before 3
    had none.

To add a table, add it to `_TABLES`, increase `FORMAT_VERSION`, keep the tables of the older format in
`_TABLES_OF_FORMAT`, and let `latelier.indexes.store.schema` create it.

Format 1 had no checksums, so its rows are copied unchecked. Damage is detected only if it happens after the upgrade.
Format 2 had no keyword index, and otherwise the same tables as format 3. The upgrade makes no keyword index.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Mapping
from typing import Any

from latelier.errors import IndexFormatError
from latelier.indexes.store.checks import CATALOG, COLUMNS, damaged, has_checksums, insert_rows
from latelier.indexes.store.keywords import FTS5_TABLES, TABLE_STATEMENTS
from latelier.indexes.store.rows import ROWS, known_fields, write_rows
from latelier.indexes.store.settings import read_settings, write_setting

__all__ = [
    "APPLICATION_ID",
    "FORMAT_VERSION",
    "check_tables",
    "create",
    "create_tables",
    "give_back_pages",
    "is_newest_format",
    "read_configuration",
    "upgrade",
]

FORMAT_VERSION = 3
APPLICATION_ID = int.from_bytes(b"LATL", "big")
# Maximum dimension of vectors; a catalog with a larger one is damaged.
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
_TABLES_OF_FORMAT = {
    1: tuple(statement.replace(", checksum INTEGER NOT NULL", "") for statement in _TABLES),
    2: _TABLES,
    FORMAT_VERSION: _TABLES,
}
_FIRST_FORMAT_WITH_KEYWORDS = 3
# The statement of `document`. The group leaves out the columns of metadata keys, and the closing parenthesis.
_FIELD_COLUMNS = re.compile(r"(CREATE TABLE document \(.*?)(?:, f\d+)*\)")


def is_newest_format(connection: sqlite3.Connection) -> bool:
    """Whether the catalog has the newest format."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0]) == FORMAT_VERSION


def create(connection: sqlite3.Connection, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Make the tables, within a transaction of the caller; return the whole configuration and the counters."""
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
    check_tables(connection)
    settings = read_settings(connection)
    for name in ("generation", "next_number"):
        if not _is_count(settings.get(name)):
            raise damaged(f"its {name} is {settings.get(name)!r}")
    dim = settings.get("dim")
    if dim is not None and not (_is_count(dim) and 1 <= dim <= _MOST_DIM):
        raise damaged(f"its dim is {dim!r}")
    return settings


def check_tables(connection: sqlite3.Connection) -> None:
    """Check that the catalog has the tables of its format and nothing else.

    In an untrusted index, a view or a trigger could change the data that is read and written. Raises
    `CorruptedIndexError` if a table is missing or different, or if there is anything else.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    expected = _TABLES_OF_FORMAT.get(version)
    if expected is None:
        raise damaged(f"its format version is {version}")
    found = set()
    for kind, name, statement in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        if kind == "index" and statement is None:
            continue  # made by SQLite for a primary key or a unique column
        whole = _FIELD_COLUMNS.fullmatch(str(statement))
        found.add(f"{whole[1]})" if whole else statement)
        if statement is None or kind != "table":
            raise damaged(f"it has the {kind} {name!r}, which no index has")
    keywords = found - set(expected)
    if not found.issuperset(expected) or (keywords and not _is_keyword_index(keywords, version)):
        raise damaged("its tables are not those of an index")


def give_back_pages(connection: sqlite3.Connection) -> None:
    """Give the unused pages of the file back to the file system."""
    unused = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(unused):
        # Each step of this statement frees one page, and execute() takes one step only.
        connection.execute("PRAGMA incremental_vacuum")


def _is_keyword_index(statements: set[str], version: int) -> bool:
    """Whether these are the tables of a keyword index, with one of the tokenizers."""
    others = statements - set(FTS5_TABLES.values())
    return (
        version >= _FIRST_FORMAT_WITH_KEYWORDS
        and len(statements) == len(FTS5_TABLES) + 1
        and len(others) == 1
        and others <= set(TABLE_STATEMENTS.values())
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def upgrade(connection: sqlite3.Connection) -> None:
    """Convert a catalog of format 1 or 2; do nothing if it has the newest format.

    A catalog of format 1 gets a checksum in every row, and a ``uid``. `connection`: a connection in a writing
    transaction.
    """
    if has_checksums(connection):
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        return
    columns = [field.column for field in known_fields(connection)]
    for table in (*COLUMNS, "document", "content"):
        connection.execute(f"ALTER TABLE {table} RENAME TO first_{table}")
    create_tables(connection)
    for table in COLUMNS:
        order = "ORDER BY rowid" if table == "field" else ""
        insert_rows(connection, table, connection.execute(f"SELECT * FROM first_{table} {order}"))
    for column in columns:
        connection.execute(f"ALTER TABLE document ADD COLUMN {column}")
    joined = "first_document JOIN first_content USING (number)"
    lost = "SELECT id FROM first_document WHERE number NOT IN (SELECT number FROM first_content) LIMIT 5"
    if ids := [id for (id,) in connection.execute(lost)]:
        named = ", ".join(map(repr, ids))
        raise damaged(f"documents have no text and metadata: {named:.200}. Remove these, and it can be compacted")
    names = ", ".join(["number", "id", "metadata", "text", *columns])
    documents = connection.execute(f"SELECT {names} FROM {joined}")
    while some := documents.fetchmany(ROWS):
        write_rows(connection, columns, list(zip(*some, strict=True)))
    for table in (*COLUMNS, "document", "content"):
        connection.execute(f"DROP TABLE first_{table}")
    write_setting(connection, "uid", secrets.token_hex(16))
