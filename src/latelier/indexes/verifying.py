"""Whether an index is whole: every file against its checksum, and the catalog against itself and the segments."""

from __future__ import annotations

from latelier.errors import CorruptedIndexError
from latelier.indexes import catalog, schema
from latelier.indexes.catalog import DerivedRow, SegmentRow
from latelier.indexes.connections import Connections
from latelier.indexes.report import Damage, VerifyReport
from latelier.indexes.segment_files import Segments
from latelier.indexes.sqlite import Connection

__all__ = ["verify"]


def verify(connections: Connections, segments: Segments) -> VerifyReport:
    """Read all files of an index; in memory there is none, and only the catalog is looked at.

    Parameters
    ----------
    connections, segments
        Of the index.
    """
    try:
        with connections.reading() as connection:
            rows, problem = catalog.read_segments(connection), schema.integrity(connection)
            derived = catalog.read_derived(connection)
    except CorruptedIndexError as error:
        rows, derived, problem = [], None, str(error)
    damages = [Damage(schema.CATALOG, problem, ())] if problem else []
    for row in rows:
        damages += _segment_damages(connections, segments, row)
    if derived is not None:
        damages += _derived_damages(connections, segments, derived)
    files = sum(len(row.files) for row in rows) + (0 if derived is None else len(derived.files))
    files += connections.where != "in memory"
    return VerifyReport(files=files, damages=tuple(damages))


def _segment_damages(connections: Connections, segments: Segments, row: SegmentRow) -> list[Damage]:
    found = list(segments.damage(row.name, row.files))
    if not found:
        return []
    with connections.reading() as connection:
        # While its files were read, a writer may have merged the segment into another one and deleted it.
        if not _is_current(connection, row):
            return []
        ids = tuple(catalog.ids_between(connection, row.first, row.last))
    return [Damage(file, reason, ids) for file, reason in found]


def _derived_damages(connections: Connections, segments: Segments, row: DerivedRow) -> list[Damage]:
    found = list(segments.damage(row.name, row.files))
    with connections.reading() as connection:
        if catalog.read_derived(connection) != row:
            return []
    # No document is lost with what was made from them.
    return [Damage(file, reason, ()) for file, reason in found]


def _is_current(connection: Connection, row: SegmentRow) -> bool:
    return row.name in {current.name for current in catalog.read_segments(connection)}
