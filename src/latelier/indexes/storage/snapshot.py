"""Snapshots: the segments and removals of one commit, which answer a search by themselves.

A snapshot keeps what it has opened. A later commit makes a new snapshot, which shares all segments that are still
the same, so that following a writer costs no more than opening what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.filters.cache import SelectionCache
from latelier.indexes.catalog.segment_rows import AnnDataRow, SegmentRow, read_ann_data, read_segments, tombstones
from latelier.indexes.catalog.settings import read_setting, read_stamp
from latelier.indexes.results import Id
from latelier.indexes.storage.files import Segments
from latelier.indexes.storage.segments import Part, Segment

__all__ = ["Snapshot", "load_snapshot", "open_part"]


class _Entry(NamedTuple):
    """A segment's row, and the documents in it that are alive or why it cannot be read."""

    row: SegmentRow
    part: Part | CorruptedIndexError


class _AnnData(NamedTuple):
    """The row of derived arrays, and the arrays or why they cannot be read."""

    row: AnnDataRow
    arrays: dict[str, np.ndarray] | CorruptedIndexError


class Snapshot:
    """What one commit holds.

    Parameters
    ----------
    generation
        The commit.
    dim
        Numbers per token, ``None`` if there is no document.
    entries
        The segments in the order of insertion.
    derived
        What the index has made of its documents.

    Attributes
    ----------
    selections
        What filters have selected from it.
    stamp
        What `read_stamp` says of its commit.
    """

    def __init__(
        self, generation: int, dim: int | None, entries: Sequence[_Entry], derived: _AnnData | None = None
    ) -> None:
        self.generation = generation
        self.stamp: Any = None
        self.selections = SelectionCache()
        self._ann_data = derived
        self.dim = dim if entries else None
        self._named = {entry.row.name: entry for entry in entries}
        self._firsts = np.array([entry.row.first for entry in entries], dtype="int64")
        self._entries = list(entries)

    @cached_property
    def damaged(self) -> frozenset[str]:
        """Names of the segments, and of what was derived from them, that cannot be read."""
        names = [entry.row.name for entry in self._entries if isinstance(entry.part, CorruptedIndexError)]
        if self._ann_data is not None and isinstance(self._ann_data.arrays, CorruptedIndexError):
            names.append(self._ann_data.row.name)
        return frozenset(names)

    @property
    def ann_data(self) -> dict[str, np.ndarray] | None:
        """Arrays that the index has made of its documents; ``None`` without, and where they cannot be read."""
        if self._ann_data is None or isinstance(self._ann_data.arrays, CorruptedIndexError):
            return None
        return self._ann_data.arrays

    @property
    def ann_damage(self) -> CorruptedIndexError | None:
        """Why `derived` cannot be read, if it is there and cannot."""
        arrays = None if self._ann_data is None else self._ann_data.arrays
        return arrays if isinstance(arrays, CorruptedIndexError) else None

    def check_ann_data(self, segments: Segments) -> bool:
        """Whether what the index has derived can be read, and every byte of it is the one that was written."""
        if self.ann_data is None or self._ann_data is None:
            return False
        try:
            segments.check(self.ann_data, *self._ann_data.row)
        except CorruptedIndexError:
            return False
        return True

    @property
    def documents(self) -> int:
        """Documents that are alive."""
        return sum(entry.row.documents - entry.row.removed for entry in self._entries)

    @property
    def tokens(self) -> int:
        """Tokens of the documents that are alive; of a segment that cannot be read, of all."""
        return sum(
            int(entry.part.lengths.sum()) if isinstance(entry.part, Part) and entry.row.removed else entry.row.tokens
            for entry in self._entries
        )

    def parts(self, allowed: np.ndarray | None = None) -> list[Part]:
        """Return the documents to search, in the order of insertion.

        Parameters
        ----------
        allowed
            Ascending numbers of living documents to keep; ``None`` keeps all.

        Raises
        ------
        CorruptedIndexError
            If one of these documents is in a segment that cannot be read.
        """
        if allowed is None:
            return [part for _, part in self.living()]
        parts = []
        for entry in self._entries:
            first, last = np.searchsorted(allowed, [entry.row.first, entry.row.last + 1])
            if last > first:
                parts.append(_pick(entry, allowed[first:last]))
        return parts

    def keep_living(self, numbers: np.ndarray) -> np.ndarray:
        """Return those of ascending numbers that are living documents, as far as their segments can be read."""
        kept = [np.zeros(0, "int64")]
        for entry in self._entries:
            first, last = np.searchsorted(numbers, [entry.row.first, entry.row.last + 1])
            found = numbers[first:last]
            if isinstance(entry.part, Part):
                known, living = entry.part.segment.numbers, np.zeros(len(entry.part.segment), bool)
                living[entry.part.positions] = True
                places = np.minimum(np.searchsorted(known, found), len(living) - 1)
                found = found[living[places] & (known[places] == found)]
            kept.append(found)
        return np.concatenate(kept)

    def living(self) -> list[tuple[SegmentRow, Part]]:
        """Return all segments with their living documents.

        Raises
        ------
        CorruptedIndexError
            If one cannot be read.
        """
        return [(entry.row, _readable(entry)) for entry in self._entries]

    def entries(self) -> list[tuple[SegmentRow, Part | CorruptedIndexError]]:
        """Return all segments with their living documents, or with what is wrong with one."""
        return [(entry.row, entry.part) for entry in self._entries]

    def groups(self, numbers: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
        """Yield living documents by segment, with where each of them stands in `numbers`."""
        order = np.argsort(numbers, kind="stable")
        owners = np.searchsorted(self._firsts, numbers[order], side="right") - 1
        for owner in np.unique(owners):
            chosen = order[owners == owner]
            yield _pick(self._entries[owner], numbers[chosen]), chosen

    def ids(self, numbers: np.ndarray) -> list[Id]:
        """Return the ids of living documents, given by number in any order."""
        ids: list[Id] = [0] * len(numbers)
        owners = np.searchsorted(self._firsts, numbers, side="right") - 1
        for owner in set(owners.tolist()):
            segment, places = _readable(self._entries[owner]).segment, np.flatnonzero(owners == owner)
            found = segment.ids(np.searchsorted(segment.numbers, numbers[places]))
            for place, id in zip(places.tolist(), found, strict=True):
                ids[place] = id
        return ids


def load_snapshot(connection: Connection, segments: Segments, previous: Snapshot | None) -> Snapshot:
    """Return the snapshot of the transaction that `connection` is in; the previous one, if nothing has changed.

    What is damaged is not remembered as such: it is opened again each time.
    """
    stamp = read_stamp(connection)
    same = previous is not None and previous.stamp == stamp
    if previous is not None and same and not previous.damaged:
        return previous
    generation = read_setting(connection, "generation")
    dim = read_setting(connection, "dim")
    entries = []
    for row in read_segments(connection):
        known = previous._named.get(row.name) if previous else None
        if known is not None and known.row == row and isinstance(known.part, Part):
            entries.append(known)
            continue
        segment = known.part.segment if known and isinstance(known.part, Part) else None
        try:
            entries.append(_Entry(row, open_part(connection, segments, row, dim, segment)))
        except CorruptedIndexError as error:
            entries.append(_Entry(row, error))
    snapshot = Snapshot(generation, dim, entries, _load_ann_data(connection, segments, previous))
    snapshot.stamp = stamp
    return previous if previous is not None and same and previous.damaged == snapshot.damaged else snapshot


def _load_ann_data(connection: Connection, segments: Segments, previous: Snapshot | None) -> _AnnData | None:
    row = read_ann_data(connection)
    known = previous._ann_data if previous else None
    if row is None or (known is not None and known.row == row and isinstance(known.arrays, dict)):
        return known if row is not None else None
    try:
        return _AnnData(row, segments.open_arrays(row.name, row.files))
    except CorruptedIndexError as error:
        return _AnnData(row, error)


def open_part(
    connection: Connection, segments: Segments, row: SegmentRow, dim: int, segment: Segment | None = None
) -> Part:
    """Return a segment's living documents, opening it where it is not open yet.

    Raises
    ------
    CorruptedIndexError
        If it cannot be read.
    """
    segment = segment or segments.open(row, dim)
    if not row.removed:
        return Part(segment, np.arange(len(segment)))
    removed = np.array(tombstones(connection, row), dtype="int64")
    return Part(segment, np.flatnonzero(~np.isin(segment.numbers, removed, assume_unique=True)))


def _pick(entry: _Entry, numbers: np.ndarray) -> Part:
    """Return living documents of a segment, given by number as the catalog names them.

    Raises
    ------
    CorruptedIndexError
        If the segment cannot be read, or one of them is not there or was removed.
    """
    segment, living = _readable(entry)
    positions = np.searchsorted(segment.numbers, numbers)
    found = segment.numbers[np.minimum(positions, len(segment) - 1)] == numbers
    if not found.all() or (entry.row.removed and not np.isin(positions, living).all()):
        raise CorruptedIndexError(
            f"the catalog of this index is damaged: it names documents that its segment {entry.row.name} does not "
            "hold. Put catalog.sqlite back from a copy or build the index anew."
        )
    return Part(segment, positions)


def _readable(entry: _Entry) -> Part:
    if isinstance(entry.part, Part):
        return entry.part
    raise CorruptedIndexError(
        f"{entry.part}. Its {entry.row.documents - entry.row.removed} documents still have their texts and metadata "
        "but not their vectors; all others can be read. verify() lists them: update() or "
        "remove() them, or put the file back from a copy."
    ) from entry.part
