"""`Storage`: the documents of one index, in a catalog and immutable segments: opening, reading, beginning a write.

On disk, an index is a folder with ``catalog.sqlite`` (and SQLite's ``-wal`` and ``-shm`` files while it is open) and
``segments/``. The catalog is the commit log: a segment belongs to the index as long as the catalog references it, so a
writer that is killed leaves at most unreferenced files. Readers see the latest commit and never wait for a writer.
SQLite's write-ahead log needs a local disk and does not work on network file systems.

The storage does not know how an index encodes vectors: it handles token arrays, with one row per token.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latelier.errors import CorruptedIndexError, IndexFormatError, InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.filters.parse import read_filter
from latelier.indexes.filters.sql import matching_rows, selection_key
from latelier.indexes.options import Parameters
from latelier.indexes.ranking import Ranking
from latelier.indexes.results import Id, Record, VerifyReport, check_known
from latelier.indexes.store.catalog import (
    UserSettings,
    count_documents,
    create,
    find_setting,
    read_configuration,
    read_setting,
    referenced_names,
)
from latelier.indexes.store.connections import (
    Connection,
    ConnectionPool,
    FilePool,
    Lock,
    MemoryPool,
    check_index_folder,
    make_catalog,
    no_index,
)
from latelier.indexes.store.integrity import CATALOG
from latelier.indexes.store.keywords import is_merged, keyword_damage, make_keywords, rank_by_keywords
from latelier.indexes.store.maintenance import delete_garbage, merged_segments, verify
from latelier.indexes.store.rows import find_numbers, find_records, has_texts, known_fields
from latelier.indexes.store.segments import (
    Arrays,
    FileStore,
    Layout,
    MemoryStore,
    Scratch,
    SegmentStore,
    Snapshot,
    load_snapshot,
)
from latelier.indexes.store.transaction import Transaction

T = TypeVar("T")


class Storage:
    """The documents of one index, in a folder (made if missing) or in memory.

    `configuration` (its ``"kind"`` names the class) and `tokenizer` are for a new index; the attributes are the stored
    ones. `read_only` is implied if the folder cannot be written. `settings`: what users store in the index.
    """

    def __init__(
        self,
        path: Path | None,
        configuration: Mapping[str, Any],
        layout: Layout,
        *,
        tokenizer: str | None = None,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.scratch = Scratch()
        self._pool: ConnectionPool
        self._store: SegmentStore
        if path is None:
            self._pool, self._store = MemoryPool(), MemoryStore()
            self.read_only = False
        else:
            self.read_only = read_only or _is_unwritable(path)
            check_index_folder(path, create=not self.read_only)
            if not self.read_only:
                make_catalog(path / CATALOG)
            self._pool = FilePool(path / CATALOG, read_only=self.read_only)
            self._store = FileStore(path / "segments", layout)
        self._latest: Snapshot | None = None
        self._loading = Lock()
        self._held = threading.local()  # the view that each thread holds
        self.settings = UserSettings(self.ask, self._writing)
        try:
            self.configuration = self._configure(configuration, tokenizer)
        except BaseException:
            self._pool.close()
            raise

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
                if not snapshot.damaged or snapshot.generation == self._latest_generation():
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

    def _latest_generation(self) -> int:
        with self._pool.reading() as connection:
            return int(read_setting(connection, "generation"))

    def select(
        self, filter: str | Sequence[str], parameters: Parameters, timeout: float | None
    ) -> tuple[Snapshot, np.ndarray]:
        """Return the snapshot of the commit, and the row ids of its documents that meet a user's filter, ascending.

        `timeout`: seconds in which the filter must be evaluated; ``None`` for no limit.
        """
        parsed, values = read_filter(filter, parameters)
        key = selection_key(parsed, values)
        with self.view() as (connection, snapshot):
            if not snapshot.documents:
                return snapshot, np.zeros(0, "int64")  # an empty index has no fields, so no filter could name one

            def select() -> np.ndarray:
                restricted_to = connection.authorizer.restricted_to
                found = matching_rows(connection, parsed, values, timeout, known_fields(connection), restricted_to)
                return snapshot.keep_live(found)

            return snapshot, select() if key is None else snapshot.selections.find(key, select)

    def rank_by_keywords(self, texts: Sequence[str], k: int, allowed: np.ndarray | None) -> list[Ranking]:
        """Return the `k` best documents of each query by keywords; `allowed` are row ids, ascending, None for all."""
        with self.view() as (connection, snapshot):
            k = min(k, max(1, snapshot.documents))
            if snapshot.documents and not has_texts(connection):
                raise without_texts()
            rankings = [rank_by_keywords(connection, text, k, allowed) for text in texts]
            numbers = np.unique(np.concatenate([np.zeros(0, "int64"), *(ranking.row_ids for ranking in rankings)]))
            if len(snapshot.keep_live(numbers)) < len(numbers):
                raise keyword_damage("it names documents that the index does not have")
        return rankings

    def find(self, ids: Sequence[Id]) -> tuple[Snapshot, np.ndarray]:
        """Return the snapshot of the commit, and the row ids of documents in the order of `ids`, which must exist."""
        with self.view() as (connection, snapshot):
            found = find_numbers(connection, ids)
        check_known(ids, found)
        return snapshot, np.array([found[id] for id in ids], dtype="int64")

    def records(self, ids: Sequence[Id]) -> list[Record]:
        """Return texts and metadata, in the order of `ids`, which must exist."""
        found = self.ask(find_records, ids)
        check_known(ids, found)
        return [found[id] for id in ids]

    def setting(self, name: str) -> Any:
        """Return one of the index's own settings; ``None`` if there is none of this name."""
        found = self.ask(find_setting, name)
        return None if found is None else found[0]

    def dim(self) -> int | None:
        """Return the dimension of the token vectors; ``None`` if there is no document."""
        return self.ask(lambda c: read_setting(c, "dim") if count_documents(c) else None)

    def fields(self) -> list[str]:
        """Return the keys of the metadata that filters can name, sorted."""
        return sorted(field.spelling for field in self.ask(known_fields))

    def check_ann_data(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot has ANN data, each array of which matches its checksum."""
        state = snapshot.ann_state
        if state is None or isinstance(state.arrays, CorruptedIndexError):
            return False
        try:
            self._store.compare_checksums(state.arrays, state.row.name, state.row.files)
        except CorruptedIndexError:
            return False
        return True

    def verify(self) -> VerifyReport:
        """Read all files and compare them with their checksums."""
        return verify(self._pool, self._store)

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
        message for each is returned. `progress`: called with the number of documents of each merged segment, and of
        each step of making a keyword index; `keywords`, `tokenizer`: see `Transaction.compact_keywords`.
        """
        with self.transaction() as transaction:
            damages: list[str] = []
            merged_ones = merged_segments(self.snapshot(), self._store, max_tokens, self.scratch, damages)
            if keywords is not None or not self.ask(is_merged):
                transaction.compact_keywords(keywords, tokenizer, progress)
            for rows, merged in transaction.prepare(merged_ones):
                transaction.replace(rows, merged)
                progress(len(merged))
        # If another writer holds the write lock for too long, the next compaction deletes the garbage.
        with suppress(StorageError):
            delete_garbage(self._pool, self._store)
        return damages

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
                unreferenced = set(names) - referenced_names(connection)
            if self._pool.is_in_place():  # otherwise these are the files of another index, which was moved here
                self._store.delete(unreferenced)

    def _configure(self, configuration: Mapping[str, Any], tokenizer: str | None) -> dict[str, Any]:
        """Return the stored configuration; for a new index, write it first."""
        where = str(self.path)
        # Looked for before the catalog is read: another process may be making the index.
        has_segments = self.read_only and bool(self._store.names())
        stored = self.ask(read_configuration, where)
        if stored is None and has_segments:
            raise _without_log(where)
        if stored is None and self.read_only:
            raise IndexFormatError(f"there is no index in {where}; create one without read_only=True.")
        if stored is None:
            with self._pool.writing() as begin:
                # Another process may have written its configuration meanwhile.
                stored = read_configuration(begin(), where)
                if stored is None:
                    if self._store.names():
                        raise _without_log(where)
                    stored = create(begin(), dict(configuration))
                    if tokenizer is not None:
                        make_keywords(begin(), tokenizer)
        if stored.get("kind") != configuration["kind"]:
            raise IndexFormatError(
                f"the index in {where} is of kind {stored.get('kind')!r}, not {configuration['kind']!r}; "
                "indexes.open(path) opens both kinds."
            )
        return stored


def _without_log(where: str) -> CorruptedIndexError:
    return CorruptedIndexError(
        f"the catalog of the index in {where} is empty, but there are segments: its file {CATALOG}-wal is missing, "
        "which held what had not been written to the catalog yet. Copy the folder again with all of its files."
    )


def without_texts() -> LatelierError:
    """Return the error for a search by keywords in an index of documents without texts."""
    return LatelierError(
        "no document of this index has a text, so keywords cannot find any; add documents with texts=, or search with "
        "mode='vectors'."
    )


def stored_settings(path: Path) -> dict[str, Any]:
    """Return the configuration of the index in a folder; raise `IndexFormatError` if it holds none."""
    check_index_folder(path, create=False)
    has_segments = bool(FileStore(path / "segments", lambda dim: {}).names())
    pool = FilePool(path / CATALOG, read_only=True)
    try:
        with pool.reading() as connection:
            configuration = read_configuration(connection, str(path))
    finally:
        pool.close()
    if configuration is None:
        raise _without_log(str(path)) if has_segments else no_index(path)
    return configuration


def _is_unwritable(path: Path) -> bool:
    files = (path, path / CATALOG)
    return any(file.exists() and not os.access(file, os.W_OK) for file in files)
