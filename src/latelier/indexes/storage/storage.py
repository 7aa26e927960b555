"""The storage of an index: a catalog of documents and immutable segments, tied together by transactions.

On disk an index is a folder of ``catalog.sqlite`` (with SQLite's ``-wal`` and ``-shm`` beside it while it is open)
and ``segments/``. The catalog is the commit log: a segment counts from the commit that names it until the one that
does not, so a writer that is killed leaves at most a folder that nobody refers to. Readers work on the latest
committed snapshot and never wait for a writer. SQLite's log needs a local disk: network file systems will not do.

Nothing here knows what an index keeps of the vectors: it hands over arrays with one row per token.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from latelier.errors import CorruptedIndexError, IndexFormatError, InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.base import Parameters
from latelier.indexes.catalog import forks, schema
from latelier.indexes.catalog.connection import Connection, make_catalog
from latelier.indexes.catalog.document_rows import all_ids, find_numbers, find_records
from latelier.indexes.catalog.filters.cache import selection_key
from latelier.indexes.catalog.filters.evaluation import matching_numbers, read_filter
from latelier.indexes.catalog.folder import check_folder
from latelier.indexes.catalog.pool import ConnectionPool, FilePool, MemoryPool
from latelier.indexes.catalog.rows import CATALOG, has_checksums
from latelier.indexes.catalog.segment_rows import SegmentRow, count_documents, read_ann_data, read_segments
from latelier.indexes.catalog.settings import UserSettings, read_setting
from latelier.indexes.catalog.values import unknown_ids
from latelier.indexes.inputs import DocumentBatches, Encode
from latelier.indexes.results import Id, Record, VerifyReport
from latelier.indexes.storage.files import FileSegments, MemorySegments, Segments
from latelier.indexes.storage.segments import Layout, Part, Segment, merge_documents
from latelier.indexes.storage.snapshot import Snapshot, load_snapshot
from latelier.indexes.storage.transaction import Arrays, Merge, Writer, compaction
from latelier.indexes.storage.verification import verify

__all__ = ["Storage", "stored_settings"]

T = TypeVar("T")


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
        The index's own arrays, as it will find them in its segments.
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
        self._snapshot: Snapshot | None = None
        self._loading = forks.Lock()
        self._held = threading.local()
        self._connections: ConnectionPool
        self._segments: Segments
        if path is None:
            self._connections, self._segments = MemoryPool(), MemorySegments()
            self.read_only = False
        else:
            self.read_only = read_only or _is_unwritable(path)
            check_folder(path, create=not self.read_only)
            if not self.read_only:
                make_catalog(path / CATALOG)
            self._connections = FilePool(path / CATALOG, read_only=self.read_only)
            self._segments = FileSegments(path / "segments", layout)
        try:
            self.configuration = self._configure(configuration)
        except BaseException:
            self._connections.close()
            raise

    @property
    def settings(self) -> UserSettings:
        """What users keep with the index."""
        return UserSettings(self._ask, self._changing)

    def snapshot(self) -> Snapshot:
        """Return the latest commit."""
        return self.read(lambda connection, snapshot: None)[0]

    def read(self, question: Callable[[Connection, Snapshot], T]) -> tuple[Snapshot, T]:
        """Ask the catalog something about its latest commit; return the snapshot of the same commit as well."""
        with self._view() as (connection, snapshot):
            return snapshot, question(connection, snapshot)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let all that this thread reads meanwhile be of one commit."""
        if self._view_held() is not None:
            yield
            return
        mine = self._held.__dict__  # this thread's, also where another one closes the generator that we are in
        with self._view() as view:
            mine["view"] = view
            try:
                yield
            finally:
                del mine["view"]

    def _view_held(self) -> tuple[Connection, Snapshot] | None:
        return getattr(self._held, "view", None)

    @contextmanager
    def _view(self) -> Iterator[tuple[Connection, Snapshot]]:
        """Begin a reading transaction, with the snapshot of its commit."""
        held = self._view_held()
        while held is None:
            with self._connections.reading() as connection:
                with self._loading.current:
                    snapshot = self._snapshot = load_snapshot(connection, self._segments, self._snapshot)
                # A segment may be missing because a newer commit has merged it while we were opening it.
                if not snapshot.damaged or snapshot.generation == self._latest_generation():
                    yield connection, snapshot
                    return
        yield held

    def _latest_generation(self) -> int:
        with self._connections.reading() as connection:
            return int(read_setting(connection, "generation"))

    def select(
        self, filter: str | Sequence[str], parameters: Parameters, timeout: float | None
    ) -> tuple[Snapshot, np.ndarray]:
        """Return the latest commit and the numbers of its documents that meet a filter, ascending."""
        parsed, values = read_filter(filter, parameters)
        question = selection_key(parsed, values)

        def matching(connection: Connection, snapshot: Snapshot) -> np.ndarray:
            if not snapshot.documents:
                return np.zeros(0, "int64")  # without documents every field would be unknown

            def select() -> np.ndarray:
                return snapshot.keep_living(matching_numbers(connection, parsed, values, timeout))

            return select() if question is None else snapshot.selections.find(question, select)

        return self.read(matching)

    def find(self, ids: Sequence[Id]) -> tuple[Snapshot, np.ndarray]:
        """Return the latest commit and the numbers of documents in the order asked for.

        Raises
        ------
        UnknownIdError
            If an id is not there.
        """
        snapshot, found = self.read(lambda connection, _: find_numbers(connection, ids))
        _refuse_unknown(ids, found)
        return snapshot, np.array([found[id] for id in ids], dtype="int64")

    def records(self, ids: Sequence[Id]) -> list[Record]:
        """Return texts and metadata in the order asked for.

        Raises
        ------
        UnknownIdError
            If an id is not there.
        """
        found = self._ask(find_records, ids)
        _refuse_unknown(ids, found)
        return [found[id] for id in ids]

    def contains(self, id: Id) -> bool:
        """Whether there is a document of this id."""
        return bool(self._ask(find_numbers, [id]))

    def ids(self) -> list[Id]:
        """Return all ids in the order of insertion."""
        return self._ask(all_ids)

    def count(self) -> int:
        """Return the number of documents."""
        return self._ask(count_documents)

    def dim(self) -> int | None:
        """Return the dim of the documents, ``None`` if there are none."""
        return self._ask(lambda c: read_setting(c, "dim") if count_documents(c) else None)

    def write(
        self,
        documents: DocumentBatches,
        encode: Encode,
        merge: Merge,
        *,
        replace: bool,
        limit: int,
    ) -> None:
        """Store documents in one transaction.

        Parameters
        ----------
        documents
            What to store.
        encode, merge
            Make the arrays of a batch, and of the documents of several parts.
        replace
            Replace documents that are there; otherwise they are an error.
        limit
            Numbers of vectors up to which segments are merged.
        """
        with self._writing(merge) as begin:
            batches = documents.read(self.dim(), encode)
            if self.path is None:
                # What takes long is done before begin() makes readers wait; memory has to hold it all anyway.
                batches = iter(list(batches))
            for batch in forks.iterate_outside(batches):
                begin().insert(batch, replace=replace, limit=limit // batch.dim)

    def remove(self, ids: Sequence[Id], merge: Merge) -> None:
        """Remove documents in one transaction.

        Raises
        ------
        UnknownIdError
            If an id is not there.
        """
        with self._writing(merge) as begin:
            found = self._ask(find_numbers, ids)
            _refuse_unknown(ids, found)
            if found:
                begin().remove(list(found.values()))

    def compact(self, merge: Merge, *, limit: int, progress: Callable[[int], Any]) -> list[str]:
        """Merge segments up to `limit` tokens, drop removed documents, and delete what nobody refers to.

        Checksums are compared of all that is copied. A damaged segment stays as it is, for `verify` to report. A
        catalog of the first format is brought up to date.

        Returns
        -------
        list of str
            What is damaged.
        """
        damages: list[str] = []

        def is_whole(row: SegmentRow, part: Part | CorruptedIndexError) -> bool:
            try:
                if not isinstance(part, Part):
                    raise part
                self._segments.check(part.segment.arrays, row.name, row.files)
            except CorruptedIndexError as error:
                damages.append(str(error))
                return False
            return True

        with self._writing(merge) as begin:
            merged = (
                (rows, Segment({**merge_documents(parts), **merge(parts)}))
                for rows, parts in compaction(self.snapshot().entries(), limit, is_whole)
            )
            if self.path is None:
                merged = (pair for pair in list(merged))  # as in write
            if not self._ask(has_checksums):
                begin().upgrade()
            for rows, segment in merged:
                begin().replace(rows, segment)
                progress(len(segment))
        # As the only writer: what the catalog does not name now is not about to be named either. Should another
        # writer have come in between and be at work for long, the space is given back by the next call.
        with suppress(StorageError), self._connections.writing() as begin_transaction:
            referenced = _referenced(begin_transaction())
            self._delete(set(self._segments.names()) - referenced)
            schema.give_back_pages(begin_transaction())
        return damages

    def write_ann_data(self, arrays: Arrays | None) -> None:
        """Keep arrays that were made from the documents, in the place of earlier ones, in one transaction.

        They may be behind: nothing here compares them with the documents.

        Parameters
        ----------
        arrays
            What to keep, ``None`` for nothing.
        """
        with self._writing(lambda parts: {}) as begin:
            begin().write_ann_data(arrays)

    def check_ann_data(self, snapshot: Snapshot) -> bool:
        """Whether every byte of what `derive` has kept is the one that was written."""
        return snapshot.check_ann_data(self._segments)

    def verify(self) -> VerifyReport:
        """Read everything and compare it with what was written."""
        return verify(self._connections, self._segments)

    def close(self) -> None:
        """Give back connections and memory."""
        self._connections.close()
        self._snapshot = None

    def _configure(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        where = str(self.path)
        stored = self._ask(schema.read_configuration, where)
        if stored is None and self.read_only:
            raise IndexFormatError(f"there is no index in {where}; create one without read_only=True.")
        if stored is None:
            with self._connections.writing() as begin:
                # Another process may have been faster.
                stored = schema.read_configuration(begin(), where) or schema.create(begin(), configuration)
        if stored.get("kind") != configuration["kind"]:
            raise IndexFormatError(
                f"the index in {where} is of kind {stored.get('kind')!r}, not {configuration['kind']!r}; "
                "indexes.open(path) opens either."
            )
        return stored

    def _ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Ask the catalog one question about its latest commit."""
        held = self._view_held()
        if held is not None:
            return question(held[0], *arguments)
        with self._connections.reading() as connection:
            return question(connection, *arguments)

    @contextmanager
    def _writing(self, merge: Merge) -> Iterator[Callable[[], Writer]]:
        """Be the only writer; what was changed through the `Writer` becomes visible at the end, or not at all."""
        writers: list[Writer] = []
        try:
            with self._changing() as begin:

                def writer() -> Writer:
                    if not writers:
                        writers.append(Writer(begin(), self._segments, merge))
                    return writers[0]

                yield writer
                for used in writers:
                    used.finish()
        except BaseException:
            self._delete_unreferenced([name for used in writers for name in used.written])
            raise
        self._delete_unreferenced([name for used in writers for name in used.dropped])

    @contextmanager
    def _changing(self) -> Iterator[Callable[[], Connection]]:
        """Begin the only writing transaction, see `ConnectionPool.writing`."""
        if self._view_held() is not None:
            raise InvalidArgumentError("nothing is written within snapshot(): leave its with block first.")
        with self._connections.writing() as begin:
            yield begin

    def _delete_unreferenced(self, names: Sequence[str]) -> None:
        # Ask, rather than trust that the commit failed: a disk may report an error after it has done the work. Nor that
        # what one row of the catalog has let go is named by no other: it may be a stranger's.
        with suppress(LatelierError):
            self._delete(set(names) - self._ask(_referenced))

    def _delete(self, names: Iterable[str]) -> None:
        # Of another index that was moved into this place, nothing is garbage.
        if self._connections.is_in_place():
            self._segments.delete(names)


def stored_settings(path: Path) -> dict[str, Any]:
    """Return the configuration of the index in a folder.

    Raises
    ------
    IndexFormatError
        If there is none.
    """
    check_folder(path, create=False)
    connections = FilePool(path / CATALOG, read_only=True)
    try:
        with connections.reading() as connection:
            settings = schema.read_configuration(connection, str(path))
    finally:
        connections.close()
    if settings is None:
        raise IndexFormatError(f"there is no index in {path}; create one with indexes.Flat(path).")
    return settings


def _referenced(connection: Connection) -> set[str]:
    """Names of everything that the catalog says is there."""
    derived = read_ann_data(connection)
    return {row.name for row in read_segments(connection)} | ({derived.name} if derived else set())


def _refuse_unknown(ids: Sequence[Id], found: Container[Id]) -> None:
    unknown = [id for id in dict.fromkeys(ids) if id not in found]
    if unknown:
        raise unknown_ids(unknown)


def _is_unwritable(path: Path) -> bool:
    files = (path, path / CATALOG)
    return any(file.exists() and not os.access(file, os.W_OK) for file in files)
