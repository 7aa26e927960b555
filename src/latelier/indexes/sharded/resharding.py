"""`Resharding`: divides the documents of a sharded index among another number of shards, while others read and write.

1. A transaction of the catalog reserves a number for the new generation; its folders do not exist yet. What an
   interrupted division has left is deleted.
2. All documents of the latest commit are copied, as they are stored, to new shards, which nobody reads.
3. The difference to the commit that is the latest by then is copied, until it is small. The new shards train their
   centroids, if they have any.
4. The write lock is taken, the rest of the difference is copied, and the catalog commits the record of the new
   generation.

The folders of the old shards stay until `compact` or the next division: readers in other processes open files in them
until they have started processes for the new ones.

Before step 4 has committed, an error or the end of the process leaves the index as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from latelier.errors import LatelierError, StorageError
from latelier.indexes.sharded.commit_record import RECORD_SETTING, CommitRecord
from latelier.indexes.sharded.generations import Generations
from latelier.indexes.sharded.handover import Sizes
from latelier.indexes.sharded.replica import Replica, ReplicaDownError
from latelier.indexes.sharded.replicas import Replicas, persist
from latelier.indexes.sharded.staging import StagedBatch
from latelier.indexes.sharded.views import ShardsView, ShardsViews
from latelier.indexes.sharded.writing import Writer
from latelier.indexes.store.storage import Storage
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

__all__ = ["Resharding"]

# The setting of the catalog with the number of the latest generation that a division has begun to make.
_RESERVED_SETTING = "reserved_generation"
# What is copied at a time, as float32 vectors in bytes and in documents, and batches on their way to the new shards.
_BATCH_BYTES, _BATCH_DOCUMENTS, _BATCHES_ON_THE_WAY = 64 << 20, 8192, 2
# Writers wait while at most this many documents are copied, if that is reached within this many rounds.
_SMALL_DIFFERENCE, _MOST_ROUNDS = 1000, 8


class Resharding:
    """One division of the documents.

    `start`: starts the processes of new shards, given a commit record and options of their keyword indexes; `progress`:
    called with the number of documents of each batch that was copied.
    """

    def __init__(
        self,
        storage: Storage,
        generations: Generations,
        views: ShardsViews,
        writer: Writer,
        start: Callable[[CommitRecord, dict[str, Any]], Replicas],
        progress: Callable[[int], Any],
    ) -> None:
        self._storage, self._generations, self._views, self._writer = storage, generations, views, writer
        self._start, self._progress = start, progress
        self._copied = np.zeros(0, "int64")  # numbers of the documents in the new shards

    def run(self, shards: int) -> None:
        """Divide the documents among `shards` shards.

        Raises `StorageError` if the process of a shard dies, or another division has begun or ended meanwhile; nothing
        has changed. Raises `CorruptedIndexError` if a document is damaged; nothing has changed.
        """
        with ExitStack() as stack:
            before, view = self._begin(stack)
            keywords = {"keywords": view.tokenizer is not None, "tokenizer": view.tokenizer}
            after = replace(before, versions=("",) * shards, generation=self._reserved)
            running = self._start(after, keywords)
            try:
                self._copy(view, running, check=True)
                self._copy_differences(running)
                _call_all(list(running), lambda replica: replica.write("after_write"))
                self._copy_differences(running)
                self._commit(before, after, running)
            except BaseException:
                if not self._is_committed():
                    running.stop(delete=True)
                raise
        self._views.refresh()

    def _begin(self, stack: ExitStack) -> tuple[CommitRecord, ShardsView]:
        """Reserve a generation, and return the latest commit with a view of it, which `stack` gives back."""
        with self._storage.transaction() as transaction:
            record = self._views.record()
            self._reserved = max(int(transaction.setting(_RESERVED_SETTING) or 0), record.generation) + 1
            transaction.set_setting(_RESERVED_SETTING, self._reserved)
            replicas = stack.enter_context(self._generations.using(record))
            self._writer.catch_up(record, replicas, drop_others=True)
            persist(list(replicas), lambda replica: replica.write("delete_generations", older=False))
            return record, stack.enter_context(self._views.separate())

    def _copy_differences(self, running: Replicas) -> None:
        """Copy what has changed, until it is little."""
        for _ in range(_MOST_ROUNDS):
            with ExitStack() as stack:
                with self._storage.transaction():
                    record = self._views.record()
                    replicas = stack.enter_context(self._generations.using(record))
                    self._writer.catch_up(record, replicas, drop_others=True)
                    view = stack.enter_context(self._views.separate())
                if self._copy(view, running) <= _SMALL_DIFFERENCE:
                    return

    def _is_committed(self) -> bool:
        """Whether the record names the new generation; True if that cannot be read, so that nothing is deleted."""
        try:
            return self._views.record().generation == self._reserved
        except LatelierError:
            return True

    def _commit(self, before: CommitRecord, after: CommitRecord, running: Replicas) -> None:
        """Copy the rest as the only writer, and commit the new generation."""
        with ExitStack() as stack:
            with self._storage.transaction() as transaction:
                # Readers that see the record wait until the running processes are known, and start no others.
                stack.enter_context(self._generations.starting())
                record = self._views.record()
                is_mine = transaction.setting(_RESERVED_SETTING) == self._reserved
                if not is_mine or record.generation != before.generation:
                    raise StorageError(
                        "another reshard() of this index has begun meanwhile; nothing was changed by this one. Let one "
                        "of them end first."
                    )
                with self._generations.using(record) as replicas:
                    self._writer.catch_up(record, replicas, drop_others=True)
                    with self._views.separate() as view:
                        self._copy(view, running)
                version, fields = record.new_version(), self._storage.fields()
                _call_all(list(running), lambda replica: replica.write("settle", version, fields))
                after = replace(
                    after,
                    versions=(version,) * after.shards,
                    transaction=record.transaction + 1,
                    next_number=record.next_number,
                    epoch=record.epoch,
                )
                transaction.set_setting(RECORD_SETTING, after.to_json())
            self._generations.add(after, running)

    def _copy(self, view: ShardsView, running: Replicas, *, check: bool = False) -> int:
        """Make the new shards hold the documents of a view; return how many were copied or removed."""
        sizes: list[Sizes] = view.ask("sizes", check)
        numbers, lengths = (np.concatenate(column) for column in zip(*sizes, strict=True))
        removed = np.setdiff1d(self._copied, numbers, assume_unique=True)
        if len(removed):
            _call_all(list(running), lambda replica: replica.write("remove_numbers", removed))
        order = np.argsort(numbers)
        numbers, lengths = numbers[order], lengths[order]
        # Numbers are never given twice, so the documents that were written since have higher ones.
        is_new = ~np.isin(numbers, self._copied, assume_unique=True)
        new, offsets = numbers[is_new], lengths_to_offsets(lengths[is_new])
        most = max(1, _BATCH_BYTES // 4 // (view.dim or 1))
        on_the_way: deque[list[tuple[Replica, Any]]] = deque()
        for first, last in split_by_rows(offsets, most, _BATCH_DOCUMENTS):
            found = view.ask("divide", (int(new[first]), int(new[last - 1]) + 1), len(running.shards))
            on_the_way.append(_send(found, running))
            if len(on_the_way) > _BATCHES_ON_THE_WAY:
                _wait(on_the_way.popleft())
            self._progress(last - first)
        for calls in on_the_way:
            _wait(calls)
        self._copied = numbers
        return len(new) + len(removed)


def _send(found: Sequence[dict[int, StagedBatch]], running: Replicas) -> list[tuple[Replica, Any]]:
    """Send what the old shards have divided to all replicas of the new ones."""
    calls = []
    for shard, replicas in enumerate(running.shards):
        given = [own[shard] for own in found if shard in own]
        if given:
            calls += [(replica, replica.write("receive", given)) for replica in replicas]
    return calls


def _call_all(replicas: Sequence[Replica], begin: Callable[[Replica], Any]) -> None:
    _wait([(replica, begin(replica)) for replica in replicas])


def _wait(calls: Sequence[tuple[Replica, Any]]) -> None:
    """Wait for calls of new shards.

    Raises `StorageError` if a process has died: it may have carried out its call or not.
    """
    for replica, call in calls:
        try:
            replica.result(call)
        except ReplicaDownError as error:
            raise StorageError(
                f"the process of the new shard in {replica.options.folder} has died; nothing was changed. Call "
                "reshard() again."
            ) from error
