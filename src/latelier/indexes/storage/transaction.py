"""`Transaction`: the changes of one writing call, of which readers see all or none.

Inserted documents become a new segment, removed ones leave tombstones, and small segments are merged. Many small
writes would otherwise leave many small segments, each with a cost in every search. So an insert merges the trailing
segments that have at most twice as many tokens as what it writes, which grows with each of them, up to a limit. Each
segment is then more than twice as large as the next one: a thousand single documents make about ten segments, and
each document has been rewritten about ten times.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np

from latelier.errors import CorruptedIndexError, EmbeddingsError, LatelierError
from latelier.indexes.catalog import document_rows, segment_rows
from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.pool import ConnectionPool
from latelier.indexes.catalog.rows import damaged
from latelier.indexes.catalog.segment_rows import AnnDataRow, SegmentRow
from latelier.indexes.catalog.settings import read_setting, write_setting
from latelier.indexes.catalog.upgrade import upgrade
from latelier.indexes.catalog.values import check_known, duplicate_ids
from latelier.indexes.inputs import DocumentBatch
from latelier.indexes.results import Id
from latelier.indexes.storage.segments import Arrays, Part, Segment
from latelier.indexes.storage.store import MemoryStore, SegmentStore

__all__ = ["Transaction", "referenced_names"]

T = TypeVar("T")


class Transaction:
    """The changes of one writing call.

    It lives within ``with Transaction.open(pool, store) as transaction:``

    1. The block begins when there is no other writer. Readers go on.
    2. The first change begins the transaction of the catalog. From here on, readers of an index in memory wait, so
       what takes long is done before, see `prepare`. Readers of an index on disk never wait.
    3. Each change writes the files of new segments, and then the rows of the catalog that refer to them.
    4. At the end of the block the catalog commits, and readers see all changes. Then the files of segments that were
       dropped are deleted. If an error leaves the block, the catalog rolls back, and then the files that were written
       are deleted.

    A process that is killed leaves the index as the last commit has made it, and at most files that `compact` deletes.

    Parameters
    ----------
    begin
        Begins the transaction of the catalog, and returns its connection.
    store
        Where segments are written.

    Attributes
    ----------
    written, dropped
        Names in the store that nothing refers to if the transaction fails, and if it succeeds.
    """

    def __init__(self, begin: Callable[[], Connection], store: SegmentStore) -> None:
        self.written: list[str] = []
        self.dropped: list[str] = []
        self._begin = begin
        self._store = store
        self._started: Connection | None = None
        # The state after the changes so far.
        self._rows: list[SegmentRow] = []
        self._dim: int | None = None
        # The number of the first document that this transaction inserts, and of the next one.
        self._first_number = self._next_number = 0

    @classmethod
    @contextmanager
    def open(cls, pool: ConnectionPool, store: SegmentStore) -> Iterator[Transaction]:
        """Wait until no one else writes, and open a transaction that commits at the end of the ``with`` block.

        Parameters
        ----------
        pool
            Connections to the catalog.
        store
            Where segments are written.
        """
        transaction: Transaction | None = None
        try:
            with pool.writing() as begin:
                transaction = cls(begin, store)
                yield transaction
                transaction._make_generation()
        except BaseException:
            if transaction is not None:
                _delete_unreferenced(pool, store, transaction.written)
            raise
        _delete_unreferenced(pool, store, transaction.dropped)

    def prepare(self, items: Iterable[T]) -> Iterator[T]:
        """Return an iterator over items that take long to make.

        Of an index in memory, all are made at once: before the first change, so that no reader waits for them.
        """
        return iter(list(items)) if isinstance(self._store, MemoryStore) else iter(items)

    def insert(self, batch: DocumentBatch, *, replace: bool, max_tokens: int) -> None:
        """Insert documents as a segment, merged with small segments before it.

        Parameters
        ----------
        batch
            At least one document.
        replace
            Remove documents of the same ids that were in the index before this transaction.
        max_tokens
            Tokens up to which segments are merged.

        Raises
        ------
        DuplicateIdError
            If an id comes twice, or is in the index already and not to be replaced.
        EmbeddingsError
            If the dim is not that of the index.
        """
        connection = self._start()
        ids = [document.id for document in batch.documents]
        self._check_dim(batch.dim, ids[0])
        self._remove(self._find_replaced(ids, replace).values())
        numbers = np.arange(self._next_number, self._next_number + len(ids))
        segment = Segment.build(numbers, ids, batch.lengths, batch.arrays)
        small = self._take_small_segments(segment.tokens, max_tokens)
        document_rows.insert_documents(connection, self._next_number, batch.documents)
        self._next_number += len(ids)
        self._write(Segment.merge([*small, Part(segment, np.arange(len(ids)))]) if small else segment)

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove documents; a segment of which no document is left is dropped.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """
        if ids:
            found = document_rows.find_numbers(self._start(), ids)
            check_known(ids, found)
            self._remove(found.values())

    def replace(self, rows: Sequence[SegmentRow], merged: Segment) -> None:
        """Replace segments by one that holds their living documents."""
        self._start()
        self._drop(rows)
        self._write(merged)
        self._rows.sort(key=lambda row: row.first)

    def set_ann_data(self, arrays: Arrays | None) -> None:
        """Replace the ANN data; ``None`` leaves the index without."""
        connection = self._start()
        before = segment_rows.read_ann_data(connection)
        if before is not None:
            self.dropped.append(before.name)
        row = None
        if arrays is not None:
            row = AnnDataRow(*self._store.write(arrays))
            self.written.append(row.name)
        segment_rows.write_ann_data(connection, row)

    def upgrade(self) -> None:
        """Bring a catalog of the first format to the newest one."""
        upgrade(self._start())

    def _start(self) -> Connection:
        """Begin the transaction of the catalog with the first change; return its connection."""
        if self._started is None:
            connection = self._begin()
            self._rows = segment_rows.read_segments(connection)
            self._dim = read_setting(connection, "dim")
            self._first_number = self._next_number = read_setting(connection, "next_number")
            if self._rows and self._next_number <= self._rows[-1].last:
                raise damaged(f"its next number is {self._next_number}, which a document has already")
            self._started = connection
        return self._started

    def _make_generation(self) -> None:
        """Count the changes, if there are any, as a new generation, by which readers notice them."""
        if self._started is not None:
            write_setting(self._started, "next_number", self._next_number)
            write_setting(self._started, "generation", int(read_setting(self._started, "generation")) + 1)

    def _check_dim(self, dim: int, id: Id) -> None:
        expected = self._dim if self._rows else dim
        if dim != expected:
            raise EmbeddingsError(
                f"document {id!r} has dim {dim}, but the index has dim {expected}; encode with one model."
            )
        if dim != self._dim:
            self._dim = dim
            write_setting(self._start(), "dim", dim)

    def _find_replaced(self, ids: list[Id], replace: bool) -> dict[Id, int]:
        """Return the documents of these ids that are in the index already, with their numbers."""
        present = document_rows.find_numbers(self._start(), ids)
        twice = [id for id, count in Counter(ids).items() if count > 1]
        twice += [id for id, number in present.items() if number >= self._first_number]
        if twice:
            raise duplicate_ids(twice, "came twice in this call; give every document an id of its own")
        if present and not replace:
            raise duplicate_ids(present, "is in the index already; update() replaces documents")
        return present

    def _take_small_segments(self, tokens: int, max_tokens: int) -> list[Part]:
        """Drop the trailing segments that are to be merged with `tokens` new ones; return their living documents."""
        parts: list[Part] = []
        taken: list[SegmentRow] = []
        for row in reversed(self._rows):
            if row.tokens > 2 * tokens or row.tokens + tokens > max_tokens:
                break
            try:
                segment = self._store.open(row, self._dim or 0)
                part = segment.living(segment_rows.tombstones(self._start(), row) if row.removed else [])
                self._store.compare_checksums(segment.arrays, row.name, row.files)
            except CorruptedIndexError:
                break  # stays as it is, for verify to report
            parts.insert(0, part)
            tokens += row.tokens
            taken.append(row)
        self._drop(taken)
        return parts

    def _remove(self, numbers: Iterable[int]) -> None:
        """Remove documents by number."""
        firsts = [row.first for row in self._rows]
        by_owner: dict[int, list[int]] = {}
        for number in sorted(numbers):
            by_owner.setdefault(bisect.bisect_right(firsts, number) - 1, []).append(number)
        for owner, owned in by_owner.items():
            row = self._rows[owner]
            if owner < 0 or owned[-1] > row.last or row.removed + len(owned) > row.documents:
                raise damaged("it names documents that are in no segment")
            self._rows[owner] = document_rows.remove_documents(self._start(), row, owned)
        self._drop([row for row in self._rows if row.removed == row.documents])

    def _drop(self, rows: Sequence[SegmentRow]) -> None:
        names = {row.name for row in rows}
        segment_rows.delete_segments(self._start(), names)
        self.dropped += names
        self._rows = [row for row in self._rows if row.name not in names]

    def _write(self, segment: Segment) -> None:
        name, files = self._store.write(segment.arrays)
        self.written.append(name)
        first, last = int(segment.numbers[0]), int(segment.numbers[-1])
        row = SegmentRow(name, first, last, len(segment), removed=0, tokens=segment.tokens, files=files)
        segment_rows.write_segment(self._start(), row)
        self._rows.append(row)


def referenced_names(connection: Connection) -> set[str]:
    """Return the names of all segments and ANN data in the catalog."""
    ann_data = segment_rows.read_ann_data(connection)
    return {row.name for row in segment_rows.read_segments(connection)} | ({ann_data.name} if ann_data else set())


def _delete_unreferenced(pool: ConnectionPool, store: SegmentStore, names: Sequence[str]) -> None:
    """Delete the files of those segments that the catalog does not name.

    The catalog is asked in any case: a commit may have happened although the disk has reported an error, and in the
    catalog of a stranger two rows may name one segment.
    """
    if not names:
        return
    with suppress(LatelierError):
        with pool.reading() as connection:
            unreferenced = set(names) - referenced_names(connection)
        if pool.is_in_place():  # otherwise these are the files of another index, which was moved here
            store.delete(unreferenced)
