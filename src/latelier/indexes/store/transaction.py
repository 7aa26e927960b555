"""`Transaction`: the changes of one writing call; readers see all of them or none.

Inserted documents become a new segment, and removed ones get tombstones. Every segment costs time in every search, so
an insert also merges small segments: while the last segment has at most twice as many tokens as the new one, it is
merged into the new one, up to a limit. Each segment then has more than twice as many tokens as the next one: after a
thousand inserts of one document there are about ten segments, and each document has been rewritten about ten times.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from latelier.errors import CorruptedIndexError, EmbeddingsError
from latelier.indexes.documents import DocumentBatch
from latelier.indexes.results import Id, check_known, duplicate_ids
from latelier.indexes.store import catalog
from latelier.indexes.store import rows as document_rows
from latelier.indexes.store.catalog import (
    AnnDataRow,
    SegmentRow,
    read_setting,
    tombstones,
    write_setting,
)
from latelier.indexes.store.connections import Connection
from latelier.indexes.store.integrity import damaged
from latelier.indexes.store.keywords import (
    DEFAULT_TOKENIZER,
    drop_keywords,
    flush_keywords,
    make_keywords,
    merge_keywords,
    stored_tokenizer,
)
from latelier.indexes.store.rows import make_fields
from latelier.indexes.store.segments import Arrays, MemoryStore, Part, Scratch, Segment, SegmentStore

T = TypeVar("T")


class Transaction:
    """The changes of one writing call, made in ``with storage.transaction() as transaction``.

    The block begins when there is no other writer. Each change writes the files of new segments, then the rows that
    reference them; at the end the catalog commits, readers see all changes, and files of dropped segments are deleted.
    If the block raises, the catalog rolls back and the new files are deleted; if the commit itself raises, nothing is:
    nobody knows yet which state will be found. A killed process leaves the last commit, and files that `compact`
    deletes.
    """

    def __init__(self, begin: Callable[[], Connection], store: SegmentStore, scratch: Scratch) -> None:
        self.written: list[str] = []
        self.dropped: list[str] = []
        self._begin = begin
        self._store, self._scratch = store, scratch
        self._started: Connection | None = None
        # The segments and the dim after the changes so far.
        self._rows: list[SegmentRow] = []
        self._dim: int | None = None
        # The row id of the first document that this transaction inserts, and of the next one.
        self._first_number = self._next_number = 0

    def prepare(self, items: Iterable[T]) -> Iterator[T]:
        """Return an iterator over items that are slow to compute.

        For an index in memory, all items are computed before the first change, so that readers do not wait for them.
        """
        return iter(list(items)) if isinstance(self._store, MemoryStore) else iter(items)

    def insert(
        self, batch: DocumentBatch, *, replace: bool, max_tokens: int, numbers: np.ndarray | None = None
    ) -> None:
        """Insert documents, at least one, as a segment, merged with small segments before it.

        `replace`: remove documents with the same ids that were in the index before this transaction, which otherwise
        raise `DuplicateIdError`. `max_tokens`: maximum number of tokens of a merged segment. `numbers`: the row ids,
        ``(documents,)`` int64, ascending and above those of all documents before; None takes the next ones.
        """
        connection, dropped = self._start(), len(self.dropped)
        documents = document_rows.DocumentColumns.of(batch.documents)
        ids = documents.ids
        self._check_dim(batch.dim, ids[0])
        self._remove(self._find_replaced(ids, replace).values())
        if numbers is None:
            numbers = np.arange(self._next_number, self._next_number + len(ids))
        elif numbers[0] < self._next_number or (np.diff(numbers) <= 0).any():
            raise damaged(f"its next number is {self._next_number}, but the documents to insert have lower numbers")
        segment = Segment.build(numbers, ids, batch.lengths, batch.arrays)
        small = self._take_small_segments(segment.tokens, max_tokens)
        document_rows.insert_documents(connection, numbers.tolist(), documents)
        self._next_number = int(numbers[-1]) + 1
        self._write(Segment.merge([*small, Part(segment, np.arange(len(ids)))], self._scratch) if small else segment)
        # No reader has seen segments that this transaction wrote and merged: their disk space is freed now.
        self._store.delete(name for name in self.dropped[dropped:] if name in self.written)

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove documents, which must exist; segments without live documents are dropped."""
        if ids:
            found = document_rows.find_numbers(self._start(), ids)
            check_known(ids, found)
            self._remove(found.values())

    def remove_prefixed(self, prefixes: Sequence[str]) -> None:
        """Remove the documents whose ids are strings that begin with one of some prefixes."""
        if prefixes:
            connection = self._start()
            self._remove({n for prefix in prefixes for n in document_rows.find_prefixed(connection, prefix).values()})

    def replace(self, rows: Sequence[SegmentRow], merged: Segment) -> None:
        """Replace segments with one segment that holds their live documents."""
        self._start()
        self._drop(rows)
        self._write(merged)
        self._rows.sort(key=lambda row: row.first)

    def set_ann_data(self, arrays: Arrays | None) -> None:
        """Replace the ANN data; ``None`` deletes it."""
        connection = self._start()
        before = catalog.read_ann_data(connection)
        if before is not None:
            self.dropped.append(before.name)
        row = None
        if arrays is not None:
            row = AnnDataRow(*self._store.write(arrays))
            self.written.append(row.name)
        catalog.write_ann_data(connection, row)

    def set_setting(self, name: str, value: Any) -> None:
        """Set one of the index's own settings, a JSON value, in the same commit as all other changes."""
        write_setting(self._start(), name, value)

    def make_fields(self, keys: Iterable[str]) -> None:
        """Let filters name metadata keys that no document has yet."""
        make_fields(self._start(), keys)

    def compact_keywords(self, keywords: bool | None, tokenizer: str | None, progress: Callable[[int], Any]) -> None:
        """Make the keyword index, drop it, or merge its parts.

        `keywords`: True makes it from all texts, in place of the present one; False drops it; None merges its parts.
        `tokenizer`: tokenizer of a keyword index that is made; None for the present one, or the default. `progress`:
        called with the number of documents of each step.
        """
        connection = self._start()
        if keywords:
            name = tokenizer or stored_tokenizer(connection) or DEFAULT_TOKENIZER
            make_keywords(connection, name, progress)
        elif keywords is False:
            drop_keywords(connection)
        elif stored_tokenizer(connection) is not None:
            merge_keywords(connection)

    def _start(self) -> Connection:
        """Return the connection of the catalog's transaction; begin the transaction at the first call."""
        if self._started is None:
            connection = self._begin()
            self._rows = catalog.read_segments(connection)
            self._dim = read_setting(connection, "dim")
            self._first_number = self._next_number = read_setting(connection, "next_number")
            if self._rows and self._next_number <= self._rows[-1].last:
                raise damaged(f"its next number is {self._next_number}, but a document has this number already")
            self._started = connection
        return self._started

    def finish(self) -> None:
        """If there are changes, write the keywords, and increase the generation, so that readers notice the changes."""
        if self._started is not None:
            flush_keywords(self._started)
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
        """Return the row ids of those documents that are in the index already, by id."""
        present = document_rows.find_numbers(self._start(), ids)
        twice = [id for id, count in Counter(ids).items() if count > 1]
        twice += [id for id, number in present.items() if number >= self._first_number]
        if twice:
            raise duplicate_ids(twice, "given twice in this call; give every document a different id")
        if present and not replace:
            raise duplicate_ids(present, "in the index already", advice="update")
        return present

    def _take_small_segments(self, tokens: int, max_tokens: int) -> list[Part]:
        """Drop the last segments, which are merged with `tokens` new tokens; return their live documents."""
        parts: list[Part] = []
        taken: list[SegmentRow] = []
        for row in reversed(self._rows):
            if row.tokens > 2 * tokens or row.tokens + tokens > max_tokens:
                break
            try:
                segment = self._store.open(row, self._dim or 0)
                part = segment.live(tombstones(self._start(), row) if row.removed else [])
                self._store.compare_checksums(segment.arrays, row.name, row.files)
            except CorruptedIndexError:
                break  # the damaged segment stays, and verify reports it
            parts.insert(0, part)
            tokens += row.tokens
            taken.append(row)
        self._drop(taken)
        return parts

    def _remove(self, numbers: Iterable[int]) -> None:
        """Remove documents by row id."""
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
        catalog.delete_segments(self._start(), names)
        self.dropped += names
        self._rows = [row for row in self._rows if row.name not in names]

    def _write(self, segment: Segment) -> None:
        name, files = self._store.write(segment.arrays)
        self.written.append(name)
        first, last = int(segment.numbers[0]), int(segment.numbers[-1])
        row = SegmentRow(name, first, last, len(segment), removed=0, tokens=segment.tokens, files=files)
        catalog.write_segment(self._start(), row)
        self._rows.append(row)
