"""`Shard`: one shard in its process: an ordinary index, its staged transactions, and the commits that readers hold."""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, IndexDamageWarning, StorageError
from latelier.indexes.base import Tokenizer
from latelier.indexes.documents import DocumentBatch
from latelier.indexes.flat import Flat
from latelier.indexes.ivf import IVF
from latelier.indexes.results import Id, IndexStatistics, VerifyReport
from latelier.indexes.sharded.handover import join_batches, merge
from latelier.indexes.sharded.requests import ShardReader
from latelier.indexes.sharded.staging import Manifest, StagedBatch, StagedTransaction, staged_versions
from latelier.indexes.store.rows import StoredDocument
from latelier.indexes.stored import MemoryReport, StoredIndex
from latelier.utils.ray_session import require_ray

__all__ = ["KINDS", "Duplicates", "Pinned", "Shard", "ShardOptions"]

T = TypeVar("T")

# The kinds of index that a shard can be.
KINDS: Mapping[str, type[Flat] | type[IVF]] = {Flat.kind: Flat, IVF.kind: IVF}
# The setting of a shard's catalog with the version of the last transaction that was applied.
_APPLIED = "applied"
# Times that a shard tries to apply a committed transaction: another process may be applying it or compacting the shard.
_ATTEMPTS = 5


class ShardOptions(NamedTuple):
    """How to open a shard.

    `folder`: its folder, on a disk of the machine where it is opened. `kind`: a key of `KINDS`. `options`: options of
    the index: `nbits` or `dtype`, `keywords` and `tokenizer`; used if it is made. `create`: make it if it does not
    exist. `read_only`, `max_memory`: see `latelier.indexes.Flat`. `threads`: number of threads that it computes with.
    """

    folder: str
    kind: str
    options: Mapping[str, Any]
    create: bool
    read_only: bool
    max_memory: int | None
    threads: int


class Duplicates(NamedTuple):
    """Ids of staged documents that were staged before in the same transaction, and that are in the shard already."""

    twice: list[Id]
    present: list[Id]


class Pinned(NamedTuple):
    """A commit of a shard that is held for readers.

    `name`: names it in `Shard.read`; empty if the shard has another version, and nothing is held. `applied`: the
    version of the shard. `documents`, `tokens`, `dim`: what the commit holds. `has_texts`, `has_metadata`: whether a
    document of it has a text, and whether one has metadata. `tokenizer`: see `StoredIndex.tokenizer`.
    """

    name: str
    applied: str
    documents: int = 0
    tokens: int = 0
    dim: int | None = None
    has_texts: bool = False
    has_metadata: bool = False
    tokenizer: str | None = None


class Shard:
    """One shard.

    `options`: how to open it; raises `CorruptedIndexError` if it does not exist, and may not be made.
    """

    def __init__(self, options: ShardOptions) -> None:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read by `latelier.kernels.threads`
        self._folder = Path(options.folder)
        given: dict[str, Any] = {"read_only": options.read_only, "max_memory": options.max_memory}
        if not (self._folder / "catalog.sqlite").is_file():
            if not options.create:
                raise CorruptedIndexError(
                    f"the shard in {self._folder} is missing. Restore its folder from a replica of it or from a "
                    "backup, or start it on the machine that holds it."
                )
            given |= options.options
        self._index: StoredIndex = KINDS[options.kind](self._folder, **given)
        self._index.search_by_kernels()
        self._staging: dict[str, _Staging] = {}
        self._held: dict[str, _Held] = {}

    # Writing.

    @property
    def applied(self) -> str:
        """The version of the shard."""
        return str(self._index.storage.setting(_APPLIED) or "")

    def stage(
        self,
        version: str,
        documents: Sequence[StoredDocument],
        numbers: np.ndarray,
        embeddings: TokenEmbeddings,
    ) -> Duplicates:
        """Check documents, encode them, and write them to disk for a later `apply`.

        Returns: the documents are staged even if there are some.
        """
        staging = self._staging.get(version)
        if staging is None:
            staging = self._staging[version] = _Staging(self._folder, version, self._index)
        ids = [document.id for document in documents]
        present = self._index.storage.numbers(ids)
        # Arrays from another process are read-only, which compiled kernels treat as another type.
        vectors = TokenEmbeddings(np.array(embeddings.vectors), np.array(embeddings.offsets))
        batch = DocumentBatch(list(documents), vectors.lengths, vectors.dim, self._index.encode(vectors))
        staging.check(batch)
        staging.transaction.add(StagedBatch(batch, np.array(numbers)))
        return Duplicates(staging.take_twice(ids), [id for id in ids if id in present])

    def finish_staging(self, version: str, manifest: Manifest) -> bool:
        """Complete a staged transaction; return whether it changes the shard.

        Raises `StorageError` if not all batches of the manifest are staged, since the process was started again
        meanwhile.
        """
        staging = self._staging.pop(version, None)
        transaction = StagedTransaction(self._folder, version) if staging is None else staging.transaction
        if transaction.count != manifest.batches:
            raise StorageError(
                f"the process of the shard in {self._folder} was started again during this write; nothing was changed. "
                "Call it again."
            )
        has_prefixed = any(self._index.storage.numbered_ids(prefix)[0] for prefix in manifest.prefixes)
        if not (manifest.batches or manifest.remove or manifest.fields or has_prefixed):
            return False
        transaction.finish(manifest)
        return True

    def drop_staged(self, version: str) -> None:
        """Delete a staged transaction."""
        self._staging.pop(version, None)
        StagedTransaction(self._folder, version).drop()

    def apply(self, version: str) -> bool:
        """Apply a staged transaction in one commit, unless that has been done; then delete it."""
        staged = StagedTransaction(self._folder, version)
        has_inserted, attempt = False, 1
        while self.applied < version:
            try:
                has_inserted = self._commit(staged)
            except (StorageError, CorruptedIndexError):
                # Another process may have applied it meanwhile, and deleted its files.
                if attempt == _ATTEMPTS and self.applied < version:
                    raise
            attempt += 1
        has_maintained = has_inserted and self._maintain()
        staged.drop()
        return has_maintained

    def catch_up(self, version: str, *, drop_others: bool) -> str:
        """Apply the staged transaction of a committed version, if there is one; return the version of the shard.

        `version`: the version that the shard has according to the commit record. `drop_others`: delete all other staged
        transactions, which no commit record names; only the writer may know that. Raises `CorruptedIndexError` if the
        shard has an older version, and the staged transaction is missing.
        """
        if self.applied < version:
            if not StagedTransaction(self._folder, version).is_complete and self.applied < version:
                raise CorruptedIndexError(
                    f"the shard in {self._folder} lacks the transaction {version}, which was committed. Restore its "
                    "folder from a replica of it or from a backup."
                )
            self.apply(version)
        if drop_others:
            for other in staged_versions(self._folder):
                self.drop_staged(other)
        return self.applied

    def compact(self, keywords: bool | None, tokenizer: Tokenizer | None) -> list[str]:
        """Compact the index; return the messages about damage."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._index.compact(keywords=keywords, tokenizer=tokenizer)
        return [str(each.message) for each in caught if issubclass(each.category, IndexDamageWarning)]

    # A new generation, see `latelier.indexes.sharded.resharding`: nobody reads its shards before its commit.

    def receive(self, given: Sequence[StagedBatch]) -> None:
        """Insert documents as other shards have stored them; their numbers are above those of all before."""
        batch, numbers = merge(given)
        self._index.budget_check()(batch)
        with self._index.storage.transaction() as transaction:
            self._index.insert(transaction, batch, replace=False, numbers=numbers)

    def remove_numbers(self, numbers: np.ndarray) -> None:
        """Remove those of some documents that are in this shard, by number."""
        snapshot = self._index.storage.snapshot()
        ids = snapshot.ids(snapshot.keep_living(np.array(numbers)))
        with self._index.storage.transaction() as transaction:
            transaction.remove(ids)

    def after_write(self) -> None:
        """See `StoredIndex.after_write`."""
        self._index.after_write()

    def settle(self, version: str, fields: Sequence[str]) -> None:
        """Give the shard its version and the metadata keys that filters can name."""
        with self._index.storage.transaction() as transaction:
            transaction.make_fields(fields)
            transaction.set_setting(_APPLIED, version)

    def delete_generations(self, *, older: bool) -> None:
        """Delete the folders of older generations on this machine, or of all other ones.

        On Windows, files that are open stay.
        """
        own = self._folder.parent
        for other in own.parent.iterdir():
            if other.name.isdecimal() and (int(other.name) < int(own.name) if older else other != own):
                shutil.rmtree(other, ignore_errors=True)

    def delete(self) -> None:
        """Delete the folder of the shard, which is closed; on Windows, files that others have open stay."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # other shards are in the folder of the generation
            self._folder.parent.rmdir()

    # Reading.

    def pin(self, version: str) -> Pinned:
        """Hold the latest commit for readers, if the shard has this version."""
        held = _Held(self._index)
        try:
            pinned = held.run(self._describe)
        except BaseException:
            held.close()
            raise
        if pinned.applied != version:
            held.close()
            return pinned._replace(name="")
        self._held[pinned.name] = held
        return pinned

    def release(self, name: str) -> None:
        """Give up a commit that `pin` has held."""
        held = self._held.pop(name, None)
        if held is not None:
            held.close()

    def holds(self, name: str) -> bool:
        """Whether a commit is held."""
        return name in self._held

    def read(self, name: str, method: str, *arguments: Any) -> Any:
        """Return the result of a method of `ShardReader` for a commit that is held."""
        return self._held[name].run(getattr(ShardReader(self._index), method), *arguments)

    def process(self) -> int:
        """Return the number of the process."""
        return os.getpid()

    def node(self) -> str:
        """Return Ray's name of the node where the process runs."""
        return str(require_ray("A sharded index").get_runtime_context().get_node_id())

    def statistics(self) -> IndexStatistics:
        """See `StoredIndex.statistics`."""
        return self._index.statistics()

    def memory(self) -> MemoryReport:
        """See `StoredIndex.memory`."""
        return self._index.memory

    def verify(self) -> VerifyReport:
        """See `Index.verify`."""
        return self._index.verify()

    def close(self) -> None:
        """Give up all commits that are held, and close the index; after that no file is open."""
        for name in list(self._held):
            self.release(name)
        self._index.close()

    def _describe(self) -> Pinned:
        storage = self._index.storage
        snapshot = storage.snapshot()
        counts = (snapshot.documents, snapshot.tokens, snapshot.dim)
        return Pinned(secrets.token_hex(8), self.applied, *counts, *storage.has_contents(), storage.tokenizer())

    def _commit(self, staged: StagedTransaction) -> bool:
        """Apply a staged transaction, unless another process has done so; return whether documents were inserted."""
        with self._index.storage.transaction() as transaction:
            if str(transaction.setting(_APPLIED) or "") >= staged.version:
                return False
            manifest = staged.manifest()
            transaction.make_fields(manifest.fields)
            transaction.remove(manifest.remove)
            transaction.remove_prefixed(manifest.prefixes)
            for batch, numbers in _merged(staged.batches(), self._index.batch_bytes):
                self._index.insert(transaction, batch, replace=manifest.replace, numbers=numbers)
            transaction.set_setting(_APPLIED, staged.version)
        return manifest.batches > 0

    def _maintain(self) -> bool:
        """Maintain ANN data after a write; return whether that was a further commit."""
        before = self._index.storage.stamp()
        self._index.after_write()
        return self._index.storage.stamp() != before


class _Staging:
    """A transaction that is being staged: what has been written, and the ids of its documents."""

    def __init__(self, folder: Path, version: str, index: StoredIndex) -> None:
        self.transaction = StagedTransaction(folder, version)
        self.check = index.budget_check()
        self._ids: set[Id] = set()

    def take_twice(self, ids: Sequence[Id]) -> list[Id]:
        """Add ids; return those that were added before."""
        twice = []
        for id in ids:
            if id in self._ids:
                twice.append(id)
            self._ids.add(id)
        return twice


class _Held:
    """A thread that holds one commit of an index; whatever runs in it reads this commit."""

    def __init__(self, index: StoredIndex) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="latelier-commit")
        self._snapshot = index.snapshot()
        self.run(self._snapshot.__enter__)

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a function that is called in the thread."""
        return self._thread.submit(function, *arguments).result()

    def close(self) -> None:
        """Give up the commit after the calls that are running."""
        self.run(self._snapshot.__exit__, None, None, None)
        self._thread.shutdown()


def _merged(staged: Iterator[StagedBatch], batch_bytes: int) -> Iterator[StagedBatch]:
    """Yield staged batches in order, small ones merged up to a size in bytes."""
    waiting: list[StagedBatch] = []
    size = 0
    for each in staged:
        waiting.append(each)
        size += sum(array.nbytes for array in each.batch.arrays.values())
        if size >= batch_bytes:
            yield join_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield join_batches(waiting)
