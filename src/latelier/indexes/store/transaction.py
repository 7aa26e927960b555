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
from latelier.indexes.results import check_known, duplicate_ids
from latelier.indexes.store import catalog, rows, sources
from latelier.indexes.store.catalog import FolderRow, SegmentRow
from latelier.indexes.store.connections import Connection
from latelier.indexes.store.integrity import MAX_DIM, damaged
from latelier.indexes.store.keywords import checked_tokenizer
from latelier.indexes.store.postings import Postings
from latelier.indexes.store.rows import DocumentBatch
from latelier.indexes.store.segments import Arrays, MemoryStore, Part, Scratch, Segment, SegmentStore
from latelier.indexes.store.sources import Changes, unseen
from latelier.indexes.words import DEFAULT_TOKENIZER, document_terms
from latelier.utils.batching import consecutive
from latelier.utils.values import Id

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
        self.generation = 0  # after `finish`
        self._begin = begin
        self._store = store
        self._scratch = scratch
        # The connection of the catalog's transaction; the settings, and the segments after the changes so far.
        self._started: Connection | None = None
        self._settings: dict[str, Any] = {}
        self._rows: list[SegmentRow] = []
        self._first_number = 0  # of the documents that this transaction inserts

    def prepare(self, items: Iterable[T]) -> Iterator[T]:
        """Return an iterator over items that are slow to compute.

        For an index in memory, all items are computed before the first change, so that readers do not wait for them.
        """
        if isinstance(self._store, MemoryStore):
            return iter(list(items))
        return iter(items)

    def insert(
        self, batch: DocumentBatch, *, replace: bool | None, max_tokens: int, numbers: np.ndarray | None = None
    ) -> list[int]:
        """Insert documents, at least one, as a segment, merged with small segments before it.

        `replace`: remove documents with the same ids that were in the index before this transaction; None removes those
        alone that the writer has seen, and leaves other ones as they are: returns the positions of what was not stored
        therefore. `max_tokens`: of a merged segment. `numbers` ascend and are above all before, with room for passages;
        None takes the next ones.
        """
        connection = self._start()
        batch.documents.number(rows.next_id(connection))
        left: list[int] = []
        if replace is None:
            left = unseen(batch.documents.ids, batch.documents.seen, rows.find_numbers(connection, batch.documents.ids))
        if left:
            kept = [i for i in range(len(batch.documents)) if i not in {*left}]
            if not kept:
                return left
            batch = batch.select(kept)
            numbers = None if numbers is None else numbers[kept]
        dropped = len(self.dropped)
        ids = batch.documents.ids
        following = self._settings["next_number"]
        if not 1 <= batch.dim <= MAX_DIM:
            raise EmbeddingsError(
                f"document {ids[0]!r} has dim {batch.dim:,}; an index holds dims of 1 to {MAX_DIM:,}."
            )
        if self._rows and batch.dim != self._settings["dim"]:
            raise EmbeddingsError(
                f"document {ids[0]!r} has dim {batch.dim}, but the index has dim {self._settings['dim']}; encode with "
                "one model."
            )
        self._settings["dim"] = batch.dim
        present = rows.find_numbers(connection, ids)
        if len(set(ids)) < len(ids) or max(present.values(), default=-1) >= self._first_number:
            twice = [id for id, count in Counter(ids).items() if count > 1]
            twice += [id for id, number in present.items() if number >= self._first_number]
            raise duplicate_ids(twice, "given twice in this call; give every document a different id")
        if present and replace is False:
            raise duplicate_ids(present, "in the index already", advice="update")
        if present:
            self._remove(list(present.values()))
        counts = batch.documents.rows
        if numbers is None:
            numbers = following + np.cumsum(counts) - counts
        elif numbers[0] < following or (np.diff(numbers) < counts[:-1]).any():
            raise damaged(f"its next number is {following}, but the documents to insert have lower numbers")
        segment = _new_segment(batch, numbers, counts)
        words = self._cut(batch.documents.row_texts)
        small = self._take_small_segments(segment.tokens, max_tokens)
        if small:
            parts = [*(part for _, part in small), Part(segment, np.arange(len(segment)))]
            words = self._merged_words([*(own for own, _ in small), words], parts)
            segment = Segment.merge(parts, self._scratch)
        rows.insert_documents(connection, numbers.tolist(), batch.documents)
        self._settings["next_number"] = int(numbers[-1] + counts[-1])
        self._write(segment, words)
        # No reader has seen segments that this transaction wrote and merged: their disk space is freed now.
        self._store.delete({*self.dropped[dropped:]} & {*self.written})
        return left

    def apply(self, changes: Changes) -> None:
        """Remove documents, and write where others came from, if their rows are those that were seen."""
        connection = self._start()
        found = sources.find_seen(connection, [*changes.removed, *changes.moved])
        self._remove([seen.number for id, seen in changes.removed.items() if found.get(id) == seen])
        sources.write(connection, changes, found)

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove documents, which must exist; segments without live documents are dropped."""
        if ids:
            found = rows.find_numbers(self._start(), ids)
            check_known(ids, found)
            self._remove(list(found.values()))

    def segments(self) -> list[tuple[SegmentRow, Part]]:
        """Return all segments with their live documents; raise `CorruptedIndexError` if one is damaged."""
        connection = self._start()
        found = []
        for row in self._rows:
            segment = self._store.open(row, self._settings["dim"])
            for file, reason in self._store.find_damage(row.name, row.files):
                raise CorruptedIndexError(f"{file} is damaged: {reason}")
            found.append((row, segment.live(catalog.tombstones(connection, row))))
        return found

    def replace(self, replaced: Sequence[tuple[SegmentRow, Part]], merged: Segment) -> None:
        """Replace segments with one segment that holds their live documents, and all words of these."""
        self._start()
        present = {row.name: row for row in self._rows}
        replaced = [(present[row.name], part) for row, part in replaced]
        words = self._merged_words([self._words(*each) for each in replaced], [part for _, part in replaced])
        self._drop([row for row, _ in replaced])
        self._write(merged, words)
        self._rows.sort(key=lambda row: row.first)

    def set_ann_data(self, arrays: Arrays | None) -> None:
        """Replace the ANN data; ``None`` deletes it."""
        connection = self._start()
        row = None
        before = catalog.read_ann_data(connection)
        if before is not None:
            self.dropped.append(before.name)
        if arrays is not None:
            row = FolderRow(*self._store.write(arrays))
            self.written.append(row.name)
        catalog.write_ann_data(connection, row)

    @property
    def is_empty(self) -> bool:
        """Whether there are no documents after the changes so far."""
        self._start()
        return not self._rows

    @property
    def next_number(self) -> int:
        """The row id of the next document."""
        self._start()
        return int(self._settings["next_number"])

    def skip_number(self) -> int:
        """Leave out a row id, so that no document has it; return the next one."""
        self._settings["next_number"] = self.next_number + 1
        return self.next_number

    def setting(self, name: str) -> Any:
        """Return one of the index's own settings; None if there is none of this name."""
        return catalog.read_setting(self._start(), name)

    def set_setting(self, name: str, value: Any) -> None:
        """Set one of the index's own settings, a JSON value, in the same commit as all other changes."""
        catalog.write_settings(self._start(), **{name: value})

    def set_missing(self, name: str, make: Callable[[], Any]) -> Any:
        """Return one of the index's own settings; if there is none of this name, make it first."""
        found = self.setting(name)
        if found is None:
            found = make()
            self.set_setting(name, found)
        return found

    def make_fields(self, keys: Iterable[str]) -> None:
        """Let filters name metadata keys that no document has yet."""
        rows.make_fields(self._start(), keys)

    def compact_keywords(self, keywords: bool | None, tokenizer: str | None, progress: Callable[[int], Any]) -> None:
        """Make the words of all segments again from their texts, or drop them.

        `keywords`: True makes them, False drops them, None leaves them. `tokenizer` None is the present one, or the
        default. A segment that cannot be read keeps its words, unless another tokenizer makes them worthless.
        """
        if keywords is None:
            return
        connection = self._start()
        before = self._settings["tokenizer"]
        self._settings["tokenizer"] = (tokenizer or before or DEFAULT_TOKENIZER) if keywords else None
        for place, row in enumerate(self._rows):
            words = None
            if keywords:
                try:
                    words = self._words_of_texts(self._store.open(row, self._settings["dim"]))
                except CorruptedIndexError:
                    if self._settings["tokenizer"] == before:
                        continue
                    raise
            if row.words is not None:
                self.dropped.append(row.words.name)
            self._rows[place] = row._replace(words=self._stored(words))
            catalog.write_segment(connection, self._rows[place])
            progress(row.documents)

    def finish(self) -> None:
        """If there are changes, increase the generation, so that readers notice the changes."""
        if self._started is not None:
            self.generation = self._settings["generation"] = self._settings["generation"] + 1
            catalog.write_settings(self._started, **self._settings)

    def _start(self) -> Connection:
        """Return the connection of the catalog's transaction; begin the transaction at the first call."""
        if self._started is None:
            connection = self._begin()
            stored = catalog.read_settings(connection)
            self._settings = {name: stored.get(name) for name in ("dim", "next_number", "generation", "tokenizer")}
            checked_tokenizer(self._settings["tokenizer"])
            self._first_number = stored["next_number"]
            self._rows = catalog.read_segments(connection)
            if self._rows and self._first_number <= self._rows[-1].last:
                raise damaged(f"its next number is {self._first_number}, but a document has this row id already")
            self._started = connection
        return self._started

    def _take_small_segments(self, tokens: int, max_tokens: int) -> list[tuple[Postings | None, Part]]:
        """Drop the last segments, which are merged with `tokens` new tokens; return their words and live documents."""
        parts: list[tuple[Postings | None, Part]] = []
        taken: list[SegmentRow] = []
        for row in reversed(self._rows):
            if row.tokens > 2 * tokens or row.tokens + tokens > max_tokens:
                break
            try:
                part = self._store.open(row, self._settings["dim"]).live(catalog.tombstones(self._start(), row))
            except CorruptedIndexError:
                break  # the damaged segment stays, and verify reports it
            if self._store.find_damage(row.name, row.files):
                break
            parts.insert(0, (self._words(row, part), part))
            tokens += row.tokens
            taken.append(row)
        self._drop(taken)
        return parts

    def _remove(self, numbers: Sequence[int]) -> None:
        connection = self._start()
        firsts = [row.first for row in self._rows]
        by_owner: dict[int, list[int]] = {}
        for number in sorted(numbers):
            by_owner.setdefault(bisect.bisect_right(firsts, number) - 1, []).append(number)
        for owner, owned in by_owner.items():
            row = self._rows[owner] if owner >= 0 else None
            row_ids = rows.expand_rows(connection, owned).tolist()
            if row is None or row_ids[-1] > row.last or row.removed + len(row_ids) > row.rows:
                raise damaged("it names documents that are in no segment")
            self._rows[owner] = rows.remove_documents(connection, row, owned, row_ids)
        self._drop([row for row in self._rows if row.removed == row.rows])

    def _drop(self, dropped: Sequence[SegmentRow]) -> None:
        for row in dropped:
            catalog.delete_segment(self._start(), row.name)
            self.dropped += [row.name] if row.words is None else [row.name, row.words.name]
        self._rows = [row for row in self._rows if row.name not in self.dropped]

    def _cut(self, texts: Iterable[str | None]) -> Postings | None:
        """Return the words of the texts of rows; None if the index has no keyword index."""
        tokenizer = self._settings["tokenizer"]
        if tokenizer is None:
            return None
        return Postings.build(None if text is None else document_terms(text, tokenizer) for text in texts)

    def _words(self, row: SegmentRow, part: Part) -> Postings | None:
        """Return the words of a segment, from its texts if they are damaged; None without a keyword index."""
        if self._settings["tokenizer"] is None:
            return None
        if row.words is None:
            return Postings.build([None] * row.rows)
        try:
            found = self._store.open_words(row)
        except CorruptedIndexError:
            found = None
        if found is None or self._store.find_damage(*row.words):
            return self._words_of_texts(part.segment)
        return found

    def _words_of_texts(self, segment: Segment) -> Postings | None:
        """Return the words of the live rows of a segment, from their texts."""
        known = rows.row_texts(self._start(), np.unique(segment.numbers).tolist())
        return self._cut(_of_rows(known, segment.row_ids.tolist()))

    def _merged_words(self, words: Sequence[Postings | None], parts: Sequence[Part]) -> Postings | None:
        """Return the words of some parts of segments, in their order, given those of the segments."""
        known = [(own, part.positions) for own, part in zip(words, parts, strict=True) if own is not None]
        if not known:
            return None
        return Postings.merge(known)

    def _stored(self, words: Postings | None) -> FolderRow | None:
        """Write words into a folder; None if no row has a text."""
        if words is None or not words.has_texts:
            return None
        row = FolderRow(*self._store.write(words.arrays))
        self.written.append(row.name)
        return row

    def _write(self, segment: Segment, words: Postings | None) -> None:
        name, files = self._store.write(segment.arrays)
        self.written.append(name)
        first = int(segment.row_ids[0])
        last = int(segment.row_ids[-1])
        counts = {"rows": len(segment), "documents": segment.documents, "removed": 0, "tokens": segment.tokens}
        row = SegmentRow(name, first, last, **counts, files=files, words=self._stored(words))
        catalog.write_segment(self._start(), row)
        self._rows.append(row)


def _new_segment(batch: DocumentBatch, numbers: np.ndarray, counts: np.ndarray) -> Segment:
    """Return the segment of documents with these numbers, each of so many rows."""
    documents = batch.documents
    row_ids = consecutive(numbers, counts)
    if not any(documents.passages):
        return Segment.build(row_ids, documents.ids, batch.lengths, batch.arrays)
    passages = np.full((3, len(row_ids)), -1, dtype="int32")
    passages[0] = row_ids - np.repeat(numbers, counts)
    whole = [(-1, -1)]
    passages[1:] = np.array([each[:2] for own in documents.passages for each in own or whole], dtype="int32").T
    ids = [id for id, count in zip(documents.ids, counts.tolist(), strict=True) for _ in range(count)]
    return Segment.build(row_ids, ids, batch.lengths, batch.arrays, passages)


def _of_rows(known: Iterator[tuple[int, str]], row_ids: Sequence[int]) -> Iterator[str | None]:
    """Yield the text of each row, None for one without; both ascend by row id, and one text is in memory at a time."""
    found, text = next(known, _LAST)
    for row_id in row_ids:
        while found < row_id:
            found, text = next(known, _LAST)
        yield text if found == row_id else None


_LAST = (np.iinfo("int64").max, "")
