"""Compaction and verification.

The check is a write, which an index that is open for reading only does not allow. It compares the tables with the words
of the texts. It does not look the words up one by one, as a search does, so that is done here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.results import Damage, Id, VerifyReport
from latelier.indexes.store.catalog import (
    AnnDataRow,
    SegmentRow,
    check_catalog,
    read_ann_data,
    read_segments,
    read_setting,
    referenced_names,
    tombstones,
    write_setting,
)
from latelier.indexes.store.checks import CATALOG, COLUMNS, row_checksum
from latelier.indexes.store.connections import ConnectionPool
from latelier.indexes.store.files import Scratch
from latelier.indexes.store.keywords import (
    FTS5_TABLES,
    TABLE_STATEMENTS,
    check_config,
    keyword_damage,
    stored_tokenizer,
    translate_damage,
)
from latelier.indexes.store.rows import document_checksum, ids_between, known_fields
from latelier.indexes.store.segments import Part, Segment, SegmentStore
from latelier.indexes.store.snapshot import SegmentState, Snapshot


class Compaction:
    """Merges the segments of a snapshot.

    A segment stays as it is if it is damaged, or if it has no removed documents and at least ``max_tokens / 2`` tokens.
    Consecutive other segments are merged, up to `max_tokens` tokens at a time. `damages`: one message per damaged
    segment; complete once `merged` is exhausted.
    """

    def __init__(self, snapshot: Snapshot, store: SegmentStore, max_tokens: int, scratch: Scratch) -> None:
        self.damages: list[str] = []
        self._scratch = scratch
        self._snapshot, self._store, self._max_tokens = snapshot, store, max_tokens

    def merged(self) -> Iterator[tuple[list[SegmentRow], Segment]]:
        """Merge one run of segments after the other; yield the rows of its segments, and the merged segment."""
        for run in self._runs():
            if len(run) > 1 or (run and run[0].row.removed):
                parts = [state.live for state in run]
                yield [state.row for state in run], Segment.merge(parts, self._scratch)

    def _runs(self) -> Iterator[list[SegmentState]]:
        """Yield runs of consecutive segments to merge; some are empty."""
        run: list[SegmentState] = []
        tokens = 0
        for state in self._snapshot.segments:
            size = state.tokens if isinstance(state.part, Part) else 0
            is_full = not state.row.removed and 2 * size >= self._max_tokens
            stays = is_full or not self._is_intact(state)
            if stays or tokens + size > self._max_tokens:
                yield run
                run, tokens = [], 0
            if not stays:
                run.append(state)
                tokens += size
        yield run

    def _is_intact(self, state: SegmentState) -> bool:
        """Whether a segment can be read and matches its checksums; if not, append the reason to `damages`."""
        if isinstance(state.part, CorruptedIndexError):
            self.damages.append(str(state.part))
            return False
        try:
            self._store.compare_checksums(state.part.segment.arrays, state.row.name, state.row.files)
        except CorruptedIndexError as error:
            self.damages.append(str(error))
            return False
        return True


def delete_garbage(pool: ConnectionPool, store: SegmentStore) -> None:
    """Delete the files of killed writers, and give the unused pages of the catalog back to the file system.

    We hold the write lock, so no other writer has written a segment that it is about to commit: segments that the
    catalog does not reference are garbage.
    """
    with pool.writing() as begin:
        connection = begin()
        garbage = set(store.names()) - referenced_names(connection)
        for _ in range(connection.execute("PRAGMA freelist_count").fetchone()[0]):
            # Each step of this statement frees one page, and execute() takes one step only.
            connection.execute("PRAGMA incremental_vacuum")
        if garbage:  # a commit that failed may be in the log, and reference them: this one takes its place there
            write_setting(connection, "generation", int(read_setting(connection, "generation")) + 1)
    if garbage and pool.is_in_place():  # otherwise these are the files of another index, which was moved here
        store.delete(garbage)


# Values of another type than FTS5 writes, which it may read all the same.
_WRONG_TYPES = (
    "SELECT EXISTS (SELECT 1 FROM keyword_data WHERE typeof(block) <> 'blob') "
    "OR EXISTS (SELECT 1 FROM keyword_docsize WHERE typeof(sz) <> 'blob') "
    "OR EXISTS (SELECT 1 FROM keyword_idx WHERE typeof(segid) || typeof(term) || typeof(pgno) <> 'integerblobinteger')"
)
# Words that are found when all words are read, but not when one is looked up.
_LOST_WORDS = (
    "SELECT EXISTS (SELECT 1 FROM keyword_terms AS word WHERE NOT EXISTS "
    "(SELECT 1 FROM keyword_terms AS found WHERE found.term = word.term AND found.cnt = word.cnt))"
)


def keyword_damages(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield a message if the keyword index does not match the texts.

    `connection`: a connection in a reading transaction.
    """
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        return
    copy = sqlite3.connect("")  # a temporary file, which SQLite deletes
    try:
        with translate_damage():
            check_config(connection)
            if connection.execute(_WRONG_TYPES).fetchone()[0]:
                raise keyword_damage("it has values of a wrong type")
            copy.execute(TABLE_STATEMENTS[tokenizer])
            for table in FTS5_TABLES:
                copy.execute(f"DELETE FROM {table}")
                _copy_rows(connection, f"SELECT * FROM {table}", copy, table)
            # Documents without a text are not in the keyword index.
            copy.execute("CREATE TABLE content (number INTEGER PRIMARY KEY, text TEXT)")
            _copy_rows(connection, "SELECT number, text FROM content WHERE text IS NOT NULL", copy, "content")
            # The rank 1 compares with the texts, which older versions of FTS5 always do.
            copy.execute("INSERT INTO keyword (keyword, rank) VALUES ('integrity-check', 1)")
            copy.execute("CREATE VIRTUAL TABLE keyword_terms USING fts5vocab(keyword, row)")
            if copy.execute(_LOST_WORDS).fetchone()[0]:
                raise keyword_damage("words cannot be looked up in it")
    except CorruptedIndexError as error:
        yield str(error)
    except StorageError as error:  # this SQLite has no FTS5
        yield f"the keyword index was not checked: {error}"
    finally:
        copy.close()


def _copy_rows(source: sqlite3.Connection, statement: str, target: sqlite3.Connection, table: str) -> None:
    rows = source.execute(statement)
    target.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows.description))})", rows)


def catalog_damages(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Yield the damages of the catalog.

    `connection`: a connection in a reading transaction; yields: with the ids of the damaged documents where they are
    known; raises `CorruptedIndexError` at damage that makes further checks impossible.
    """
    check_catalog(connection)
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
        count = sum(row[-1] != row_checksum(table, row[:-1]) for row in rows)
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
    columns = [field.column for field in known_fields(connection)]
    documents = connection.execute(f"SELECT {', '.join(['checksum', 'number', 'id', *columns])} FROM document")
    damaged = [row[2] for row in documents if row[0] != document_checksum(columns, row[1:])]
    contents = connection.execute(
        "SELECT number, id, metadata, text, content.checksum FROM document JOIN content USING (number)"
    )
    damaged += [row[1] for row in contents if row[-1] != row_checksum("content", row[:-1])]
    return list(dict.fromkeys(damaged))


def verify(pool: ConnectionPool, store: SegmentStore) -> VerifyReport:
    """Check the catalog and read all files of an index; an index in memory has no files.

    `pool`: connections to the catalog.
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
