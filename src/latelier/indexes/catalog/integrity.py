"""Verification of the catalog: SQLite's own check, the checksums of all rows, and counts that must agree."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from latelier.indexes.catalog.document_rows import document_checksum
from latelier.indexes.catalog.keyword_integrity import keyword_damages
from latelier.indexes.catalog.metadata import known_fields
from latelier.indexes.catalog.rows import CATALOG, COLUMNS, has_checksums, is_intact
from latelier.indexes.catalog.schema import check_tables
from latelier.indexes.catalog.segment_rows import read_segments, tombstones
from latelier.indexes.results import Damage, Id

__all__ = ["catalog_damages"]


def catalog_damages(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Yield the damages of the catalog.

    Parameters
    ----------
    connection
        A connection in a reading transaction.

    Yields
    ------
    Damage
        With the ids of the damaged documents where they are known.

    Raises
    ------
    CorruptedIndexError
        At damage that makes further checks impossible.
    """
    check_tables(connection)
    # SQLite 3.44 and newer also check the keyword index here; `keyword_damages` names the cure of its damage.
    try:
        lines = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    except sqlite3.OperationalError as error:
        if "fts5" not in str(error):
            raise
        lines = []
    found = [line for line in lines if "fts5" not in line.lower()]
    if found and found[0] != "ok":
        yield Damage(CATALOG, found[0], ())
        return
    for table in COLUMNS:
        rows = connection.execute(f"SELECT * FROM {table}")
        count = sum(not is_intact(table, row) for row in rows if len(row) > len(COLUMNS[table]))
        if count:
            yield Damage(CATALOG, f"{count:,} rows of its table {table!r} do not match their checksums", ())
    ids = _damaged_documents(connection)
    if ids:
        yield Damage(CATALOG, "ids, texts or metadata do not match their checksums", tuple(ids))
    for reason in keyword_damages(connection):
        yield Damage(CATALOG, reason, ())
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM document), (SELECT count(*) FROM content), "
        "(SELECT count(*) FROM document JOIN content USING (number)), "
        "(SELECT coalesce(sum(documents - removed), 0) FROM segment)"
    ).fetchone()
    if len(set(counts)) > 1:
        reason = (
            "its counts differ: {} rows of 'document', {} rows of 'content', {} documents in both, {} in segments"
        ).format(*counts)
        yield Damage(CATALOG, reason, ())
    for row in read_segments(connection):
        tombstones(connection, row)


def _damaged_documents(connection: sqlite3.Connection) -> list[Id]:
    """Return the ids of documents whose row in ``document`` or ``content`` differs from its checksum."""
    if not has_checksums(connection):
        return []
    columns = [field.column for field in known_fields(connection)]
    documents = connection.execute(f"SELECT {', '.join(['checksum', 'number', 'id', *columns])} FROM document")
    damaged = [row[2] for row in documents if row[0] != document_checksum(columns, row[1:])]
    contents = connection.execute(
        "SELECT number, id, metadata, text, content.checksum FROM document JOIN content USING (number)"
    )
    damaged += [row[1] for row in contents if not is_intact("content", row)]
    return list(dict.fromkeys(damaged))
