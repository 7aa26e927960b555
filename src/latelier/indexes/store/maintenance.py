"""Verification and compaction of an index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.results import Damage, Id, VerifyReport
from latelier.indexes.store.catalog import (
    SegmentRow,
    check_catalog,
    read_ann_data,
    read_segments,
    read_setting,
    referenced_names,
    tombstones,
    write_setting,
)
from latelier.indexes.store.connections import ConnectionPool
from latelier.indexes.store.integrity import CATALOG, COLUMNS, row_checksum
from latelier.indexes.store.keywords import (
    FTS5_TABLES,
    TABLE_STATEMENTS,
    check_config,
    keyword_damage,
    stored_tokenizer,
    translate_damage,
)
from latelier.indexes.store.rows import document_checksum, ids_between, known_fields
from latelier.indexes.store.segments import Part, Scratch, Segment, SegmentState, SegmentStore, Snapshot


def verify(pool: ConnectionPool, store: SegmentStore) -> VerifyReport:
    """Check the catalog and read all files of an index; an index in memory has no files."""
    damages: list[Damage] = []
    rows: list[SegmentRow] = []
    ann_data, dim = None, 0
    try:
        with pool.reading() as connection:
            for damage in _catalog_damages(connection):
                damages.append(damage)
            rows, ann_data = read_segments(connection), read_ann_data(connection)
            dim = read_setting(connection, "dim") or 0
    except CorruptedIndexError as error:
        damages.append(Damage(CATALOG, str(error), ()))
    for row in rows:
        damages += _segment_damages(pool, store, row, dim)
    files = sum(len(row.files) for row in rows) + (pool.where != "memory")
    if ann_data is not None:
        files += len(ann_data.files)
        found = list(store.find_damage(*ann_data))
        with pool.reading() as connection:
            if read_ann_data(connection) == ann_data:  # a writer has not replaced it while its files were read
                # ANN data can be made again from the documents, so no document is damaged with it.
                damages += [Damage(file, reason, ()) for file, reason in found]
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


def _catalog_damages(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Yield the damages of the catalog; raise `CorruptedIndexError` at one that makes further checks impossible."""
    check_catalog(connection)
    # SQLite 3.44 and newer also check the keyword index here; `_check_keywords` names the cure of its damage.
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
    yield from _keyword_damages(connection)
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM document), (SELECT count(*) FROM content), "
        "(SELECT count(*) FROM document JOIN content USING (number)), "
        "(SELECT coalesce(sum(documents - removed), 0) FROM segment)"
    ).fetchone()
    if len(set(counts)) > 1:
        text = "its counts differ: {} rows of 'document', {} rows of 'content', {} documents in both, {} in segments"
        yield Damage(CATALOG, text.format(*counts), ())
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


# Values of another type than FTS5 writes, which it may read all the same.
_WRONG_TYPES = (
    "SELECT EXISTS (SELECT 1 FROM keyword_data WHERE typeof(block) <> 'blob') "
    "OR EXISTS (SELECT 1 FROM keyword_docsize WHERE typeof(sz) <> 'blob') "
    "OR EXISTS (SELECT 1 FROM keyword_idx WHERE typeof(segid) || typeof(term) || typeof(pgno) <> 'integerblobinteger')"
)
# Words that are found when all words are read, but not when one is looked up, as a search does.
_LOST_WORDS = (
    "SELECT EXISTS (SELECT 1 FROM keyword_terms AS word WHERE NOT EXISTS "
    "(SELECT 1 FROM keyword_terms AS found WHERE found.term = word.term AND found.cnt = word.cnt))"
)


def _keyword_damages(connection: sqlite3.Connection) -> Iterator[Damage]:
    try:
        _check_keywords(connection)
    except CorruptedIndexError as error:
        yield Damage(CATALOG, str(error), ())
    except StorageError as error:  # this SQLite has no FTS5
        yield Damage(CATALOG, f"the keyword index was not checked: {error}", ())


def _check_keywords(connection: sqlite3.Connection) -> None:
    """Compare the keyword index with the texts, in a copy: FTS5's check is a write, which a reader may not do."""
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        return
    with closing(sqlite3.connect("")) as copy, translate_damage():  # a temporary file, which SQLite deletes

        def copy_rows(statement: str, table: str) -> None:
            rows = connection.execute(statement)
            copy.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows.description))})", rows)

        check_config(connection)
        if connection.execute(_WRONG_TYPES).fetchone()[0]:
            raise keyword_damage("it has values of a wrong type")
        copy.execute(TABLE_STATEMENTS[tokenizer])
        for table in FTS5_TABLES:
            copy.execute(f"DELETE FROM {table}")
            copy_rows(f"SELECT * FROM {table}", table)
        # Documents without a text are not in the keyword index.
        copy.execute("CREATE TABLE content (number INTEGER PRIMARY KEY, text TEXT)")
        copy_rows("SELECT number, text FROM content WHERE text IS NOT NULL", "content")
        # The rank 1 compares with the texts, which older versions of FTS5 always do.
        copy.execute("INSERT INTO keyword (keyword, rank) VALUES ('integrity-check', 1)")
        copy.execute("CREATE VIRTUAL TABLE keyword_terms USING fts5vocab(keyword, row)")
        if copy.execute(_LOST_WORDS).fetchone()[0]:
            raise keyword_damage("words cannot be looked up in it")


def merged_segments(
    snapshot: Snapshot, store: SegmentStore, max_tokens: int, scratch: Scratch, damages: list[str]
) -> Iterator[tuple[list[SegmentRow], Segment]]:
    """Merge consecutive segments, up to `max_tokens` tokens; yield the rows of those merged, and the merged segment.

    A segment stays as it is if it has no removed documents and at least ``max_tokens / 2`` tokens, or if it does not
    match its checksums; the reason is then appended to `damages`.
    """
    run: list[SegmentRow] = []
    parts: list[Part] = []
    for state in [*snapshot.segments, None]:
        part = None if state is None else _mergeable(state, store, max_tokens, damages)
        if part is None or sum(each.tokens for each in parts) + part.tokens > max_tokens:
            if len(run) > 1 or (run and run[0].removed):
                yield run, Segment.merge(parts, scratch)
            run, parts = [], []
        if state is not None and part is not None:
            run.append(state.row)
            parts.append(part)


def _mergeable(state: SegmentState, store: SegmentStore, max_tokens: int, damages: list[str]) -> Part | None:
    if isinstance(state.part, CorruptedIndexError):
        damages.append(str(state.part))
        return None
    if not state.row.removed and 2 * state.tokens >= max_tokens:
        return None
    try:
        store.compare_checksums(state.part.segment.arrays, state.row.name, state.row.files)
    except CorruptedIndexError as error:
        damages.append(str(error))
        return None
    return state.part


def delete_garbage(pool: ConnectionPool, store: SegmentStore) -> None:
    """Delete the files of killed writers, and give the unused pages of the catalog back to the file system.

    We hold the write lock, so segments that the catalog does not reference are garbage: no other writer is about to
    commit them.
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
