"""One writing transaction: documents go into new segments, removed ones leave tombstones, small segments are merged.

Many small writes would make many small segments, each with a cost in every search. So a write takes in the trailing
segments that are at most twice as large as what it writes, growing as it does, up to the size limit. Each segment is
then more than twice as large as the next one: a thousand single documents make about ten segments, and each document
has been rewritten about as often.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from latelier.errors import CorruptedIndexError, EmbeddingsError
from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.document_rows import find_numbers, insert_documents, remove_documents
from latelier.indexes.catalog.rows import damaged
from latelier.indexes.catalog.segment_rows import (
    AnnDataRow,
    SegmentRow,
    delete_segments,
    read_ann_data,
    read_segments,
    write_ann_data,
    write_segment,
)
from latelier.indexes.catalog.settings import read_setting, write_setting
from latelier.indexes.catalog.upgrade import upgrade
from latelier.indexes.catalog.values import duplicate_ids
from latelier.indexes.inputs import DocumentBatch
from latelier.indexes.results import Id
from latelier.indexes.storage.files import Segments
from latelier.indexes.storage.segments import Part, Segment, document_arrays, merge_documents
from latelier.indexes.storage.snapshot import open_part

__all__ = ["Arrays", "Merge", "Writer", "compaction"]

Arrays = dict[str, np.ndarray]
Merge = Callable[[Sequence[Part]], Arrays]


class Writer:
    """The changes of one transaction.

    Parameters
    ----------
    connection
        In its writing transaction.
    segments
        Where new segments are written.
    merge
        Makes the index's own arrays for the documents of several parts.

    Attributes
    ----------
    written, dropped
        Names of the segments that are garbage if the transaction fails, and if it succeeds.
    """

    def __init__(self, connection: Connection, segments: Segments, merge: Merge) -> None:
        self.written: list[str] = []
        self.dropped: list[str] = []
        self._connection = connection
        self._segments = segments
        self._merge = merge
        self._rows = read_segments(connection)
        self._dim = read_setting(connection, "dim")
        self._first = self._next = read_setting(connection, "next_number")
        if self._rows and self._next <= self._rows[-1].last:
            raise damaged(f"its next number is {self._next}, which a document has already")

    def insert(self, batch: DocumentBatch, *, replace: bool, limit: int) -> None:
        """Insert documents as a segment, together with what small segments it takes in.

        Parameters
        ----------
        batch
            At least one document.
        replace
            Remove documents of the same ids that were there before this transaction.
        limit
            Tokens up to which segments are merged.

        Raises
        ------
        DuplicateIdError
            If an id comes twice, or is there already and is not to be replaced.
        EmbeddingsError
            If the dim is not the one of the index.
        """
        documents = batch.documents
        self._check_dim(batch.dim, documents[0].id)
        replaced = self._check_ids([document.id for document in documents], replace)
        self.remove(list(replaced.values()))
        numbers = np.arange(self._next, self._next + len(documents))
        own = document_arrays(numbers, [document.id for document in documents], batch.lengths)
        parts = [
            *self._take_in(int(batch.lengths.sum()), limit),
            Part(Segment({**own, **batch.arrays}), np.arange(len(documents))),
        ]
        insert_documents(self._connection, self._next, documents)
        self._next += len(documents)
        if len(parts) == 1:
            self._write(parts[0].segment)
        else:
            self._write(Segment({**merge_documents(parts), **self._merge(parts)}))

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove documents; a segment with nothing left in it goes as a whole."""
        firsts = [row.first for row in self._rows]
        owners: dict[int, list[int]] = {}
        for number in sorted(numbers):
            owners.setdefault(bisect.bisect_right(firsts, number) - 1, []).append(number)
        for owner, owned in owners.items():
            row = self._rows[owner]
            if owner < 0 or owned[-1] > row.last or row.removed + len(owned) > row.documents:
                raise damaged("it names documents that are in no segment")
            self._rows[owner] = remove_documents(self._connection, row, owned)
        self._drop([row for row in self._rows if row.removed == row.documents])

    def upgrade(self) -> None:
        """Bring a catalog of the first format up to date."""
        upgrade(self._connection)

    def replace(self, rows: Sequence[SegmentRow], merged: Segment) -> None:
        """Put one segment, made of their living documents, in the place of others."""
        self._drop(rows)
        self._write(merged)
        self._rows.sort(key=lambda row: row.first)

    def write_ann_data(self, arrays: Arrays | None) -> None:
        """Put arrays made from the documents in the place of earlier ones; ``None`` leaves none."""
        before = read_ann_data(self._connection)
        if before is not None:
            self.dropped.append(before.name)
        row = None
        if arrays is not None:
            row = AnnDataRow(*self._segments.write(arrays))
            self.written.append(row.name)
        write_ann_data(self._connection, row)

    def finish(self) -> None:
        """Make the changes a new generation."""
        write_setting(self._connection, "next_number", self._next)
        write_setting(self._connection, "generation", int(read_setting(self._connection, "generation")) + 1)

    def _check_dim(self, dim: int, id: Id) -> None:
        expected = self._dim if self._rows else dim
        if dim != expected:
            raise EmbeddingsError(
                f"document {id!r} has dim {dim}, but the index has dim {expected}; encode with one model."
            )
        if dim != self._dim:
            self._dim = dim
            write_setting(self._connection, "dim", dim)

    def _check_ids(self, ids: list[Id], replace: bool) -> dict[Id, int]:
        present = find_numbers(self._connection, ids)
        twice = [id for id, count in Counter(ids).items() if count > 1]
        twice += [id for id, number in present.items() if number >= self._first]
        if twice:
            raise duplicate_ids(twice, "came twice in this call; give every document an id of its own")
        if present and not replace:
            raise duplicate_ids(present, "is in the index already; update() replaces documents")
        return present

    def _take_in(self, tokens: int, limit: int) -> list[Part]:
        """Return the living documents of the trailing segments that are to be merged, and drop those segments."""
        parts: list[Part] = []
        taken: list[SegmentRow] = []
        for row in reversed(self._rows):
            if row.tokens > 2 * tokens or row.tokens + tokens > limit:
                break
            try:
                part = open_part(self._connection, self._segments, row, self._dim)
                self._segments.check(part.segment.arrays, row.name, row.files)
            except CorruptedIndexError:
                break  # stays as it is, for verify to report
            parts.insert(0, part)
            tokens += row.tokens
            taken.append(row)
        self._drop(taken)
        return parts

    def _drop(self, rows: Sequence[SegmentRow]) -> None:
        names = {row.name for row in rows}
        delete_segments(self._connection, names)
        self.dropped += names
        self._rows = [row for row in self._rows if row.name not in names]

    def _write(self, segment: Segment) -> None:
        name, files = self._segments.write(segment.arrays)
        self.written.append(name)
        numbers = segment.numbers
        tokens = int(segment.offsets[-1])
        row = SegmentRow(name, int(numbers[0]), int(numbers[-1]), len(segment), 0, tokens, files)
        write_segment(self._connection, row)
        self._rows.append(row)


def compaction(
    entries: Iterable[tuple[SegmentRow, Part | CorruptedIndexError]],
    limit: int,
    is_whole: Callable[[SegmentRow, Part | CorruptedIndexError], bool],
) -> Iterator[tuple[list[SegmentRow], list[Part]]]:
    """Yield which segments to merge into one.

    Segments without removed documents that fill at least half of the limit stay as they are, and so do damaged ones;
    the runs between them are merged, as many as fit the limit.

    Parameters
    ----------
    entries
        All segments and their living documents, in the order of insertion.
    limit
        Tokens of a merged segment.
    is_whole
        Whether a segment may be copied; asked of those that would be.
    """
    run: list[tuple[SegmentRow, Part]] = []
    tokens = 0
    for row, part in entries:
        size = int(part.lengths.sum()) if isinstance(part, Part) else 0
        full = not row.removed and 2 * size >= limit
        stays = full or not is_whole(row, part)
        if stays or tokens + size > limit:
            yield from _merger(run)
            run, tokens = [], 0
        if not stays and isinstance(part, Part):
            run.append((row, part))
            tokens += size
    yield from _merger(run)


def _merger(run: list[tuple[SegmentRow, Part]]) -> Iterator[tuple[list[SegmentRow], list[Part]]]:
    rows, parts = [row for row, _ in run], [part for _, part in run]
    if len(rows) > 1 or (rows and rows[0].removed):
        yield rows, parts
