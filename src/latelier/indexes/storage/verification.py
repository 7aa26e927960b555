"""Whether an index is intact: its catalog, and every file against its checksum."""

from __future__ import annotations

from latelier.errors import CorruptedIndexError
from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.document_rows import ids_between
from latelier.indexes.catalog.integrity import catalog_damages
from latelier.indexes.catalog.pool import ConnectionPool
from latelier.indexes.catalog.rows import CATALOG
from latelier.indexes.catalog.segment_rows import AnnDataRow, SegmentRow, read_ann_data, read_segments
from latelier.indexes.catalog.settings import read_setting
from latelier.indexes.results import Damage, VerifyReport
from latelier.indexes.storage.files import Segments

__all__ = ["verify"]


def verify(connections: ConnectionPool, segments: Segments) -> VerifyReport:
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
            for damage in catalog_damages(connection):
                damages.append(damage)
            rows, derived = read_segments(connection), read_ann_data(connection)
            dim = read_setting(connection, "dim") or 0
    except CorruptedIndexError as error:
        damages.append(Damage(CATALOG, str(error), ()))
    for row in rows:
        damages += _segment_damages(connections, segments, row, dim)
    if derived is not None:
        damages += _ann_data_damages(connections, segments, derived)
    files = sum(len(row.files) for row in rows) + (0 if derived is None else len(derived.files))
    files += connections.where != "in memory"
    return VerifyReport(files=files, damages=tuple(damages))


def _segment_damages(connections: ConnectionPool, segments: Segments, row: SegmentRow, dim: int) -> list[Damage]:
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
        ids = tuple(ids_between(connection, row.first, row.last))
    return [Damage(file, reason, ids) for file, reason in found]


def _ann_data_damages(connections: ConnectionPool, segments: Segments, row: AnnDataRow) -> list[Damage]:
    found = list(segments.damage(row.name, row.files))
    with connections.reading() as connection:
        if read_ann_data(connection) != row:
            return []
    # No document is lost with what was made from them.
    return [Damage(file, reason, ()) for file, reason in found]


def _is_current(connection: Connection, row: SegmentRow) -> bool:
    return row.name in {current.name for current in read_segments(connection)}
