"""The upgrade of a catalog from format 1 to the newest format, as a part of `compact`.

Format 1 had no checksums, so its rows are copied unchecked. Damage is detected only if it happens after the upgrade.
"""

from __future__ import annotations

import secrets
import sqlite3

from latelier.indexes.catalog.document_rows import write_content_rows, write_document_rows
from latelier.indexes.catalog.metadata import known_fields
from latelier.indexes.catalog.rows import COLUMNS, has_checksums, insert_rows
from latelier.indexes.catalog.schema import create_tables
from latelier.indexes.catalog.settings import write_setting

__all__ = ["upgrade"]


def upgrade(connection: sqlite3.Connection) -> None:
    """Add a checksum to every row, and a ``uid`` to the index; do nothing if the catalog has them already.

    Parameters
    ----------
    connection
        A connection in a writing transaction.
    """
    if has_checksums(connection):
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
    documents = connection.execute(f"SELECT {', '.join(['number', 'id', *columns])} FROM first_document")
    write_document_rows(connection, columns, documents)
    contents = "SELECT number, id, metadata, text FROM first_document JOIN first_content USING (number)"
    write_content_rows(connection, connection.execute(contents))
    for table in (*COLUMNS, "document", "content"):
        connection.execute(f"DROP TABLE first_{table}")
    write_setting(connection, "uid", secrets.token_hex(16))
