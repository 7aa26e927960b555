"""Compaction: merging segments into larger ones, dropping removed documents, and deleting unreferenced files."""

from __future__ import annotations

from collections.abc import Iterator

from latelier.errors import CorruptedIndexError
from latelier.indexes.catalog.pool import ConnectionPool
from latelier.indexes.catalog.schema import give_back_pages
from latelier.indexes.catalog.segment_rows import SegmentRow
from latelier.indexes.catalog.settings import read_setting, write_setting
from latelier.indexes.storage.scratch import Scratch
from latelier.indexes.storage.segments import Part, Segment
from latelier.indexes.storage.snapshot import SegmentState, Snapshot
from latelier.indexes.storage.store import SegmentStore
from latelier.indexes.storage.transaction import referenced_names

__all__ = ["Compaction", "delete_garbage"]


class Compaction:
    """Merges the segments of a snapshot.

    A segment stays as it is if it is damaged, or if it has no removed documents and at least ``max_tokens / 2`` tokens.
    Consecutive other segments are merged, up to `max_tokens` tokens at a time.

    Parameters
    ----------
    snapshot
        The snapshot of the latest commit.
    store
        Where its segments are stored.
    max_tokens
        Maximum number of tokens of a merged segment.
    scratch
        Where arrays of merged segments are made.

    Attributes
    ----------
    damages
        One message per damaged segment; complete once `merged` is exhausted.
    """

    def __init__(self, snapshot: Snapshot, store: SegmentStore, max_tokens: int, scratch: Scratch) -> None:
        self.damages: list[str] = []
        self._scratch = scratch
        self._snapshot, self._store, self._max_tokens = snapshot, store, max_tokens

    def merged(self) -> Iterator[tuple[list[SegmentRow], Segment]]:
        """Merge one run of segments after the other; yield the rows of its segments, and the merged segment."""
        for run in self._runs():
            if len(run) > 1 or (run and run[0].row.removed):
                parts = [state.living for state in run]
                yield [state.row for state in run], Segment.merge(parts, self._scratch)

    def _runs(self) -> Iterator[list[SegmentState]]:
        """Yield runs of consecutive segments to merge; some are empty."""
        run: list[SegmentState] = []
        tokens = 0
        for state in self._snapshot.segments:
            size = state.tokens if isinstance(state.part, Part) else 0
            is_full = not state.row.removed and 2 * size >= self._max_tokens
            stays = is_full or not self._is_intact(state)
            if stays or tokens + size > self._max_tokens:
                yield run
                run, tokens = [], 0
            if not stays:
                run.append(state)
                tokens += size
        yield run

    def _is_intact(self, state: SegmentState) -> bool:
        """Whether a segment can be read and matches its checksums; if not, append the reason to `damages`."""
        if isinstance(state.part, CorruptedIndexError):
            self.damages.append(str(state.part))
            return False
        try:
            self._store.compare_checksums(state.part.segment.arrays, state.row.name, state.row.files)
        except CorruptedIndexError as error:
            self.damages.append(str(error))
            return False
        return True


def delete_garbage(pool: ConnectionPool, store: SegmentStore) -> None:
    """Delete the files of killed writers, and give the unused pages of the catalog back to the file system.

    We hold the write lock, so no other writer has written a segment that it is about to commit: segments that the
    catalog does not reference are garbage.
    """
    with pool.writing() as begin:
        connection = begin()
        garbage = set(store.names()) - referenced_names(connection)
        give_back_pages(connection)
        if garbage:  # a commit that failed may be in the log, and reference them: this one takes its place there
            write_setting(connection, "generation", int(read_setting(connection, "generation")) + 1)
    if garbage and pool.is_in_place():  # otherwise these are the files of another index, which was moved here
        store.delete(garbage)
