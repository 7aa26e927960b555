"""Compaction: merging segments into larger ones, without removed documents, and deleting what nothing refers to."""

from __future__ import annotations

from collections.abc import Iterator

from latelier.errors import CorruptedIndexError
from latelier.indexes.catalog.pool import ConnectionPool
from latelier.indexes.catalog.schema import give_back_pages
from latelier.indexes.catalog.segment_rows import SegmentRow
from latelier.indexes.storage.segments import Part, Segment
from latelier.indexes.storage.snapshot import SegmentState, Snapshot
from latelier.indexes.storage.store import SegmentStore
from latelier.indexes.storage.transaction import referenced_names

__all__ = ["Compaction", "delete_garbage"]


class Compaction:
    """The segments of a snapshot that are to be merged.

    A segment stays as it is if it has no removed documents and fills at least half of the limit, or if it is damaged.
    The runs of segments between those that stay are merged, as many at a time as fit the limit.

    Parameters
    ----------
    snapshot
        Of the latest commit.
    store
        Its segments.
    max_tokens
        The limit: tokens of a merged segment.

    Attributes
    ----------
    damages
        What is wrong with damaged segments, as far as `merged` has come to them.
    """

    def __init__(self, snapshot: Snapshot, store: SegmentStore, max_tokens: int) -> None:
        self.damages: list[str] = []
        self._snapshot, self._store, self._max_tokens = snapshot, store, max_tokens

    def merged(self) -> Iterator[tuple[list[SegmentRow], Segment]]:
        """Merge one run after the other; yield the segments of each, and the one that is to replace them."""
        for run in self._runs():
            if len(run) > 1 or (run and run[0].row.removed):
                yield [state.row for state in run], Segment.merge([state.living for state in run])

    def _runs(self) -> Iterator[list[SegmentState]]:
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
        """Whether a segment can be read and has the checksums that were written; otherwise note its damage."""
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

    This is done as the only writer: then no other one is about to commit a segment that the catalog does not name yet.
    """
    with pool.writing() as begin:
        connection = begin()
        referenced = referenced_names(connection)
        garbage = set(store.names()) - referenced
        if pool.is_in_place():  # otherwise these are the files of another index, which was moved here
            store.delete(garbage)
        give_back_pages(connection)
