"""`Snapshot`: the open segments and ANN data of one commit, and their live documents.

The snapshot of a later commit shares all segments that have not changed, so only new segments are opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.filters.sql import SelectionCache
from latelier.indexes.results import Id
from latelier.indexes.store.catalog import (
    AnnDataRow,
    SegmentRow,
    read_ann_data,
    read_segments,
    read_setting,
    read_stamp,
    tombstones,
)
from latelier.indexes.store.connections import Connection
from latelier.indexes.store.segments import Arrays, Part, SegmentStore


class SegmentState(NamedTuple):
    """One segment of a commit: its row in the catalog, and its live documents, or the error if it is damaged."""

    row: SegmentRow
    part: Part | CorruptedIndexError

    @property
    def live(self) -> Part:
        """The live documents; raises `CorruptedIndexError` if the segment cannot be read."""
        if isinstance(self.part, Part):
            return self.part
        raise CorruptedIndexError(
            f"{self.part}. Its {self.row.documents - self.row.removed} documents still have their texts and metadata "
            "but not their vectors; all other documents can be read. verify() lists the ids: update() or "
            "remove() them, or restore the file from a backup."
        ) from self.part

    @property
    def tokens(self) -> int:
        """Number of tokens of the live documents, or of all documents if the segment cannot be read."""
        return self.part.tokens if isinstance(self.part, Part) else self.row.tokens

    def select(self, numbers: np.ndarray) -> Part:
        """Return the live documents with these row ids, which ascend; raise an error if one is not in the segment."""
        segment, live = self.live
        positions = np.searchsorted(segment.numbers, numbers)
        found = segment.numbers[np.minimum(positions, len(segment) - 1)] == numbers
        if not found.all() or (self.row.removed and not np.isin(positions, live).all()):
            raise _unknown_documents(f"its segment {self.row.name} does not hold")
        return Part(segment, positions)

    def keep_live(self, numbers: np.ndarray) -> np.ndarray:
        """Return those row ids, of ascending ones, that are live documents; all if the segment cannot be read."""
        if not isinstance(self.part, Part):
            return numbers
        known, is_live = self.part.segment.numbers, np.zeros(len(self.part.segment), bool)
        is_live[self.part.positions] = True
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        return numbers[is_live[places] & (known[places] == numbers)]


class AnnData(NamedTuple):
    """The ANN data of a commit: its row in the catalog, and its arrays, or the error if it is damaged."""

    row: AnnDataRow
    arrays: Arrays | CorruptedIndexError


class Snapshot:
    """The segments and ANN data of one commit.

    `dim`: dimension of the token vectors; ``None`` if there is no document. `segments`: the segments in the order of
    insertion. `ann_state`: the ANN data; ``None`` if there is none. `stamp`: the value of `read_stamp` for the commit.
    `selections`: cache of the documents that filters have selected from this snapshot.
    """

    def __init__(
        self,
        generation: int,
        dim: int | None,
        segments: Sequence[SegmentState],
        ann_state: AnnData | None = None,
        stamp: Any = None,
    ) -> None:
        self.generation = generation
        self.stamp = stamp
        self.selections = SelectionCache()
        self.dim = dim if segments else None
        self.segments = list(segments)
        self.ann_state = ann_state
        self._firsts = np.array([state.row.first for state in segments], dtype="int64")
        self._lasts = np.array([state.row.last for state in segments], dtype="int64")

    @cached_property
    def damaged(self) -> frozenset[str]:
        """Names of the segments and of the ANN data that cannot be read."""
        names = [state.row.name for state in self.segments if isinstance(state.part, CorruptedIndexError)]
        if self.ann_state is not None and isinstance(self.ann_state.arrays, CorruptedIndexError):
            names.append(self.ann_state.row.name)
        return frozenset(names)

    @property
    def ann_data(self) -> Arrays | None:
        """The arrays of the ANN data; ``None`` if there are none or they cannot be read."""
        arrays = None if self.ann_state is None else self.ann_state.arrays
        return arrays if isinstance(arrays, dict) else None

    @property
    def ann_damage(self) -> CorruptedIndexError | None:
        """Why the ANN data cannot be read; ``None`` if it can, or there is none."""
        arrays = None if self.ann_state is None else self.ann_state.arrays
        return arrays if isinstance(arrays, CorruptedIndexError) else None

    @cached_property
    def documents(self) -> int:
        """Number of live documents."""
        return sum(state.row.documents - state.row.removed for state in self.segments)

    @cached_property
    def tokens(self) -> int:
        """Number of tokens of the live documents, and of all documents in segments that cannot be read."""
        return sum(state.tokens for state in self.segments)

    def parts(self, numbers: np.ndarray | None = None) -> list[Part]:
        """Return live documents by segment, in the order of insertion.

        `numbers`: ascending row ids of live documents; ``None`` returns all. Raises `CorruptedIndexError` if one of
        these documents is in a segment that cannot be read, or in no segment.
        """
        if numbers is None:
            return [state.live for state in self.segments]
        found = list(self._split(numbers))
        if sum(len(own) for _, own in found) < len(numbers):
            raise _unknown_documents("no segment holds")
        return [state.select(own) for state, own in found]

    def keep_live(self, numbers: np.ndarray) -> np.ndarray:
        """Return those row ids, of ascending ones, that are live documents or in a segment that cannot be read."""
        kept = [state.keep_live(own) for state, own in self._split(numbers)]
        return np.concatenate([np.zeros(0, "int64"), *kept])

    def ids(self, numbers: np.ndarray) -> list[Id]:
        """Return the ids of live documents by their row ids, which may be in any order."""
        ids = np.empty(len(numbers), dtype=object)
        owners = np.searchsorted(self._firsts, numbers, side="right") - 1
        for owner in set(owners.tolist()):
            places = np.flatnonzero(owners == owner)
            segment = self.segments[owner].live.segment
            ids[places] = segment.ids(np.searchsorted(segment.numbers, numbers[places]))
        return list(ids)

    def _split(self, numbers: np.ndarray) -> Iterator[tuple[SegmentState, np.ndarray]]:
        """Yield each segment with the row ids that lie in its range, if there are any; `numbers` ascend."""
        begins = np.searchsorted(numbers, self._firsts).tolist()
        ends = np.searchsorted(numbers, self._lasts, side="right").tolist()
        for state, begin, end in zip(self.segments, begins, ends, strict=True):
            if begin < end:
                yield state, numbers[begin:end]


def load_snapshot(connection: Connection, store: SegmentStore, previous: Snapshot | None) -> Snapshot:
    """Return the snapshot of the commit that `connection` reads; the previous one, if nothing has changed.

    Segments that could not be read are opened again each time. `connection`: a connection in a reading transaction;
    `previous`: the latest snapshot that was loaded, if any.
    """
    stamp = read_stamp(connection)
    is_same = previous is not None and previous.stamp == stamp
    if previous is not None and is_same and not previous.damaged:
        return previous
    generation, dim = read_setting(connection, "generation"), read_setting(connection, "dim")
    known = {state.row.name: state for state in previous.segments} if previous else {}
    segments = [_load_segment(connection, store, row, dim, known.get(row.name)) for row in read_segments(connection)]
    ann_data = _load_ann_data(connection, store, previous.ann_state if previous else None)
    snapshot = Snapshot(generation, dim, segments, ann_data, stamp)
    return previous if previous is not None and is_same and previous.damaged == snapshot.damaged else snapshot


def _load_segment(
    connection: Connection, store: SegmentStore, row: SegmentRow, dim: int, known: SegmentState | None
) -> SegmentState:
    known_part = known.part if known is not None and isinstance(known.part, Part) else None
    if known is not None and known_part is not None and known.row == row:
        return known
    try:
        # If the segment is open already, only its removed documents have changed.
        segment = store.open(row, dim) if known_part is None else known_part.segment
        return SegmentState(row, segment.live(tombstones(connection, row) if row.removed else []))
    except CorruptedIndexError as error:
        return SegmentState(row, error)


def _load_ann_data(connection: Connection, store: SegmentStore, known: AnnData | None) -> AnnData | None:
    row = read_ann_data(connection)
    if row is None:
        return None
    if known is not None and known.row == row and isinstance(known.arrays, dict):
        return known
    try:
        return AnnData(row, store.open_arrays(row.name, row.files))
    except CorruptedIndexError as error:
        return AnnData(row, error)


def _unknown_documents(where: str) -> CorruptedIndexError:
    return CorruptedIndexError(
        f"the catalog of this index is damaged: it names documents that {where}. Restore catalog.sqlite from a backup "
        "or rebuild the index."
    )
