"""Whether an index is whole: every file against its checksum, and the catalog against itself and the segments."""

from __future__ import annotations

from collections.abc import Iterator

from latelier.errors import CorruptedIndexError
from latelier.indexes.base import Id
from latelier.indexes.catalog import schema
from latelier.indexes.catalog import statements as catalog
from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.connections import Connections
from latelier.indexes.catalog.fields import known_fields
from latelier.indexes.catalog.rows import COLUMNS, has_checksums, unchecked
from latelier.indexes.catalog.statements import DerivedRow
from latelier.indexes.report import Damage, VerifyReport
from latelier.indexes.storage.files import Segments
from latelier.indexes.storage.segments import SegmentRow

__all__ = ["verify"]


def verify(connections: Connections, segments: Segments) -> VerifyReport:
    """Read all files of an index; in memory there is none, and only the catalog is looked at.

    Parameters
    ----------
    connections, segments
        Of the index.
    """
    damages: list[Damage] = []
    rows: list[SegmentRow] = []
    derived, dim = None, 0
    try:
        with connections.reading() as connection:
            for damage in _catalog_damages(connection):
                damages.append(damage)
            rows, derived = catalog.read_segments(connection), catalog.read_derived(connection)
            dim = catalog.read_setting(connection, "dim") or 0
    except CorruptedIndexError as error:
        damages.append(Damage(schema.CATALOG, str(error), ()))
    for row in rows:
        damages += _segment_damages(connections, segments, row, dim)
    if derived is not None:
        damages += _ann_data_damages(connections, segments, derived)
    files = sum(len(row.files) for row in rows) + (0 if derived is None else len(derived.files))
    files += connections.where != "in memory"
    return VerifyReport(files=files, damages=tuple(damages))


def _catalog_damages(connection: Connection) -> Iterator[Damage]:
    """Yield what SQLite finds, then the rows whose checksums differ, then what tables say of one another."""
    schema.check_tables(connection)
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        yield Damage(schema.CATALOG, str(found), ())
        return
    for table in COLUMNS:
        rows = connection.execute(f"SELECT * FROM {table}")
        count = sum(unchecked(table, row) for row in rows if len(row) > len(COLUMNS[table]))
        if count:
            yield Damage(schema.CATALOG, f"{count:,} rows of its table {table!r} are not what was written", ())
    ids = _changed_documents(connection)
    if ids:
        yield Damage(schema.CATALOG, "ids, texts or metadata are not what was written", tuple(ids))
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM document), (SELECT count(*) FROM content), "
        "(SELECT count(*) FROM document JOIN content USING (number)), "
        "(SELECT coalesce(sum(documents - removed), 0) FROM segment)"
    ).fetchone()
    if len(set(counts)) > 1:
        reason = "its tables name {} documents and {} texts, {} of both, and {} in segments".format(*counts)
        yield Damage(schema.CATALOG, reason, ())
    for row in catalog.read_segments(connection):
        catalog.tombstones(connection, row)


def _changed_documents(connection: Connection) -> list[Id]:
    """Return the ids of documents whose rows in ``document`` or ``content`` are not what was written."""
    if not has_checksums(connection):
        return []
    changed: list[Id] = []
    columns = [field.column for field in known_fields(connection)]
    documents = connection.execute(f"SELECT {', '.join(['checksum', 'number', 'id', *columns])} FROM document")
    changed += [row[2] for row in documents if row[0] != catalog.document_checksum(columns, row[1:])]
    contents = connection.execute(
        "SELECT number, id, metadata, text, content.checksum FROM document JOIN content USING (number)"
    )
    changed += [row[1] for row in contents if unchecked("content", row)]
    return list(dict.fromkeys(changed))


def _segment_damages(connections: Connections, segments: Segments, row: SegmentRow, dim: int) -> list[Damage]:
    found = list(segments.damage(row.name, row.files))
    if not found:
        try:
            segments.open(row, dim)  # whether what was written fits to the catalog
        except CorruptedIndexError as error:
            found = [(f"segments/{row.name}", str(error))]
    if not found:
        return []
    with connections.reading() as connection:
        # While its files were read, a writer may have merged the segment into another one and deleted it.
        if not _is_current(connection, row):
            return []
        ids = tuple(catalog.ids_between(connection, row.first, row.last))
    return [Damage(file, reason, ids) for file, reason in found]


def _ann_data_damages(connections: Connections, segments: Segments, row: DerivedRow) -> list[Damage]:
    found = list(segments.damage(row.name, row.files))
    with connections.reading() as connection:
        if catalog.read_derived(connection) != row:
            return []
    # No document is lost with what was made from them.
    return [Damage(file, reason, ()) for file, reason in found]


def _is_current(connection: Connection, row: SegmentRow) -> bool:
    return row.name in {current.name for current in catalog.read_segments(connection)}
