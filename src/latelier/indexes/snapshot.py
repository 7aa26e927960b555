"""Snapshots: the segments and removals of one commit, which answer a search by themselves.

A snapshot keeps what it has opened. A later commit makes a new snapshot, which shares all segments that are still
the same, so that following a writer costs no more than opening what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.base import Id
from latelier.indexes.catalog import DerivedRow, SegmentRow, read_derived, read_segments, read_setting, tombstones
from latelier.indexes.segment_files import Segments
from latelier.indexes.segments import Part, Segment
from latelier.indexes.selections import Selections
from latelier.indexes.sqlite import Connection

__all__ = ["Snapshot", "load_snapshot", "open_part"]


class _Entry(NamedTuple):
    """A segment's row, and the documents in it that are alive or why it cannot be read."""

    row: SegmentRow
    part: Part | CorruptedIndexError


class _Derived(NamedTuple):
    """The row of derived arrays, and the arrays or why they cannot be read."""

    row: DerivedRow
    segment: Segment | CorruptedIndexError


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
    """

    def __init__(
        self, generation: int, dim: int | None, entries: Sequence[_Entry], derived: _Derived | None = None
    ) -> None:
        self.generation = generation
        self.selections = Selections()
        self._derived = derived
        self.dim = dim if entries else None
        self.entries = {entry.row.name: entry for entry in entries}
        self._firsts = np.array([entry.row.first for entry in entries], dtype="int64")
        self._entries = list(entries)

    @property
    def is_damaged(self) -> bool:
        """Whether a segment, or what was derived from them, cannot be read."""
        derived = [] if self._derived is None else [self._derived.segment]
        return any(isinstance(part, CorruptedIndexError) for part in (*(e.part for e in self._entries), *derived))

    @property
    def derived(self) -> dict[str, np.ndarray] | None:
        """Arrays that the index has made of its documents; ``None`` without, and where they cannot be read."""
        if self._derived is None or isinstance(self._derived.segment, CorruptedIndexError):
            return None
        return self._derived.segment.arrays

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
                segment = _readable(entry).segment
                parts.append(Part(segment, np.searchsorted(segment.numbers, allowed[first:last])))
        return parts

    def living(self) -> list[tuple[SegmentRow, Part]]:
        """Return all segments with their living documents.

        Raises
        ------
        CorruptedIndexError
            If one cannot be read.
        """
        return [(entry.row, _readable(entry)) for entry in self._entries]

    def groups(self, numbers: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
        """Yield living documents by segment, with where each of them stands in `numbers`."""
        order = np.argsort(numbers, kind="stable")
        owners = np.searchsorted(self._firsts, numbers[order], side="right") - 1
        for owner in np.unique(owners):
            chosen = order[owners == owner]
            segment = _readable(self._entries[owner]).segment
            yield Part(segment, np.searchsorted(segment.numbers, numbers[chosen])), chosen

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
    """Return the snapshot of the transaction that `connection` is in; the previous one, if nothing has changed."""
    generation = read_setting(connection, "generation")
    if previous is not None and previous.generation == generation:
        return previous
    entries = []
    for row in read_segments(connection):
        known = previous.entries.get(row.name) if previous else None
        if known is not None and known.row == row and isinstance(known.part, Part):
            entries.append(known)
            continue
        segment = known.part.segment if known and isinstance(known.part, Part) else None
        try:
            entries.append(_Entry(row, open_part(connection, segments, row, segment)))
        except CorruptedIndexError as error:
            entries.append(_Entry(row, error))
    derived = _load_derived(connection, segments, previous)
    return Snapshot(generation, read_setting(connection, "dim"), entries, derived)


def _load_derived(connection: Connection, segments: Segments, previous: Snapshot | None) -> _Derived | None:
    row = read_derived(connection)
    known = previous._derived if previous else None
    if row is None or (known is not None and known.row == row and isinstance(known.segment, Segment)):
        return known if row is not None else None
    try:
        return _Derived(row, segments.open(row.name, row.files))
    except CorruptedIndexError as error:
        return _Derived(row, error)


def open_part(connection: Connection, segments: Segments, row: SegmentRow, segment: Segment | None = None) -> Part:
    """Return a segment's living documents, opening it where it is not open yet.

    Raises
    ------
    CorruptedIndexError
        If it cannot be read.
    """
    segment = segment or segments.open(row.name, row.files)
    if not row.removed:
        return Part(segment, np.arange(len(segment)))
    removed = np.fromiter(tombstones(connection, row.name), dtype="int64")
    return Part(segment, np.flatnonzero(~np.isin(segment.numbers, removed, assume_unique=True)))


def _readable(entry: _Entry) -> Part:
    if isinstance(entry.part, Part):
        return entry.part
    raise CorruptedIndexError(
        f"{entry.part}. Its {entry.row.documents - entry.row.removed} documents still have their texts and metadata "
        "but not their vectors; all others can be read. verify() lists them: update() or "
        "remove() them, or put the file back from a copy."
    ) from entry.part
