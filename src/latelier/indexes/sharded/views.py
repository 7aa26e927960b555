"""`ShardsViews`: the commits of all shards that readers see, which agree on one commit record.

Every replica holds the commit of its shard, see `Shard.pin`, so a read can go to any replica. After another commit, new
views are made of the shards that it has changed. While a writer is applying it, and the shards do not agree, readers
stay with the view before it: they never wait for a writer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from latelier.errors import CorruptedIndexError, LatelierError, StorageError
from latelier.indexes.sharded.commit_record import RECORD_SETTING, CommitRecord
from latelier.indexes.sharded.generations import Generations
from latelier.indexes.sharded.replica import Replica, ReplicaDownError
from latelier.indexes.sharded.replicas import Replicas, persist
from latelier.indexes.sharded.shard import Pinned
from latelier.indexes.store.storage import Storage
from latelier.utils.ray_session import check_not_forked

__all__ = ["ShardsView", "ShardsViews", "read_record"]

T = TypeVar("T")

# How long the first view waits until the shards agree, and between two attempts.
_AGREE_SECONDS, _PAUSE_SECONDS = 10.0, 0.02


class _ChangedError(Exception):
    """A shard has another version than a view, so that the view cannot be used any more."""


class HeldShard:
    """One version of a shard, which its replicas hold.

    `pinned`: what the first one holds; `tokenizers`: those of all replicas, which are equal unless a change of the
    keyword index was interrupted.
    """

    def __init__(self, replicas: Sequence[Replica], key: tuple[Any, ...], pinned: Sequence[Pinned]) -> None:
        self.key = key
        self.pinned = pinned[0]
        self.tokenizers = {each.tokenizer for each in pinned}
        self.users = 0
        self._replicas = replicas
        self._turn = itertools.count()
        # For each replica: what it holds, None if its process has died; and how often it was opened before.
        self._names: list[str | None] = [each.name for each in pinned]
        self._opened = [replica.opened for replica in replicas]
        self._repairing = [threading.Lock() for _ in replicas]

    def begin(self, method: str, arguments: tuple[Any, ...]) -> tuple[int, str, Any]:
        """Begin a read of one of the replicas that are running, each in its turn; repair one if none is running."""
        first = next(self._turn)
        while True:
            for place in range(len(self._replicas)):
                chosen = (first + place) % len(self._replicas)
                name = self._names[chosen]
                if name is not None:
                    return chosen, name, self._replicas[chosen].read(name, method, *arguments)
            self.repair(first % len(self._replicas))

    def finish(self, begun: tuple[int, str, Any], method: str, arguments: tuple[Any, ...]) -> Any:
        """Return the result of a read; if the process has died, read from another replica."""
        while True:
            chosen, name, reference = begun
            try:
                return self._replicas[chosen].result(reference)
            except ReplicaDownError:
                self._mark_down(chosen, name)
                begun = self.begin(method, arguments)

    def repair(self, place: int) -> None:
        """Open a replica again, and let it hold this version.

        Raises `_ChangedError` if the shard has another version by now; raises `StorageError` if its process does not
        run again in time.
        """
        with self._repairing[place]:
            while self._names[place] is None:
                replica, version = self._replicas[place], self.key[0]
                try:
                    replica.reopen(self._opened[place])
                    self._opened[place] = replica.opened
                    pinned = replica.result(replica.call("pin", version))
                    if pinned.applied < version and not replica.options.read_only:
                        replica.result(replica.write("catch_up", version, drop_others=False))
                        continue
                except ReplicaDownError:
                    continue
                if not pinned.name:
                    raise _ChangedError
                self._names[place] = pinned.name

    def release(self) -> None:
        """Let the replicas give this version up."""
        for replica, name in zip(self._replicas, self._names, strict=True):
            if name is not None:
                replica.release(name)

    def _mark_down(self, place: int, name: str) -> None:
        if self._names[place] == name:
            self._names[place] = None
        if any(self._names):  # others answer meanwhile
            threading.Thread(target=self._try_repair, args=(place,), daemon=True).start()

    def _try_repair(self, place: int) -> None:
        """Repair a replica, however long its process does not run, as long as this version is read."""
        while self.users:
            with suppress(LatelierError):
                with suppress(_ChangedError):  # a later view will have this replica
                    self.repair(place)
                return
            time.sleep(_PAUSE_SECONDS)


class ShardsView:
    """One commit of all shards."""

    def __init__(self, record: CommitRecord, shards: Sequence[HeldShard], replicas: Replicas) -> None:
        self.record, self.shards, self.replicas = record, shards, replicas
        self.users = 0

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(shard.pinned.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Number of token vectors."""
        return sum(shard.pinned.tokens for shard in self.shards)

    @property
    def dim(self) -> int | None:
        """Dimension of the vectors; None without documents."""
        return next((shard.pinned.dim for shard in self.shards if shard.pinned.documents), None)

    @property
    def has_texts(self) -> bool:
        """Whether a document has a text."""
        return any(shard.pinned.has_texts for shard in self.shards)

    @property
    def has_metadata(self) -> bool:
        """Whether a document has metadata."""
        return any(shard.pinned.has_metadata for shard in self.shards)

    @property
    def tokenizer(self) -> str | None:
        """Tokenizer of the keyword indexes; None if there are none.

        Raises `StorageError` if they differ.
        """
        found = {tokenizer for shard in self.shards for tokenizer in shard.tokenizers}
        if len(found) > 1:
            names = ", ".join(sorted(each or "none" for each in found))
            raise StorageError(
                f"the keyword indexes of the shards differ ({names}): a compact() that changes them is running, or was "
                "interrupted. Call compact(keywords=True, tokenizer=...) or compact(keywords=False) again."
            )
        return found.pop()

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Return the result of a method of `ShardReader` for every shard."""
        return list(self.ask_some(method, dict.fromkeys(range(len(self.shards)), arguments)).values())

    def ask_some(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Return the result of a method of `ShardReader` for some shards, by shard; each has its own arguments."""
        begun = {shard: self.shards[shard].begin(method, given) for shard, given in arguments.items()}
        return {shard: self.shards[shard].finish(begun[shard], method, given) for shard, given in arguments.items()}


class ShardsViews:
    """Gives each read the view of the latest commit, or the one that its thread holds.

    `initial`: the record of an index without a commit.
    """

    def __init__(self, storage: Storage, generations: Generations, initial: CommitRecord) -> None:
        self._storage, self._generations, self._initial = storage, generations, initial
        self._latest: ShardsView | None = None
        self._stamp: Any = None
        self._lock, self._refreshing = threading.Lock(), threading.RLock()
        self._by_thread = threading.local()

    def record(self) -> CommitRecord:
        """Return the latest commit."""
        return read_record(self._storage, self._initial)

    def run(self, read: Callable[[ShardsView], T]) -> T:
        """Return the result of a function that reads a view; it is called again if the view cannot be used any more.

        Raises `StorageError` if this thread holds the view, and a shard has died and has another version by now.
        """
        while True:
            with self.open() as view:
                is_held = getattr(self._by_thread, "view", None) is not None
                try:
                    return read(view)
                except _ChangedError:
                    if is_held:
                        raise StorageError(
                            "the process of a shard has died within snapshot(), and the shard has changed meanwhile; "
                            "begin the snapshot again."
                        ) from None
                except (CorruptedIndexError, StorageError):
                    if is_held or self.record().generation == view.record.generation:
                        raise
                    # Meanwhile the documents were divided anew, and these shards deleted.
            self._forget(view)

    @contextmanager
    def open(self) -> Iterator[ShardsView]:
        """Yield the view that this thread holds, or else one of the latest commit that all shards agree on."""
        check_not_forked()
        held: ShardsView | None = getattr(self._by_thread, "view", None)
        if held is not None:
            yield held
            return
        view = self._take(self._current)
        try:
            yield view
        finally:
            self._give_back(view)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Within the ``with`` block, let all reads of this thread see one commit, and no write begin."""
        if getattr(self._by_thread, "view", None) is not None:
            yield
            return
        mine = self._by_thread.__dict__  # belongs to the thread that begins the block, even if another one ends it
        with self._storage.held(), self.open() as view:
            mine["view"] = view
            try:
                yield
            finally:
                del mine["view"]

    @contextmanager
    def using(self) -> Iterator[tuple[CommitRecord, Replicas]]:
        """Yield the latest commit, and the processes of its shards, which run within the ``with`` block."""
        while True:
            record = self.record()
            try:
                replicas = self._generations.take(record)
                break
            except LatelierError:
                if self.record().generation == record.generation:
                    raise
                # Meanwhile the documents were divided anew, and these shards deleted.
        try:
            yield record, replicas
        finally:
            self._generations.give_back(record)

    def call(self, method: str) -> list[Any]:
        """Return the result of a method of `Shard` for each replica of the latest commit."""
        while True:
            with self.using() as (record, replicas):
                try:
                    return list(persist(list(replicas), lambda replica: replica.call(method)))
                except LatelierError:
                    if self.record().generation == record.generation:
                        raise

    @contextmanager
    def separate(self) -> Iterator[ShardsView]:
        """Yield a view of its own, so that long reads of it do not make others wait; no writer may be writing."""
        record = self.record()
        with self._generations.using(record) as replicas:
            shards = self._pin(record, None, replicas)
            if shards is None:
                raise StorageError("the shards do not agree on a commit.")
            for shard in shards:
                shard.users = 1
            try:
                yield ShardsView(record, shards, replicas)
            finally:
                for shard in shards:
                    shard.users = 0
                    shard.release()

    def refresh(self) -> ShardsView:
        """Make a view of the latest commit, and wait until the shards agree on it."""
        check_not_forked()
        with self._refreshing:
            return self._refresh(wait=True)

    def close(self) -> None:
        """Forget all views."""
        self._latest = None

    def _current(self) -> ShardsView:
        stamp, latest = self._storage.stamp(), self._latest
        if latest is not None and stamp == self._stamp:
            return latest
        # Only one thread makes the new view; the others stay with the one before.
        if not self._refreshing.acquire(blocking=latest is None):
            return latest  # type: ignore[return-value]
        try:
            return self._refresh(wait=False)
        finally:
            self._refreshing.release()

    def _refresh(self, *, wait: bool) -> ShardsView:
        deadline = time.monotonic() + _AGREE_SECONDS
        while True:
            stamp, latest = self._storage.stamp(), self._latest
            if latest is not None and latest.record == self.record():
                self._stamp = stamp
                return latest
            with self.using() as (record, replicas):
                shards = self._pin(record, latest, replicas)
                if shards is not None:
                    self._generations.take(record)  # until the view is given up
                    return self._replace(ShardsView(record, shards, replicas), stamp)
            if latest is not None and not wait:
                return latest
            if time.monotonic() > deadline:
                raise StorageError(
                    "the shards of this index do not agree on a commit: a write was interrupted after its commit, and "
                    "has not been completed. Open the index once without read_only=True, which completes it."
                )
            time.sleep(_PAUSE_SECONDS)

    def _pin(self, record: CommitRecord, latest: ShardsView | None, running: Replicas) -> list[HeldShard] | None:
        """Return the versions of a record, held; None if a shard has another one."""
        known = {} if latest is None else dict(enumerate(latest.shards))
        shards, made = [], []
        for number, version in enumerate(record.versions):
            key = (version, record.epoch, record.generation)
            if number in known and known[number].key == key:
                shards.append(known[number])
                continue
            replicas = running.shards[number]
            pinned = persist(replicas, lambda replica, version=version: replica.call("pin", version))  # type: ignore[misc]
            held = HeldShard(replicas, key, pinned)
            made.append(held)
            shards.append(held)
            if not all(each.name for each in pinned):
                for each in made:
                    each.release()
                return None
        return shards

    def _replace(self, view: ShardsView, stamp: Any) -> ShardsView:
        with self._lock:
            before, self._latest, self._stamp = self._latest, view, stamp
            view.users += 1
            for shard in view.shards:
                shard.users += 1
        if before is not None:
            self._give_back(before)
        return view

    def _take(self, choose: Callable[[], ShardsView]) -> ShardsView:
        while True:
            view = choose()
            with self._lock:
                if view.users:  # otherwise it was replaced and given up meanwhile
                    view.users += 1
                    return view

    def _give_back(self, view: ShardsView) -> None:
        released = []
        with self._lock:
            view.users -= 1
            if not view.users:
                for shard in view.shards:
                    shard.users -= 1
                    if not shard.users:
                        released.append(shard)
            is_given_up = not view.users
        for shard in released:
            shard.release()
        if is_given_up:
            self._generations.give_back(view.record)

    def _forget(self, view: ShardsView) -> None:
        """Make a new view at the next read."""
        with self._lock:
            if self._latest is not view:
                return
            self._latest = None
        self._give_back(view)


def read_record(storage: Storage, initial: CommitRecord) -> CommitRecord:
    """Return the commit record of an index; `initial` if there was no commit yet."""
    stored = storage.setting(RECORD_SETTING)
    return initial if stored is None else CommitRecord.from_json(stored)
