"""`Writer`: a write over all shards, which becomes visible with one commit.

1. The writer begins a transaction of the catalog, so that there is one writer at a time; the lock of one that dies is
   released by the operating system. Shards apply what an interrupted writer has committed, and drop the rest.
2. The documents are divided by their ids, and sent to all replicas of their shards, which check and *stage* them: on
   disk, but not visible.
3. When all replicas have staged everything, the catalog commits the record that names the new version of each shard.
   From here on the write cannot be lost.
4. All replicas apply what they have staged, each in one commit, and delete the staged files.

A writer that dies before step 3 leaves staged files, which the next writer drops; one that dies after it leaves a
commit that the next opening or the next writer applies.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import LatelierError, StorageError
from latelier.indexes.results import Id
from latelier.indexes.sharded.commit_record import RECORD_SETTING, CommitRecord
from latelier.indexes.sharded.generations import Generations
from latelier.indexes.sharded.placement import positions_by_shard
from latelier.indexes.sharded.replica import Replica, ReplicaDownError
from latelier.indexes.sharded.replicas import Replicas, persist, wait_for_all
from latelier.indexes.sharded.shard import Duplicates
from latelier.indexes.sharded.staging import Manifest
from latelier.indexes.sharded.views import ShardsView, ShardsViews
from latelier.indexes.store.rows import StoredDocument, new_fields
from latelier.indexes.store.storage import Storage
from latelier.indexes.values import duplicate_ids

__all__ = ["Write", "Writer"]

# Batches that are on their way to the shards at the same time.
_BATCHES_ON_THE_WAY = 2


class Write:
    """One write that is being staged.

    `fields`: the metadata keys that filters can name; `remove`, `prefixes`, `replace`: what the write does besides
    inserting documents, see `Manifest`; `new_fields`: metadata keys that it makes known.
    """

    def __init__(self, replicas: Replicas, record: CommitRecord, fields: Sequence[str]) -> None:
        self.version = record.new_version()
        self.remove: list[Id] = []
        self.prefixes: list[str] = []
        self.replace = False
        self.new_fields: list[str] = []
        self.next_number = record.next_number
        self._replicas, self._fields = replicas, fields
        self._batches = Counter[int]()  # by shard
        self._on_the_way: deque[tuple[list[Id], list[tuple[int, Any, Any]]]] = deque()

    def insert(self, documents: Sequence[StoredDocument], embeddings: TokenEmbeddings) -> None:
        """Send documents to their shards.

        Raises `DuplicateIdError` if documents that were sent before have duplicates.
        """
        ids = [document.id for document in documents]
        self.new_fields += new_fields(
            [*self._fields, *self.new_fields], (key for document in documents for key in document.fields)
        )
        # The fields of documents without metadata are a read-only mapping, which cannot be sent.
        rows = [document._replace(fields=dict(document.fields)) for document in documents]
        calls = []
        for shard, positions in positions_by_shard(ids, len(self._replicas.shards)).items():
            numbers = self.next_number + np.array(positions)
            self._batches[shard] += 1
            given = ([rows[position] for position in positions], numbers, embeddings[np.array(positions)])
            for place, replica in enumerate(self._replicas.shards[shard]):
                calls.append((place, replica, replica.write("stage", self.version, *given)))
        self.next_number += len(ids)
        self._on_the_way.append((ids, calls))
        while len(self._on_the_way) >= _BATCHES_ON_THE_WAY:
            self._check_oldest()

    def finish(self) -> list[int]:
        """Wait until everything is staged; return the shards that the write changes."""
        while self._on_the_way:
            self._check_oldest()
        shards = self._replicas.shards
        removed = positions_by_shard(self.remove, len(shards))
        calls = []
        for shard, replicas in enumerate(shards):
            own = [self.remove[position] for position in removed.get(shard, [])]
            manifest = Manifest(own, self.prefixes, self.new_fields, self.replace, self._batches[shard])
            for replica in replicas:
                calls.append((shard, replica, replica.write("finish_staging", self.version, manifest)))
        changes = wait_for_all([partial(_staged, replica, call) for _, replica, call in calls])
        return sorted({shard for (shard, _, _), is_changed in zip(calls, changes, strict=True) if is_changed})

    def drop(self) -> None:
        """Delete what was staged."""
        with suppress(LatelierError):  # the next writer drops it
            calls = [(replica, replica.write("drop_staged", self.version)) for replica in self._replicas]
            calls += [(replica, call) for _, sent in self._on_the_way for _, replica, call in sent]
            wait_for_all([partial(replica.result, call) for replica, call in calls])

    def _check_oldest(self) -> None:
        ids, calls = self._on_the_way.popleft()
        twice: set[Id] = set()
        present: set[Id] = set()
        duplicates: list[Duplicates] = wait_for_all([partial(_staged, replica, call) for _, replica, call in calls])
        for (place, _, _), found in zip(calls, duplicates, strict=True):
            if not place:
                twice.update(found.twice)
                present.update(found.present)
        if twice:
            given = [id for id in dict.fromkeys(ids) if id in twice]
            raise duplicate_ids(given, "given twice in this call; give every document a different id")
        if present and not self.replace:
            given = [id for id in ids if id in present]
            raise duplicate_ids(given, "in the index already; update() replaces documents")


class Writer:
    """Writes to a sharded index.

    `views`: the views of its readers, which see each write when it returns.
    """

    def __init__(self, storage: Storage, generations: Generations, views: ShardsViews) -> None:
        self._storage, self._generations, self._views = storage, generations, views

    @contextmanager
    def begin(self) -> Iterator[tuple[Write, ShardsView]]:
        """Wait until there is no other writer, and open a write that is committed at the end of the ``with`` block.

        Yields: the write, and the view of the commit before it.
        """
        changed: list[int] = []
        with ExitStack() as stack:
            with self._storage.transaction() as transaction:
                record = self._views.record()
                replicas = stack.enter_context(self._generations.using(record))
                self.catch_up(record, replicas, drop_others=True)
                write = Write(replicas, record, self._storage.fields())
                try:
                    yield write, self._views.refresh()
                    changed = write.finish()
                except BaseException:
                    write.drop()
                    raise
                if changed:
                    after = record.after(write.version, changed, next_number=write.next_number)
                    transaction.make_fields(write.new_fields)
                    transaction.set_setting(RECORD_SETTING, after.to_json())
            if changed:
                self._apply(write.version, replicas.of(changed))

    def reorganise(self, change: Callable[[Any], Any]) -> list[Any]:
        """Let every replica change how it stores its documents, as the only writer; return the results."""
        with self._storage.transaction() as transaction:
            record = self._views.record()
            with self._generations.using(record) as replicas:
                self.catch_up(record, replicas, drop_others=True)
                results = persist(list(replicas), change)
                # A later generation may be in the making.
                persist(list(replicas), lambda replica: replica.write("delete_generations", older=True))
            transaction.set_setting(RECORD_SETTING, record.reorganised().to_json())
        self._views.refresh()
        return results

    def catch_up(self, record: CommitRecord, running: Replicas, *, drop_others: bool) -> None:
        """Let every replica apply what was committed; see `Shard.catch_up`."""
        versions = {
            replica: version
            for replicas, version in zip(running.shards, record.versions, strict=True)
            for replica in replicas
        }
        persist(list(versions), lambda replica: replica.write("catch_up", versions[replica], drop_others=drop_others))

    def _apply(self, version: str, replicas: Sequence[Replica]) -> None:
        """Let shards apply what was committed.

        Raises `StorageError` if one of them cannot do so now, for example on a full disk.
        """
        try:
            has_maintained = persist(replicas, lambda replica: replica.write("apply", version))
        except StorageError as error:
            raise StorageError(
                f"this write is committed and will not be lost, but it is not visible yet: {error} The next write, or "
                "opening the index, completes it."
            ) from error
        if any(has_maintained):
            self._reorganised()
        self._views.refresh()

    def _reorganised(self) -> None:
        """Have readers in other processes open the shards again, after maintenance; if it fails, they do so later."""
        with suppress(StorageError), self._storage.transaction() as transaction:
            transaction.set_setting(RECORD_SETTING, self._views.record().reorganised().to_json())


def _staged(replica: Any, call: Any) -> Any:
    """Return the result of a call of a write that is being staged.

    Raises `StorageError` if the process has died: what it had checked cannot be continued.
    """
    try:
        return replica.result(call)
    except ReplicaDownError as error:
        raise StorageError(
            f"the process of the shard in {replica.options.folder} has died during this write; nothing was changed. "
            "Call it again."
        ) from error
