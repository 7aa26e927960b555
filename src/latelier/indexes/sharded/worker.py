"""`ShardWorker`: one shard in its process, an actor of Ray; starting it, and telling its death from its errors."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, IndexDamageWarning, InvalidArgumentError, StorageError
from latelier.indexes.documents import DocumentBatch
from latelier.indexes.flat import Flat
from latelier.indexes.ivf import IVF
from latelier.indexes.options import SearchOptions
from latelier.indexes.results import Hit, Id, Ranking
from latelier.indexes.store.rows import StoredDocument, find_numbers, has_texts
from latelier.indexes.store.transaction import Transaction
from latelier.indexes.stored import StoredIndex

# The kinds of index that a shard can be.
KINDS: Mapping[str, type[Flat] | type[IVF]] = {Flat.kind: Flat, IVF.kind: IVF}
# Reads that a shard answers at the same time. Writes have one thread, so a transaction stays in the same one.
_READS = 32
# The share of a node's resource that a process asks for, only to be started on that node.
_SHARE = 0.0001


class Opening(NamedTuple):
    """How to open a shard: `options` are those of a new one; without `make`, a missing shard is an error."""

    folder: str
    kind: str
    options: Mapping[str, Any]
    make: bool
    read_only: bool
    max_memory: int | None
    shards_on_node: int


class ShardFindings(NamedTuple):
    """What a shard finds for one query, by row id: the best of each side that the mode uses, and the ids.

    `scored` has MaxSim of the documents that keywords have found.
    """

    by_vectors: Ranking
    by_keywords: Ranking
    scored: Ranking
    ids: dict[int, Id]


class WriteState(NamedTuple):
    """What a shard knows before a write: `next_row_id` is above all row ids that it has ever used."""

    next_row_id: int
    dim: int | None
    fields: list[str]


class ShardWorker:
    """One shard: an ordinary index, opened at the first call, also after Ray has started the process again."""

    def __init__(self, opening: Opening) -> None:
        # Read by `latelier.kernels.threads`; the shards of a machine share its processors.
        os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // opening.shards_on_node))
        self._opening = opening
        self._opened: StoredIndex | None = None
        self._lock = threading.Lock()
        self._transaction: Transaction | None = None
        self._transaction_end = ExitStack()
        self._has_inserted = False

    @property
    def _index(self) -> StoredIndex:
        with self._lock:
            if self._opened is None:
                folder, kind, options, make, read_only, max_memory, _ = self._opening
                given: dict[str, Any] = {"read_only": read_only, "max_memory": max_memory}
                if not (Path(folder) / "catalog.sqlite").is_file():
                    if not make:
                        raise CorruptedIndexError(
                            f"the shard in {folder} is missing. Restore its folder from a backup, or start it on the "
                            "machine that holds it."
                        )
                    given |= options
                self._opened = KINDS[kind](folder, **given)
                self._opened.search_by_kernels()  # so that equal vectors have equal scores in all shards
            return self._opened

    # Reading.

    def read(self, name: str, *arguments: Any) -> Any:
        """Return a property of the index, or the result of one of its methods."""
        found = getattr(self._index, name)
        return found(*arguments) if callable(found) else found

    def row_ids(self, ids: Sequence[Id]) -> dict[Id, int]:
        """Return the row ids of those documents that are in the shard."""
        return self._index.storage.ask(find_numbers, ids)

    def ids(self, prefix: str | None) -> dict[Id, int]:
        """Return all ids, or those with a prefix, and their row ids."""
        index = self._index
        with index.snapshot():
            return index.storage.ask(find_numbers, index.ids(prefix))

    def search(
        self, queries: TokenEmbeddings | None, k: int, texts: list[str], options: SearchOptions
    ) -> list[ShardFindings]:
        """Return for each query what each side of the mode finds that may be among the `k` best of all shards."""
        index, mode = self._index, options.mode
        queries = None if queries is None else _writable(queries)
        depth = k if mode in ("vectors", "keywords") else options.depth_for(k)
        nothing: list[list[Hit]] = [[] for _ in (texts if queries is None else range(len(queries)))]
        by_vectors = by_keywords = scored = nothing
        with index.snapshot():
            if mode in ("vectors", "hybrid"):
                by_vectors = index.find(queries, depth, [], replace(options, mode="vectors"))
            # A shard without texts is no error if others have some.
            if mode != "vectors" and (not len(index) or index.storage.ask(has_texts)):
                by_keywords = index.find(None, depth, texts, replace(options, mode="keywords"))
                if mode != "keywords":
                    scored = index.find(queries, depth, texts, replace(options, mode="rerank", depth=depth))
            found = [hit.id for rows in (*by_vectors, *by_keywords) for hit in rows]
            row_ids = index.storage.ask(find_numbers, list(dict.fromkeys(found)))

        def ranking(hits: Sequence[Hit]) -> Ranking:
            numbers = np.array([row_ids[hit.id] for hit in hits], dtype="int64")
            return Ranking(numbers, np.array([hit.score for hit in hits]))

        return [
            ShardFindings(ranking(ours), ranking(words), ranking(both), {row_ids[h.id]: h.id for h in (*ours, *words)})
            for ours, words, both in zip(by_vectors, by_keywords, scored, strict=True)
        ]

    # Writing: `begin`, any number of `insert` and `remove`, then `commit` or `roll_back`.

    def begin(self) -> WriteState:
        """Begin a transaction."""
        self.roll_back()
        index = self._index
        self._transaction = self._transaction_end.enter_context(index.storage.transaction())
        return WriteState(int(index.storage.setting("next_number")), index.dim, index.fields)

    def insert(
        self,
        documents: Sequence[StoredDocument],
        embeddings: TokenEmbeddings,
        row_ids: np.ndarray,
        replace: bool,
        fields: Sequence[str],
    ) -> None:
        """Insert documents; `fields`: metadata keys of this write, to be spelled alike in all shards."""
        transaction, vectors = self._begun(), _writable(embeddings)
        batch = DocumentBatch(list(documents), vectors.lengths, vectors.dim, self._index.encode(vectors))
        transaction.make_fields(fields)
        self._index.insert(transaction, batch, replace=replace, numbers=np.array(row_ids))
        self._has_inserted = True

    def remove(self, ids: Sequence[Id], prefixes: Sequence[str]) -> None:
        """Remove documents."""
        self._begun().remove(ids)
        self._begun().remove_prefixed(prefixes)

    def commit(self, fields: Sequence[str]) -> None:
        """Commit; `fields`: metadata keys of documents in other shards, which filters can now name."""
        transaction, self._transaction = self._begun(), None
        if fields:
            transaction.make_fields(fields)
        self._transaction_end.close()

    def roll_back(self) -> None:
        """Drop a transaction that has begun, if there is one."""
        self._transaction, self._has_inserted = None, False
        self._transaction_end.__exit__(_RolledBack, _RolledBack(), None)

    def maintain(self) -> None:
        """Maintain ANN data after a commit that has inserted documents."""
        if self._has_inserted:
            self._has_inserted = False
            self._index.after_write()

    def compact(self, keywords: bool | None, tokenizer: Any) -> list[str]:
        """Compact the index; return the messages about damage."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._index.compact(keywords=keywords, tokenizer=tokenizer)
        return [str(each.message) for each in caught if issubclass(each.category, IndexDamageWarning)]

    def close(self) -> None:
        """Close the index."""
        self.roll_back()
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _begun(self) -> Transaction:
        if self._transaction is None:
            raise StorageError(f"the process of the shard in {self._opening.folder} was started again meanwhile.")
        return self._transaction


class _RolledBack(Exception):
    """Ends a transaction without a commit."""


def _writable(embeddings: TokenEmbeddings) -> TokenEmbeddings:
    """Copy vectors: those from another process are read-only, which compiled kernels treat as another type."""
    return TokenEmbeddings(np.array(embeddings.vectors), np.array(embeddings.offsets))


def start(ray: Any, opening: Opening, node: str | None) -> Any:
    """Start the process of a shard on a node, see `node_resources`; return its handle."""
    # It asks for no processor: shards are idle between searches, and would block processes that encode documents.
    options = {"num_cpus": 0, "resources": node_resources(ray, node), "max_restarts": -1}
    actor = ray.remote(**options, concurrency_groups={"read": _READS, "write": 1})(ShardWorker)
    return actor.remote(opening)


def stop(ray: Any, worker: Any) -> None:
    """End a process."""
    ray.kill(worker)


def death_errors(ray: Any) -> tuple[type[Exception], ...]:
    """Return the errors of calls of a process that has died, or is not running again yet."""
    errors = ray.exceptions
    return errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError, errors.NodeDiedError


def node_resources(ray: Any, node: str | None) -> dict[str, float]:
    """Return what to ask Ray for, so that a process is started on a node.

    `node`: the IP address of a node, or the name of a custom resource that a node was started with; None: this node.
    """
    known = ray.cluster_resources()
    name = f"node:{ray.util.get_node_ip_address()}" if node is None else node
    for each in (name, f"node:{name}"):
        if each in known:
            return {each: _SHARE}
    if node is None:
        return {}
    nodes = ", ".join(sorted(each.removeprefix("node:") for each in known if each.startswith("node:")))
    raise InvalidArgumentError(
        f"received {node!r} as a node; the Ray cluster has the nodes {nodes}, and no resource of this name."
    )
