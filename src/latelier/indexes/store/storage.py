"""`Storage`: the documents of one index, in a catalog and immutable segments: opening, reading, beginning a write.

On disk, an index is a folder with ``catalog.sqlite`` (and SQLite's ``-wal`` and ``-shm`` files while it is open) and
``segments/``. The catalog is the commit log: a segment belongs to the index as long as the catalog references it, so a
writer that is killed leaves at most unreferenced files. Readers see the latest commit and never wait for a writer.
SQLite's write-ahead log needs a local disk and does not work on network file systems.

The storage does not know how an index encodes vectors: it handles token arrays, with one row per token.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from latelier.errors import CorruptedIndexError, IndexFormatError, InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.fields import fold_name
from latelier.indexes.filter_sql import CALLED, bounded, matching_rows, row_condition
from latelier.indexes.filters import read_filter
from latelier.indexes.options import SearchOptions
from latelier.indexes.results import Damage, FieldValues, VerifyReport, check_known
from latelier.indexes.store import catalog
from latelier.indexes.store.catalog import FolderRow, SegmentRow, UserSettings
from latelier.indexes.store.connections import Connection, ConnectionPool, FilePool, MemoryPool
from latelier.indexes.store.folder import check_index_folder, looking_into, make_catalog, no_index
from latelier.indexes.store.forks import Lock
from latelier.indexes.store.integrity import COLUMNS, row_checksum
from latelier.indexes.store.keywords import keyword_damage
from latelier.indexes.store.rows import (
    content_checksums,
    count_row_texts,
    document_checksums,
    field_values,
    find_numbers,
    known_fields,
)
from latelier.indexes.store.segments import (
    Arrays,
    FileStore,
    Layout,
    MemoryStore,
    Part,
    Scratch,
    Segment,
    SegmentStore,
    Snapshot,
    load_snapshot,
)
from latelier.indexes.store.selections import selection_key
from latelier.indexes.store.transaction import Transaction
from latelier.utils.files import CATALOG, SEGMENTS
from latelier.utils.values import Id

T = TypeVar("T")
# The start and the end of a passage in the text of its document.
Range: TypeAlias = "tuple[int, int]"
# Marks what was lost, above all generations.
_LOST = 10**18 - 1
# Characters of rows that are checked together, and held in memory a few times over.
_CHECKED_TEXT = 1 << 18
_ROW_TEXT = 256  # counted for each row besides


class Storage:
    """The documents of one index, in a folder (made if missing) or in memory.

    `configuration` is for a new index, the attribute is the stored one; its ``"kind"`` names the class. `read_only` is
    implied if the folder cannot be written. `settings`: what users store in the index.
    """

    def __init__(
        self,
        path: Path | None,
        configuration: Mapping[str, Any],
        layout: Layout,
        *,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.scratch = Scratch()
        self._pool: ConnectionPool
        self._store: SegmentStore
        if path is None:
            self._pool = MemoryPool()
            self._store = MemoryStore()
            self.read_only = False
        else:
            with looking_into(path):
                files = (path, path / CATALOG)
                self.read_only = read_only or any(file.exists() and not os.access(file, os.W_OK) for file in files)
                check_index_folder(path, create=not self.read_only)
                if not self.read_only:
                    make_catalog(path / CATALOG)
            self._pool = FilePool(path / CATALOG, read_only=self.read_only)
            self._store = FileStore(path / SEGMENTS, layout)
        self._latest: Snapshot | None = None
        self._loading = Lock()
        self._held = threading.local()  # the view that each thread holds
        self.settings = UserSettings(self.ask, self._writing)
        try:
            self.configuration = self._configure(configuration)
        except BaseException:
            self._pool.close()
            raise
        if not self.read_only:
            with suppress(LatelierError):  # `verify` names it
                self._store.mark_committed(self._lost(), _LOST)  # later commits must not hide that it was lost

    # Reading: from the latest commit, or from the one that this thread holds.

    def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Return ``question(connection, *arguments)`` for a connection in a reading transaction; open no snapshot."""
        held = getattr(self._held, "view", None)
        if held is not None:
            return question(held[0], *arguments)
        with self._pool.reading() as connection:
            return question(connection, *arguments)

    @contextmanager
    def view(self) -> Iterator[tuple[Connection, Snapshot]]:
        """Yield a connection in a reading transaction, and the snapshot of the commit that it reads."""
        held = getattr(self._held, "view", None)
        while held is None:
            with self._pool.reading() as connection:
                with self._loading.current:
                    snapshot = self._latest = load_snapshot(connection, self._store, self._latest)
                # A segment may be missing because a newer commit has merged it while it was being opened.
                if snapshot.damaged:
                    with self._pool.reading() as newer:
                        if catalog.read_stamp(newer) != snapshot.stamp:
                            continue
                yield connection, snapshot
                return
        yield held

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the ``with`` block, let all reads of this thread see one commit."""
        mine = self._held.__dict__  # belongs to the thread that begins the block, even if another one ends it
        if "view" in mine:
            yield
            return
        with self.view() as mine["view"]:
            try:
                yield
            finally:
                del mine["view"]

    def snapshot(self) -> Snapshot:
        """Return the snapshot of the commit."""
        with self.view() as (_, snapshot):
            return snapshot

    def select(self, options: SearchOptions) -> tuple[Snapshot, np.ndarray | None]:
        """Return the snapshot of the commit, and the row ids that the filter of a search selects; None without one."""
        if options.filter is None:
            return self.snapshot(), None
        parsed, values = read_filter(options.filter, options.parameters)
        key = selection_key(parsed, values)
        with self.view() as (connection, snapshot):
            if not snapshot.documents:
                return snapshot, np.zeros(0, "int64")  # an empty index has no fields, so no filter could name one

            def select() -> np.ndarray:
                restricted_to = connection.authorizer.restricted_to
                fields = known_fields(connection)
                numbers = matching_rows(connection, parsed, values, options.filter_timeout, fields, restricted_to)
                return snapshot.row_ids(numbers)

            return snapshot, select() if key is None else snapshot.selections.find(key, select)

    def field_values(self, most: int, *, field: str | None, prefix: str, options: SearchOptions) -> list[FieldValues]:
        """Return the values of each field, or of one, sorted by its name, among the documents of a filter."""
        with self.view() as (connection, snapshot):
            known = known_fields(connection)
            fields = sorted(known, key=lambda each: each.spelling)
            if field is not None:
                fields = [each for each in fields if each.folded == fold_name(field)]
            chosen: dict[str, Any] = {"prefix": prefix}
            if options.filter is None or not snapshot.documents:
                return field_values(connection, fields, most, **chosen)
            parsed, values = read_filter(options.filter, options.parameters)
            chosen |= {"condition": row_condition(parsed, known), "parameters": values}
            allowed = connection.authorizer.restricted_to({*CALLED, "count"})
            with allowed, bounded(connection, parsed, values, options.filter_timeout):
                return field_values(connection, fields, most, **chosen)

    def find(self, ids: Sequence[Id], ranges: Sequence[Range | None] | None = None) -> tuple[Snapshot, np.ndarray]:
        """Return the snapshot of the commit, and the row ids of documents in the order of `ids`, which must exist.

        `ranges`: of each document, that of the one passage that is wanted; None: all of its rows.
        """
        with self.view() as (connection, snapshot):
            found = find_numbers(connection, ids)
            check_known(ids, found)
            numbers = np.array([found[id] for id in ids], dtype="int64")
            if not snapshot.passages:
                return snapshot, numbers
            rows = []
            for i, id in enumerate(ids):
                own = snapshot.row_ids(numbers[i : i + 1])
                if ranges is not None and ranges[i] is not None:
                    chosen = np.flatnonzero((snapshot.ranges(own) == ranges[i]).all(axis=1))[:1]
                    if not len(chosen):
                        raise InvalidArgumentError(f"document {id!r} has no passage with the range {ranges[i]}.")
                    own = own[chosen]
                rows.append(own)
        return snapshot, np.concatenate([np.zeros(0, "int64"), *rows])

    def setting(self, name: str) -> Any:
        """Return one of the index's own settings; ``None`` if there is none of this name."""
        return self.ask(catalog.read_setting, name)

    def check_ann_data(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot has ANN data, each array of which matches its checksum."""
        state = snapshot.ann_state
        return snapshot.ann_data is not None and state is not None and not self._store.find_damage(*state.row)

    def verify(self) -> VerifyReport:
        """Check the catalog, and read all files and compare them with their checksums."""
        damages: list[Damage] = []
        rows: list[SegmentRow] = []
        ann_data = None
        dim = 0
        try:
            damages += [Damage(f"segments/{name}", reason, ()) for name, reason in self._lost().items()]
            with self._pool.reading() as connection:
                damages += _catalog_damages(connection)
                damages += self._missing_words(connection)
                rows = catalog.read_segments(connection)
                ann_data = catalog.read_ann_data(connection)
                dim = catalog.read_settings(connection)["dim"]
        except CorruptedIndexError as error:
            damages.append(Damage(CATALOG, str(error), ()))
        for row in rows:
            found = self._store.find_damage(row.name, row.files)
            if not found:
                try:
                    self._store.open(row, dim)  # compares the arrays with each other and with the catalog
                except CorruptedIndexError as error:
                    found = [(f"segments/{row.name}", str(error))]
            damages += self._still_referenced(row, found)
            damages += self._damaged_words(row)
        if ann_data is not None:
            damages += self._still_referenced(ann_data, self._store.find_damage(*ann_data))
        folders = [*rows, *(row.words for row in rows), ann_data]
        files = sum(len(row.files) for row in folders if row is not None)
        return VerifyReport(files=files + (self.path is not None), damages=tuple(damages))

    def _lost(self) -> dict[str, str]:
        """Return the names of segments and ANN data of commits that the catalog does not know, and what that means."""
        commits = self._store.commits()  # before the catalog is read, which references what is committed meanwhile
        with self._pool.reading() as connection:
            generation = catalog.read_settings(connection)["generation"]
            referenced = catalog.referenced_names(connection)
        reason = (
            "its documents were committed, but the catalog ends with an earlier commit: the log, catalog.sqlite-wal, "
            "is missing or incomplete. Copy the whole folder again, or delete this one"
        )
        return {name: reason for name, each in commits.items() if each > generation and name not in referenced}

    def _missing_words(self, connection: Connection) -> Iterator[Damage]:
        """Yield the damage of a keyword index that has another number of texts than the catalog."""
        snapshot = load_snapshot(connection, self._store, self._latest)
        if snapshot.tokenizer is None or snapshot.damaged:
            return  # what is damaged is named with its file
        counts = snapshot.words.texts, count_row_texts(connection)
        if counts[0] != counts[1]:
            yield Damage(CATALOG, str(keyword_damage(f"it has the words of {counts[0]:,} of {counts[1]:,} texts")), ())

    def _damaged_words(self, row: SegmentRow) -> list[Damage]:
        """Return what is damaged of the words of a segment, from whose texts they can be made again."""
        if row.words is None:
            return []
        found = self._store.find_damage(*row.words)
        if not found:
            try:
                self._store.open_words(row)
            except CorruptedIndexError as error:
                found = [(f"segments/{row.words.name}", str(error))]
        found = [(file, str(keyword_damage(reason))) for file, reason in found]
        return self._still_referenced(row.words, found)

    def _still_referenced(self, row: SegmentRow | FolderRow, found: list[tuple[str, str]]) -> list[Damage]:
        """Return the damages of a segment or ANN data that no writer has replaced while its files were read."""
        if not found:
            return []
        with self._pool.reading() as connection:
            if row.name not in catalog.referenced_names(connection):
                return []
            ids: tuple[Id, ...] = ()  # ANN data can be made again from the documents
            if isinstance(row, SegmentRow):
                between = "SELECT id FROM document WHERE number BETWEEN ? AND ? ORDER BY number"
                ids = tuple(id for (id,) in connection.execute(between, (row.first, row.last)))
        return [Damage(file, reason, ids) for file, reason in found]

    # Writing: one call is one transaction.

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Wait until there is no other writer, and begin a transaction, which commits at the end of the block."""
        transaction: Transaction | None = None
        committing = False
        try:
            with self._writing() as begin:
                transaction = Transaction(begin, self._store, self.scratch)
                yield transaction
                transaction.finish()
                committing = True
        except BaseException:
            # A commit that raised an error may still take effect, when SQLite recovers its log after a crash: then both
            # the new and the old files may be needed, and the next compaction deletes those that are not.
            if transaction is not None and not committing:
                self._delete_unreferenced(transaction.written)
            raise
        self._store.mark_committed(set(transaction.written) - set(transaction.dropped), transaction.generation)
        self._delete_unreferenced(transaction.dropped)

    def compact(
        self,
        *,
        max_tokens: int,
        progress: Callable[[int], Any],
        keywords: bool | None = None,
        tokenizer: str | None = None,
    ) -> list[str]:
        """Merge segments, drop removed documents, and delete the files that the catalog does not reference.

        Checksums are compared before bytes are copied. A damaged segment stays as it is, for `verify` to report; a
        message for each is returned. `progress` gets the number of documents of each step.
        """
        with self.transaction() as transaction:
            lost = self._lost()
            damages = [f"{self.path}/segments/{name}: {reason}" for name, reason in lost.items()]
            transaction.compact_keywords(keywords, tokenizer, progress)
            for replaced, merged in transaction.prepare(self._merged_segments(max_tokens, damages)):
                transaction.replace(replaced, merged)
                progress(len(merged))
        # If another writer holds the write lock for too long, the next compaction deletes the garbage.
        with suppress(StorageError):
            self._delete_garbage(spared=lost.keys())
        return damages

    def _merged_segments(
        self, max_tokens: int, damages: list[str]
    ) -> Iterator[tuple[list[tuple[SegmentRow, Part]], Segment]]:
        """Merge consecutive segments, up to `max_tokens` tokens; yield those that were merged, and the merged one.

        A segment stays as it is if it has no removed documents and at least ``max_tokens / 2`` tokens, or if it does
        not match its checksums; the reason is then appended to `damages`.
        """
        run: list[tuple[SegmentRow, Part]] = []
        for state in [*self.snapshot().segments, None]:
            if state is None or isinstance(state.part, CorruptedIndexError):
                part = None
            else:
                part = state.part
            if state is not None and part is None:
                damages.append(str(state.part))
            elif state is not None:
                found = []
                is_due = state.row.removed or 2 * state.row.tokens < max_tokens
                if is_due:
                    found = self._store.find_damage(state.row.name, state.row.files)
                    damages += [f"{self.path}/{file} is damaged: {reason}" for file, reason in found]
                part = part if is_due and not found else None
            if part is None or sum(each.tokens for _, each in run) + part.tokens > max_tokens:
                if len(run) > 1 or (run and run[0][0].removed):
                    yield run, Segment.merge([each for _, each in run], self.scratch)
                run = []
            if state is not None and part is not None:
                run.append((state.row, part))

    def _delete_garbage(self, spared: Collection[str]) -> None:
        """Delete the files of killed writers, and give the unused pages of the catalog back to the file system.

        We hold the write lock, so segments that the catalog does not reference are garbage: no other writer is about to
        commit them. `spared`: what is `_lost`.
        """
        with self._pool.writing() as begin:
            connection = begin()
            garbage = set(self._store.names()) - catalog.referenced_names(connection) - set(spared)
            for _ in range(connection.execute("PRAGMA freelist_count").fetchone()[0]):
                # Each step of this statement frees one page, and execute() takes one step only.
                connection.execute("PRAGMA incremental_vacuum")
            if garbage:  # a commit that failed may be in the log, and reference them: this one takes its place there
                catalog.write_settings(connection, generation=catalog.read_settings(connection)["generation"] + 1)
        if garbage and self._pool.is_in_place():  # otherwise these are the files of another index, moved here
            self._store.delete(garbage)

    def write_ann_data(self, arrays: Arrays | None) -> None:
        """Replace the ANN data, which may have been made from an older commit; ``None`` deletes it."""
        with self.transaction() as transaction:
            transaction.set_ann_data(arrays)

    def close(self) -> None:
        """Close the connections and free the memory."""
        self._pool.close()
        self._latest = None

    def _writing(self) -> AbstractContextManager[Callable[[], Connection]]:
        if getattr(self._held, "view", None) is not None:
            raise InvalidArgumentError("cannot write within snapshot(); leave its with block first.")
        return self._pool.writing()

    def _delete_unreferenced(self, names: Sequence[str]) -> None:
        """Delete the files of those segments that the catalog does not reference.

        The outcome of the transaction does not tell: in the catalog of a stranger two rows may name one segment.
        """
        if not names:
            return
        with suppress(LatelierError):
            with self._pool.reading() as connection:
                unreferenced = set(names) - catalog.referenced_names(connection)
            if self._pool.is_in_place():  # otherwise these are the files of another index, which was moved here
                self._store.delete(unreferenced)

    def _configure(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored configuration; for a new index, write it first."""
        where = str(self.path)
        # Looked for before the catalog is read: another process may be making the index.
        has_segments = self.read_only and bool(self._store.names())
        stored = self.ask(catalog.read_configuration, where)
        if stored is None and self.path is not None and self.read_only:
            raise _without_log(where) if has_segments else no_index(self.path)
        if stored is None:
            with self._pool.writing() as begin:
                # Another process may have written its configuration meanwhile.
                stored = catalog.read_configuration(begin(), where)
                if stored is None:
                    if self._store.names():
                        raise _without_log(where)
                    stored = catalog.create(begin(), dict(configuration))
        if stored.get("kind") != configuration.get("kind", stored.get("kind")):
            raise IndexFormatError(
                f"the index in {where} is of kind {stored.get('kind')!r}, not {configuration['kind']!r}; "
                "indexes.open(path) opens both kinds."
            )
        if isinstance(self._pool, FilePool):
            self._pool.uid = json.dumps(stored.get("uid"))
        return stored


def _without_log(where: str) -> CorruptedIndexError:
    return CorruptedIndexError(
        f"the catalog of the index in {where} is empty, but there are segments: its file {CATALOG}-wal is missing, "
        "which held what had not been written to the catalog yet. Copy the folder again with all of its files."
    )


def stored_settings(path: Path) -> dict[str, Any]:
    """Return the configuration of the index in a folder; raise `IndexFormatError` if it holds none."""
    storage = Storage(path, {}, lambda dim, names: {}, read_only=True)
    storage.close()
    return storage.configuration


def _catalog_damages(connection: Connection) -> Iterator[Damage]:
    """Yield the damages of the catalog; raise `CorruptedIndexError` at one that makes further checks impossible."""
    catalog.check_catalog(connection)
    found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    if found[0] != "ok":
        yield Damage(CATALOG, found[0], ())
        return
    for table in COLUMNS:
        rows = connection.execute(f"SELECT * FROM {table}")
        count = sum(row[-1] != row_checksum(table, row[:-1]) for row in rows)
        if count:
            yield Damage(CATALOG, f"{count:,} rows of its table {table!r} do not match their checksums", ())
    ids = list(dict.fromkeys(_damaged_documents(connection)))
    if ids:
        yield Damage(CATALOG, "ids, texts or metadata do not match their checksums", tuple(ids))
    counts = connection.execute(
        "SELECT (SELECT count(*) FROM document), (SELECT count(*) FROM content), "
        "(SELECT count(*) FROM document JOIN content USING (number)), "
        "(SELECT coalesce(sum(documents), 0) FROM segment)"
    ).fetchone()
    if len(set(counts)) > 1:
        text = "its counts differ: {} rows of 'document', {} rows of 'content', {} documents in both, {} in segments"
        yield Damage(CATALOG, text.format(*counts), ())
    counts = connection.execute(
        "SELECT (SELECT coalesce(sum(passages), 0) FROM document), (SELECT count(*) FROM passage), "
        "(SELECT count(*) FROM document JOIN passage ON passage.number >= document.number "
        "AND passage.number < document.number + document.passages)"
    ).fetchone()
    if len(set(counts)) > 1:
        text = "its counts of passages differ: {} of all documents, {} rows of 'passage', {} of them of a document"
        yield Damage(CATALOG, text.format(*counts), ())
    (rows,) = connection.execute("SELECT coalesce(sum(max(passages, 1)), 0) FROM document").fetchone()
    (held,) = connection.execute("SELECT coalesce(sum(rows - removed), 0) FROM segment").fetchone()
    if rows != held:
        yield Damage(CATALOG, f"its segments hold {held} documents and passages, and its documents have {rows}", ())
    for row in catalog.read_segments(connection):
        catalog.tombstones(connection, row)


def _blocks(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Yield rows in blocks, which end as soon as their texts are long."""
    block: list[Sequence[Any]] = []
    length = 0
    for row in rows:
        block.append(row)
        length += _ROW_TEXT + sum(len(value) for value in row if isinstance(value, str))
        if length > _CHECKED_TEXT:
            yield block
            block = []
            length = 0
    if block:
        yield block


def _damaged_documents(connection: Connection) -> Iterator[Id]:
    """Yield the ids of documents whose row in ``document`` or ``content`` differs from its checksum."""
    fields = [field.column for field in known_fields(connection)]
    columns = ["checksum", "number", "id", "passages", *fields]
    documents = connection.execute(f"SELECT {', '.join(columns)} FROM document")
    for block in _blocks(documents):
        written, row_ids, ids, passages, *values = zip(*block, strict=True)
        expected = document_checksums(row_ids, ids, passages, dict(zip(fields, values, strict=True)))
        yield from (id for id, one, other in zip(ids, written, expected, strict=True) if one != other)
    contents = connection.execute(
        "SELECT content.checksum, number, id, metadata, text FROM document JOIN content USING (number)"
    )
    for block in _blocks(contents):
        written, row_ids, ids, metadata, texts = zip(*block, strict=True)
        expected = content_checksums(row_ids, ids, metadata, texts)
        yield from (id for id, one, other in zip(ids, written, expected, strict=True) if one != other)
