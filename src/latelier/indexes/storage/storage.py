"""`Storage`: the documents of one index, in a catalog and immutable segments: opening, reading, beginning a write.

On disk an index is a folder of ``catalog.sqlite`` (with SQLite's ``-wal`` and ``-shm`` beside it while it is open)
and ``segments/``. The catalog is the commit log: a segment belongs to the index as long as the catalog names it, so a
writer that is killed leaves at most a folder that the catalog does not name. Readers see the latest commit and never
wait for a writer. SQLite's log needs a local disk: network file systems will not do.

The storage does not know what an index keeps of the vectors: it handles arrays with one row per token.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from latelier.errors import IndexFormatError, InvalidArgumentError, StorageError
from latelier.indexes.base import Parameters
from latelier.indexes.catalog import document_rows, schema
from latelier.indexes.catalog.connection import Connection, make_catalog
from latelier.indexes.catalog.filters.cache import selection_key
from latelier.indexes.catalog.filters.evaluation import matching_numbers, read_filter
from latelier.indexes.catalog.folder import check_index_folder
from latelier.indexes.catalog.pool import ConnectionPool, FilePool, MemoryPool
from latelier.indexes.catalog.rows import CATALOG, has_checksums
from latelier.indexes.catalog.segment_rows import count_documents
from latelier.indexes.catalog.settings import UserSettings, read_setting
from latelier.indexes.catalog.values import check_known
from latelier.indexes.results import Id, Record, VerifyReport
from latelier.indexes.storage.compaction import Compaction, delete_garbage
from latelier.indexes.storage.segments import Arrays, Layout
from latelier.indexes.storage.snapshot import Snapshot
from latelier.indexes.storage.store import FileStore, MemoryStore, SegmentStore
from latelier.indexes.storage.transaction import Transaction
from latelier.indexes.storage.verification import verify
from latelier.indexes.storage.views import Views

__all__ = ["Storage", "stored_settings"]


class Storage:
    """The documents of one index.

    Parameters
    ----------
    path
        The index's folder, made if it does not exist; ``None`` for memory.
    configuration
        That of a new index, JSON values; the attribute of this name is what is stored. ``"kind"`` names the class
        that reads it.
    layout
        The index's own arrays.
    read_only
        Never write. Set by itself where the folder cannot be written.

    Raises
    ------
    IndexFormatError
        If the folder holds something else, another kind of index, or one of a newer version.
    """

    def __init__(
        self, path: Path | None, configuration: Mapping[str, Any], layout: Layout, *, read_only: bool = False
    ) -> None:
        self.path = path
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
        self._views = Views(self._pool, self._store)
        try:
            self.configuration = self._configure(configuration)
        except BaseException:
            self._pool.close()
            raise

    # Reading: what is returned belongs to the latest commit, or to the one that this thread holds.

    def snapshot(self) -> Snapshot:
        """Return the commit, opened for searching."""
        with self._views.open() as view:
            return view.snapshot

    def held(self) -> AbstractContextManager[None]:
        """Let all reads of this thread within a ``with`` block see one commit."""
        return self._views.hold()

    def select(
        self, filter: str | Sequence[str], parameters: Parameters, timeout: float | None
    ) -> tuple[Snapshot, np.ndarray]:
        """Return the commit and the numbers of its documents that meet a filter, ascending."""
        parsed, values = read_filter(filter, parameters)
        key = selection_key(parsed, values)
        with self._views.open() as (connection, snapshot):
            if not snapshot.documents:
                return snapshot, np.zeros(0, "int64")  # without documents every field would be unknown

            def select() -> np.ndarray:
                return snapshot.keep_living(matching_numbers(connection, parsed, values, timeout))

            return snapshot, select() if key is None else snapshot.selections.find(key, select)

    def find(self, ids: Sequence[Id]) -> tuple[Snapshot, np.ndarray]:
        """Return the commit and the numbers of documents, in the order of `ids`.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """
        with self._views.open() as (connection, snapshot):
            found = document_rows.find_numbers(connection, ids)
        check_known(ids, found)
        return snapshot, np.array([found[id] for id in ids], dtype="int64")

    def records(self, ids: Sequence[Id]) -> list[Record]:
        """Return texts and metadata, in the order of `ids`.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """
        found = self._views.ask(document_rows.find_records, ids)
        check_known(ids, found)
        return [found[id] for id in ids]

    def contains(self, id: Id) -> bool:
        """Whether there is a document of this id."""
        return bool(self._views.ask(document_rows.find_numbers, [id]))

    def ids(self) -> list[Id]:
        """Return all ids in the order of insertion."""
        return self._views.ask(document_rows.all_ids)

    def count(self) -> int:
        """Return the number of documents."""
        return self._views.ask(count_documents)

    def dim(self) -> int | None:
        """Return the dim of the documents, ``None`` if there are none."""
        return self._views.ask(lambda c: read_setting(c, "dim") if count_documents(c) else None)

    def check_ann_data(self, snapshot: Snapshot) -> bool:
        """Whether there is ANN data, each byte of which is the one that was written."""
        return snapshot.check_ann_data(self._store)

    def verify(self) -> VerifyReport:
        """Read everything and compare it with what was written."""
        return verify(self._pool, self._store)

    # Writing: one call is one transaction.

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a transaction, which commits at the end of the ``with`` block."""
        self._check_not_held()
        return Transaction.open(self._pool, self._store)

    def compact(self, *, max_tokens: int, progress: Callable[[int], Any]) -> list[str]:
        """Merge segments, drop removed documents, and delete the files that the catalog does not name.

        Checksums are compared before bytes are copied. A damaged segment stays as it is, for `verify` to report. A
        catalog of the first format is brought to the newest one.

        Parameters
        ----------
        max_tokens
            Tokens up to which segments are merged.
        progress
            Called with the number of documents of each merged segment.

        Returns
        -------
        list of str
            What is damaged.
        """
        with self.transaction() as transaction:
            compaction = Compaction(self.snapshot(), self._store, max_tokens)
            if not self._views.ask(has_checksums):
                transaction.upgrade()
            for rows, merged in transaction.prepare(compaction.merged()):
                transaction.replace(rows, merged)
                progress(len(merged))
        # If another writer is at work for long by now, the garbage is left to the next call.
        with suppress(StorageError):
            delete_garbage(self._pool, self._store)
        return compaction.damages

    def write_ann_data(self, arrays: Arrays | None) -> None:
        """Replace the ANN data in a transaction of its own; ``None`` leaves the index without.

        It may belong to an older commit: nothing here compares it with the documents.
        """
        with self.transaction() as transaction:
            transaction.set_ann_data(arrays)

    @property
    def settings(self) -> UserSettings:
        """What users keep with the index; each assignment is a transaction."""
        return UserSettings(self._views.ask, self._begin_setting)

    def close(self) -> None:
        """Give back connections and memory."""
        self._pool.close()
        self._views.close()

    def _begin_setting(self) -> AbstractContextManager[Callable[[], Connection]]:
        self._check_not_held()
        return self._pool.writing()

    def _check_not_held(self) -> None:
        if self._views.held is not None:
            raise InvalidArgumentError("nothing is written within snapshot(): leave its with block first.")

    def _configure(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored configuration; that of a new index is written first."""
        where = str(self.path)
        stored = self._views.ask(schema.read_configuration, where)
        if stored is None and self.read_only:
            raise IndexFormatError(f"there is no index in {where}; create one without read_only=True.")
        if stored is None:
            with self._pool.writing() as begin:
                # Another process may have been faster.
                stored = schema.read_configuration(begin(), where) or schema.create(begin(), configuration)
        if stored.get("kind") != configuration["kind"]:
            raise IndexFormatError(
                f"the index in {where} is of kind {stored.get('kind')!r}, not {configuration['kind']!r}; "
                "indexes.open(path) opens either."
            )
        return stored


def stored_settings(path: Path) -> dict[str, Any]:
    """Return the configuration of the index in a folder.

    Raises
    ------
    IndexFormatError
        If there is none.
    """
    check_index_folder(path, create=False)
    pool = FilePool(path / CATALOG, read_only=True)
    try:
        with pool.reading() as connection:
            configuration = schema.read_configuration(connection, str(path))
    finally:
        pool.close()
    if configuration is None:
        raise IndexFormatError(f"there is no index in {path}; create one with indexes.Flat(path).")
    return configuration


def _is_unwritable(path: Path) -> bool:
    files = (path, path / CATALOG)
    return any(file.exists() and not os.access(file, os.W_OK) for file in files)
