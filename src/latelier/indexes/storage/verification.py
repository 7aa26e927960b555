"""Verification: compares every file of an index with its checksum, and every segment with the catalog."""

from __future__ import annotations

from latelier.errors import CorruptedIndexError
from latelier.indexes.catalog.document_rows import ids_between
from latelier.indexes.catalog.integrity import catalog_damages
from latelier.indexes.catalog.pool import ConnectionPool
from latelier.indexes.catalog.rows import CATALOG
from latelier.indexes.catalog.segment_rows import AnnDataRow, SegmentRow, read_ann_data, read_segments
from latelier.indexes.catalog.settings import read_setting
from latelier.indexes.results import Damage, VerifyReport
from latelier.indexes.storage.store import SegmentStore

__all__ = ["verify"]


def verify(pool: ConnectionPool, store: SegmentStore) -> VerifyReport:
    """Check the catalog and read all files of an index; an index in memory has no files.

    Parameters
    ----------
    pool
        Connections to the catalog.
    store
        The segments.

    Returns
    -------
    VerifyReport
        The damaged files, and the ids of their documents.
    """
    damages: list[Damage] = []
    rows: list[SegmentRow] = []
    ann_data, dim = None, 0
    try:
        with pool.reading() as connection:
            for damage in catalog_damages(connection):
                damages.append(damage)
            rows, ann_data = read_segments(connection), read_ann_data(connection)
            dim = read_setting(connection, "dim") or 0
    except CorruptedIndexError as error:
        damages.append(Damage(CATALOG, str(error), ()))
    for row in rows:
        damages += _segment_damages(pool, store, row, dim)
    if ann_data is not None:
        damages += _ann_data_damages(pool, store, ann_data)
    files = sum(len(row.files) for row in rows) + (0 if ann_data is None else len(ann_data.files))
    files += pool.where != "memory"
    return VerifyReport(files=files, damages=tuple(damages))


def _segment_damages(pool: ConnectionPool, store: SegmentStore, row: SegmentRow, dim: int) -> list[Damage]:
    found = list(store.find_damage(row.name, row.files))
    if not found:
        try:
            store.open(row, dim)  # the bytes match their checksums; this compares the arrays with the catalog
        except CorruptedIndexError as error:
            found = [(f"segments/{row.name}", str(error))]
    if not found:
        return []
    with pool.reading() as connection:
        # While its files were read, a writer may have merged the segment into another one and deleted it.
        if row.name not in {current.name for current in read_segments(connection)}:
            return []
        ids = tuple(ids_between(connection, row.first, row.last))
    return [Damage(file, reason, ids) for file, reason in found]


def _ann_data_damages(pool: ConnectionPool, store: SegmentStore, row: AnnDataRow) -> list[Damage]:
    found = list(store.find_damage(row.name, row.files))
    with pool.reading() as connection:
        if read_ann_data(connection) != row:
            return []
    # ANN data can be made again from the documents, so no document is damaged with it.
    return [Damage(file, reason, ()) for file, reason in found]
