"""Bringing a catalog of the first format up to date, where the user asks for it by `compact`.

The first format had no checksums. What its rows hold is taken as it is: from the upgrade on, changes are found.
"""

from __future__ import annotations

import secrets
import sqlite3

from latelier.indexes.catalog import statements as catalog
from latelier.indexes.catalog.fields import known_fields
from latelier.indexes.catalog.rows import COLUMNS, has_checksums, insert_rows
from latelier.indexes.catalog.schema import create_tables, write_setting

__all__ = ["upgrade"]


def upgrade(connection: sqlite3.Connection) -> None:
    """Give every row its checksum, and the index its ``uid``, within the transaction of the caller.

    Nothing is done where they have them.

    Parameters
    ----------
    connection
        In its writing transaction.
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
    catalog.write_document_rows(connection, columns, documents)
    contents = "SELECT number, id, metadata, text FROM first_document JOIN first_content USING (number)"
    catalog.write_content_rows(connection, connection.execute(contents))
    for table in (*COLUMNS, "document", "content"):
        connection.execute(f"DROP TABLE first_{table}")
    write_setting(connection, "uid", secrets.token_hex(16))
