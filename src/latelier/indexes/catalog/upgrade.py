"""The upgrade of a catalog from an older format to the newest one, as a part of `compact`.

Format 1 had no checksums, so its rows are copied unchecked. Damage is detected only if it happens after the upgrade.
Format 2 had no keyword index, and otherwise the same tables as format 3. The upgrade makes no keyword index.
"""

from __future__ import annotations

import secrets
import sqlite3

from latelier.indexes.catalog.document_rows import ROWS, write_rows
from latelier.indexes.catalog.metadata import known_fields
from latelier.indexes.catalog.rows import COLUMNS, damaged, has_checksums, insert_rows
from latelier.indexes.catalog.schema import FORMAT_VERSION, create_tables
from latelier.indexes.catalog.settings import write_setting

__all__ = ["upgrade"]


def upgrade(connection: sqlite3.Connection) -> None:
    """Convert a catalog of format 1 or 2; do nothing if it has the newest format.

    A catalog of format 1 gets a checksum in every row, and a ``uid``.

    Parameters
    ----------
    connection
        A connection in a writing transaction.
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
