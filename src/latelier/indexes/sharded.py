"""`Sharded`: one index of several shards, in the processes of a Ray cluster.

The folder of the index holds a catalog with the configuration and the settings of users, but no documents; each shard
has a folder of its own, ``shards/<number>``, which `latelier.indexes.open` can open alone. A document is in the shard
that a hash of its id gives. Row ids ascend in the order of insertion over all shards, so sorting by score and row id
gives the order that one index gives.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import (
    CorruptedIndexError,
    IndexDamageWarning,
    IndexFormatError,
    InvalidArgumentError,
    LatelierError,
    StorageError,
)
from latelier.indexes.base import NO_CHANGES, Index, Origins, PathLike, Ranges, check_ranges
from latelier.indexes.fields import new_fields
from latelier.indexes.flat import Flat
from latelier.indexes.ivf import IVF
from latelier.indexes.ivf.codec import CODEBOOK_TOKENS, CodecChoice, choose_codec
from latelier.indexes.ivf.layout import BITS, PLAIN_BITS
from latelier.indexes.options import VECTORS_PER_WORD, SearchOptions, Tokenizer
from latelier.indexes.packing import DocumentBatches, GivenDocuments, check_queries
from latelier.indexes.ranking import Ranking, ShardFindings, merge_findings
from latelier.indexes.results import (
    Hit,
    IndexStatistics,
    MemoryReport,
    Record,
    VerifyReport,
    check_known,
    duplicate_ids,
    stored_cut,
    warn_of_damage,
)
from latelier.indexes.spelling import Near, asked_terms
from latelier.indexes.store.catalog import UserSettings
from latelier.indexes.store.connections import closed_error
from latelier.indexes.store.folder import as_folder
from latelier.indexes.store.keywords import check_compaction, check_expected, check_options, without_texts
from latelier.indexes.store.rows import DocumentBatch, DocumentColumns, StoredDocument, has_texts, next_id
from latelier.indexes.store.sources import Changes, FileState, Seen, Source, unsettled
from latelier.indexes.store.storage import Storage
from latelier.indexes.store.transaction import Transaction
from latelier.indexes.stored_index import StoredIndex, StoredOrigins
from latelier.indexes.words import TOKENIZERS
from latelier.utils.batching import consecutive, lengths_to_offsets
from latelier.utils.checks import check_choice, check_count, parse_bytes
from latelier.utils.misc import progress_bar
from latelier.utils.ray_session import connect_to_ray, connection_of, is_forked
from latelier.utils.values import Id, as_ids, is_single_id

if TYPE_CHECKING:
    import torch


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


class WriteState(NamedTuple):
    """What a shard knows before a write: `next_number` is above all numbers of rows that it has ever used."""

    next_number: int
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
            return self._opened

    # Reading.

    def read(self, name: str, *arguments: Any) -> Any:
        """Return a property of the index, or the result of one of its methods."""
        found = getattr(self._index, name)
        if callable(found):
            return found(*arguments)
        return found

    def numbers(self, ids: Sequence[Id]) -> dict[Id, int]:
        """Return the numbers of those documents that are in the shard."""
        return self._index.existing(ids)

    def ids(self) -> dict[Id, int]:
        """Return all ids and the numbers of their documents."""
        index = self._index
        with index.snapshot():
            return index.existing(index.ids())

    def embeddings(
        self, ids: Sequence[Id], ranges: Sequence[tuple[int, int] | None]
    ) -> tuple[TokenEmbeddings, list[int]]:
        """Return what `get_embeddings` of the index does, and how many matrices are those of each document."""
        index = self._index
        with index.snapshot():
            records: Any = index.get(ids) if any(each is None for each in ranges) else []
            found = index.get_embeddings(ids, ranges)
        if not records:
            return found, [1] * len(ids)
        counts = [
            1 if each is not None else len(record.passages) or 1 for record, each in zip(records, ranges, strict=True)
        ]
        return found, counts

    def search(
        self, queries: TokenEmbeddings | None, k: int, texts: list[str], options: SearchOptions
    ) -> list[ShardFindings]:
        """Return for each query what each side of the mode finds that may be among the `k` best of all shards."""
        index = self._index
        options = replace(options, min_score=None, min_mean_score=None)
        nothing: list[list[Hit]] = [[] for _ in (texts if queries is None else range(len(queries)))]
        by_vectors = by_words = nothing
        with index.snapshot():
            # A shard without texts is no error if others have some.
            has_words = options.mode != "vectors" and (not len(index) or index._storage.ask(has_texts))
            if options.mode == "hybrid" and has_words:
                sides = index.find_sides(queries, k, texts, options)
                by_vectors = [own for own, _ in sides]
                by_words = [own for _, own in sides]
            elif options.mode == "hybrid":
                most = VECTORS_PER_WORD * options.depth_for(k)
                by_vectors = index.find(queries, most, [], replace(options, mode="vectors"))
            elif options.mode == "vectors":
                by_vectors = index.find(queries, k, [], options)
            elif has_words:
                depth = options.depth_for(k) if options.mode == "rerank" else k
                by_words = index.find(None, depth, texts, replace(options, mode="keywords"))
                if options.mode == "rerank":
                    by_vectors = index.find(queries, depth, texts, replace(options, depth=depth))
            found = [hit.id for rows in (*by_vectors, *by_words) for hit in rows]
            known = index.existing(list(dict.fromkeys(found)))

        def ranking(hits: Sequence[Hit]) -> Ranking:
            numbers = np.array([known[hit.id] for hit in hits], dtype="int64")
            return Ranking(numbers, np.array([hit.score for hit in hits]), numbers)

        findings = []
        for ours, words in zip(by_vectors, by_words, strict=True):
            # Of a document that both sides find, the passage is that of the vectors.
            hits = {known[hit.id]: hit for hit in (*words, *ours)}
            findings.append(ShardFindings(ranking(ours), ranking(words), hits))
        return findings

    # Writing: `begin`, any number of `insert` and `remove`, then `commit` or `roll_back`.

    def begin(self) -> WriteState:
        """Begin a transaction."""
        self.roll_back()
        index = self._index
        self._transaction = self._transaction_end.enter_context(index._storage.transaction())
        return WriteState(int(index._storage.setting("next_number")), index.dim, index.fields)

    def take_codec(self, dim: int, choice: CodecChoice) -> None:
        """Store what was chosen for the codes of all shards."""
        cast("IVF", self._index).take_codec(dim, choice)

    def insert(
        self,
        documents: Sequence[StoredDocument],
        embeddings: TokenEmbeddings,
        numbers: np.ndarray,
        replace: bool | None,
        fields: Sequence[str],
    ) -> list[int]:
        """Insert documents; `fields`: metadata keys of this write, to be spelled alike in all shards."""
        transaction = self._begun()
        arrays = self._index._encode(embeddings)
        batch = DocumentBatch(DocumentColumns(documents), embeddings.lengths, embeddings.dim, arrays)
        transaction.make_fields(fields)
        self._has_inserted = True
        return self._index._insert_batch(transaction, batch, replace=replace, numbers=np.array(numbers))

    def change(self, changes: Changes) -> None:
        """Remove documents, and write where others came from."""
        self._begun().apply(changes)

    def origins(self, name: str, *arguments: Any) -> Any:
        """Return what a method of `Index.origins` returns."""
        return getattr(self._index.origins, name)(*arguments)

    def next_id(self) -> int:
        """Return the integer after the largest id that is one."""
        return self._index._storage.ask(next_id)

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove documents."""
        self._begun().remove(ids)

    def commit(self, fields: Sequence[str]) -> None:
        """Commit; `fields`: metadata keys of documents in other shards, which filters can now name."""
        transaction = self._begun()
        self._transaction = None
        if fields:
            transaction.make_fields(fields)
        self._transaction_end.close()

    def roll_back(self) -> None:
        """Drop a transaction that has begun, if there is one."""
        self._transaction = None
        self._has_inserted = False
        self._transaction_end.__exit__(_RolledBack, _RolledBack(), None)

    def maintain(self) -> None:
        """Maintain ANN data after a commit that has inserted documents."""
        if self._has_inserted:
            self._has_inserted = False
            self._index._after_write()

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


def start(ray: Any, opening: Opening, node: str | None) -> Any:
    """Start the process of a shard on a node, see `node_resources`; return its handle."""
    # It asks for no processor: shards are idle between searches, and would block processes that encode documents.
    options = {"num_cpus": 0, "resources": node_resources(ray, node), "max_restarts": -1}
    actor = ray.remote(**options, concurrency_groups={"read": _READS, "write": 1})(ShardWorker)
    return actor.remote(opening)


def stop(ray: Any, worker: Any) -> None:
    """End a process."""
    ray.kill(worker)


def node_resources(ray: Any, node: str | None) -> dict[str, float]:
    """Return what to ask Ray for, so that a process is started on a node, an address or a resource; None: this one."""
    known = ray.cluster_resources()
    if node is None:
        name = f"node:{ray.util.get_node_ip_address()}"
    else:
        name = node
    for each in (name, f"node:{name}"):
        if each in known:
            return {each: _SHARE}
    if node is None:
        return {}
    nodes = ", ".join(sorted(each.removeprefix("node:") for each in known if each.startswith("node:")))
    raise InvalidArgumentError(
        f"received {node!r} as a node; the Ray cluster has the nodes {nodes}, and no resource of this name."
    )


_MOST_SHARDS = 4096
# Bytes of the vectors that are read, divided and sent at a time.
_BATCH_BYTES = 64 << 20
# How long a read waits for a process that has died to run again, and between two attempts.
_RESTART_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
# The setting of the catalog that says that all shards were made: one that is missing later was lost.
_MADE = "made"


class ShardedOrigins(Origins):
    """Where the documents in shards came from: sources and files are in the index's own catalog."""

    def __init__(self, index: Sharded) -> None:
        self._index = index
        self._own = StoredOrigins(index._storage)

    def sources(self) -> list[Source]:
        """See `Origins.sources`."""
        return self._own.sources()

    def files(self, source: str) -> dict[str, FileState]:
        """See `Origins.files`."""
        return self._own.files(source)

    def counts(self, source: str) -> dict[str, int]:
        """See `Origins.counts`."""
        counts = Counter[str]()
        for own in self._ask("counts", source):
            counts.update(own)
        return counts

    def documents(self, source: str, file: str | None = None) -> dict[Id, Seen]:
        """See `Origins.documents`."""
        found = [pair for own in self._ask("documents", source, file) for pair in own.items()]
        return dict(sorted(found, key=lambda pair: pair[1].number))

    def missing(self, source: str) -> dict[Id, Seen]:
        """See `Origins.missing`."""
        return {id: seen for own in self._ask("missing", source) for id, seen in own.items()}

    def seen(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """See `Origins.seen`."""
        own = {shard: ("seen", [ids[i] for i in some]) for shard, some in self._index._positions(ids).items()}
        return {id: seen for found in self._index._call("read", "origins", own) for id, seen in found.items()}

    def _ask(self, name: str, *arguments: Any) -> list[Any]:
        return self._index._call("read", "origins", (name, *arguments))


class Sharded(Index):
    """An index of several shards in the processes of a Ray cluster, on one machine or on several.

    Searches by vectors find what one index with the same documents finds: exactly with ``kind="flat"`` and with
    ``effort="exact"``. Keywords are scored by the word statistics of each shard, which in a large collection are
    nearly those of all. If Ray is not connected to a cluster, a local one is started; call ``ray.init(address=...)``
    before to use another.

    A write is checked before anything is stored, and is durable in every shard when the call returns. It is committed
    shard by shard: if the process or the disk of a shard fails at that moment, the error names the shards that have
    it. There are no replicas, and `snapshot` does nothing.

    Parameters
    ----------
    path
        Folder of the index, on a local disk of this machine.
    shards
        Number of shards of a new index, by default 2.
    kind
        Kind of the shards: ``"ivf"`` (the default), see `latelier.indexes.IVF`, or ``"flat"``, see
        `latelier.indexes.Flat`.
    nbits
        For ``"ivf"``: bits per number, by default 8.
    dtype
        For ``"flat"``: ``"float32"`` (the default) or ``"float16"``.
    nodes
        IP addresses of Ray nodes, or names of custom resources of them: shard ``i`` is on ``nodes[i % len(nodes)]``, in
        a folder with the same path there. None: as the index was made; a new one is on this machine.
    keywords, tokenizer
        As for `latelier.indexes.Flat`.
    read_only
        Never write; implied if the folder cannot be written.
    max_memory
        Maximum memory of all shards together, each of which gets an equal part, as for `latelier.indexes.Flat`.
    device
        None or ``"cpu"``.

    Raises
    ------
    IndexFormatError
        If the folder holds something else, or an index of another kind or of a newer version.
    InvalidArgumentError
        If the index in the folder has another number of shards or bits, another kind or another dtype.
    MissingExtraError
        If Ray is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from latelier import indexes
    >>> folder = tempfile.mkdtemp()
    >>> index = indexes.Sharded(folder, shards=2, kind="flat")
    >>> index.add(["a", "b"], [np.eye(2), -np.eye(2)])
    >>> index.search(np.array([[0.5, -1.0]]), k=1)
    [[Hit(id='b', score=1.0)]]
    >>> index.close()
    """

    kind = "sharded"

    def __init__(
        self,
        path: PathLike,
        *,
        shards: int | None = None,
        kind: Literal["ivf", "flat"] | None = None,
        nbits: Literal[8, 4, 2, 1] | None = None,
        dtype: Literal["float32", "float16"] | None = None,
        nodes: Sequence[str] | None = None,
        keywords: bool | None = None,
        tokenizer: Tokenizer | None = None,
        read_only: bool = False,
        max_memory: int | str | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        if device is not None and str(device) != "cpu":
            raise InvalidArgumentError(f"received device={str(device)!r}, but shards are searched on the CPU only.")
        self.path: Path = as_folder(path)
        budget = parse_bytes("max_memory", max_memory)
        asked = {"shards": shards, "kind": kind, "nbits": nbits, "dtype": dtype}
        new = _checked_configuration(**asked, nodes=nodes, tokenizer=check_options(keywords, tokenizer))
        self._storage = Storage(self.path, {"kind": self.kind, **new}, lambda dim, names: {}, read_only=read_only)
        self._workers: list[Any] = []
        self._is_closed = self._has_held_words = False
        try:
            stored = self._configuration = _stored_configuration(self._storage.configuration)
            held = {**stored, "kind": stored["index"]}
            for name, value in asked.items():
                if value not in (None, held[name]):
                    raise InvalidArgumentError(
                        f"received {name}={value!r}, but the index in {path} has {held[name]!r}; leave {name} out, "
                        "or make a new index."
                    )
            self._start(nodes or stored["nodes"], None if budget is None else budget // stored["shards"])
            if keywords is not None or tokenizer is not None:
                check_expected(f"the index in {self.path}", self.tokenizer, keywords, tokenizer)
        except BaseException:
            self.close()
            raise

    def _start(self, nodes: Sequence[str] | None, max_memory: int | None) -> None:
        """Start the processes; those of a new index make their shards."""
        stored = self._configuration
        count = self.shards
        if self._is_ivf:
            numbers = {"nbits": stored["nbits"]}
        else:
            numbers = {"dtype": stored["dtype"]}
        options = {**numbers, "keywords": stored["tokenizer"] is not None, "tokenizer": stored["tokenizer"]}
        places = [None if nodes is None else nodes[shard % len(nodes)] for shard in range(count)]
        make = not self._storage.read_only and self._storage.setting(_MADE) is None
        self._ray = connect_to_ray("A sharded index")
        self._connection = connection_of(self._ray)
        for shard, place in enumerate(places):
            opening = Opening(
                folder=str(self.path / "shards" / str(shard)),
                kind=stored["index"],
                options=options,
                make=make,
                read_only=self._storage.read_only,
                max_memory=max_memory,
                shards_on_node=places.count(place),
            )
            self._workers.append(start(self._ray, opening, place))
        if make:
            self._read("__len__")
            with self._storage.transaction() as transaction:
                transaction.set_setting(_MADE, True)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return int(self._configuration["shards"])

    @property
    def read_only(self) -> bool:
        """Whether writing raises an error."""
        return self._storage.read_only

    @property
    def dtype(self) -> str:
        """Floating type of the vectors that `get_embeddings` returns."""
        return self._configuration["dtype"] or "float32"

    @property
    def nbits(self) -> int | None:
        """Bits per number of the shards; None if they are exact."""
        return self._configuration["nbits"]

    @property
    def dim(self) -> int | None:
        """See `Index.dim`."""
        return next((dim for dim in self._read("dim") if dim is not None), None)

    @property
    def fields(self) -> list[str]:
        """See `Index.fields`."""
        return sorted({field for fields in self._read("fields") for field in fields})

    @property
    def settings(self) -> UserSettings:
        """See `Index.settings`."""
        return self._storage.settings

    @property
    def tokenizer(self) -> str | None:
        """Tokenizer of the keyword index; None if the index has none."""
        return self._read("tokenizer")[0]

    def _holds_words(self) -> bool:
        self._has_held_words = self._has_held_words or any(self._read("_holds_words"))  # a call takes milliseconds
        return self._has_held_words

    @property
    def memory(self) -> MemoryReport:
        """What all shards take in memory together; see `MemoryReport`."""
        reports: list[MemoryReport] = self._read("memory")
        kept = Counter[str]()
        read = Counter[str]()
        for report in reports:
            kept.update(report.kept)
            read.update(report.read)
        budgets = [report.budget for report in reports if report.budget is not None]
        tables = sum(report.tables for report in reports)
        working = sum(report.working for report in reports)
        return MemoryReport(sum(budgets) if budgets else None, tables, working, dict(kept), dict(read))

    # Writing.

    @property
    def origins(self) -> ShardedOrigins:
        """See `Index.origins`."""
        return ShardedOrigins(self)

    def _write(
        self, given: GivenDocuments, *, replace: bool | None, show_progress: bool, changes: Changes = NO_CHANGES
    ) -> list[int]:
        batches = DocumentBatches(given, dtype=self.dtype, batch_bytes=_BATCH_BYTES, show_progress=show_progress)
        if changes.files or changes.sources:  # shards commit by themselves
            with self._storage.transaction() as transaction:
                transaction.apply(unsettled(changes))
        left: list[int] = []
        count = 0
        with self._writing(changes, batches.peek) as (states, fields):
            following = max(self._call("read", "next_id"))
            dim = next((state.dim for state in states if state.dim is not None), None)
            number = max(state.next_number for state in states)
            known = [field for state in states for field in state.fields]
            seen: set[Id] = set()
            for batch in batches.read(dim, lambda embeddings, _: {"vectors": embeddings.vectors}):
                batch.documents.number(following)
                ids = [document.id for document in batch.documents]
                following = max([following, *(id + 1 for id in ids if isinstance(id, int))])
                if twice := [id for id, count in Counter(ids).items() if count > 1 or id in seen]:
                    raise duplicate_ids(twice, "given twice in this call; give every document a different id")
                if replace is False and (present := self.existing(ids)):
                    there = [id for id in ids if id in present]
                    raise duplicate_ids(there, "in the index already", advice="update")
                seen.update(ids)
                fields += new_fields([*known, *fields], (key for each in batch.documents for key in each.fields))
                # The fields of documents without metadata are a read-only mapping, which cannot be sent.
                documents = [document._replace(fields=dict(document.fields)) for document in batch.documents]
                embeddings = TokenEmbeddings(batch.arrays["vectors"], lengths_to_offsets(batch.lengths))
                counts = batch.documents.rows
                begins = np.cumsum(counts) - counts
                arguments = {}
                for shard, own in self._positions(ids).items():
                    some = np.array(own)
                    rows = embeddings[consecutive(begins[some], counts[some])]
                    arguments[shard] = ([documents[i] for i in own], rows, number + begins[some], replace, fields)
                owned = self._positions(ids)
                found = self._call("write", "insert", arguments)
                for own, refused in zip(owned.values(), found, strict=True):
                    left += [count + own[i] for i in refused]
                count += len(ids)
                number += int(counts.sum())
            self._change_documents(changes)
        self._call("write", "maintain")
        return sorted(left)

    def _choose_codec(self, peek: Callable[[int], TokenEmbeddings | None]) -> None:
        """Choose what the codes of all shards depend on, as one index with the same documents does."""
        bits = self._configuration["nbits"]
        dim = self.dim
        chosen = [] if dim is None else self._choices(dim)
        if dim is None or not all(each.is_final(bits) for each in chosen):
            first = peek(0 if bits in PLAIN_BITS else CODEBOOK_TOKENS)
            if first is None or not first.num_tokens or dim not in (None, first.dim):
                return  # nothing to choose from, or the write will fail
            dim = first.dim
            chosen = chosen or self._choices(dim)
            known = [] if self.dim is None else chosen  # what is chosen anew when there are no documents
            axes = [each.axis for each in known if each.axis is not None]
            codebooks = [each.codebook for each in known if each.codebook is not None]
            before = CodecChoice(next(iter(axes), None), next(iter(codebooks), None))
            choice = choose_codec(before, bits, first, self.statistics().tokens, self._vectors)
            if any(each != choice for each in chosen):
                self._call("write", "take_codec", (dim, choice))

    def _choices(self, dim: int) -> list[CodecChoice]:
        """Return what each shard has chosen for its codes."""
        return self._call("read", "read", ("codec_choice", dim))

    def _vectors(self) -> list[TokenEmbeddings]:
        """Return the vectors of all documents, in the order of insertion."""
        found = [each for each in self._call("read", "read", ("stored_vectors",)) if len(each[0])]
        if not found:
            return []
        numbers, vectors = zip(*found, strict=True)
        order = np.argsort(np.concatenate(numbers), kind="stable")
        return [TokenEmbeddings.concatenate(vectors)[order]]

    def _change_documents(self, changes: Changes) -> None:
        """Change documents in their shards, within a transaction."""
        ids = list(dict.fromkeys([*changes.removed, *changes.moved]))
        arguments = {}
        for shard, positions in self._positions(ids).items():
            own = {ids[i] for i in positions}
            removed = {id: seen for id, seen in changes.removed.items() if id in own}
            moved = {id: seen for id, seen in changes.moved.items() if id in own}
            arguments[shard] = (Changes(removed=removed, moved=moved),)
        if arguments:
            self._call("write", "change", arguments)

    def remove(self, ids: Id | Iterable[Id]) -> None:
        """See `Index.remove`."""
        known = list(dict.fromkeys(as_ids(ids)))
        with self._writing():
            check_known(known, self.existing(known))
            own = self._positions(known)
            removed = {shard: [known[i] for i in own.get(shard, [])] for shard in range(self.shards)}
            self._call("write", "remove", {shard: (each,) for shard, each in removed.items()})

    @contextmanager
    def _writing(
        self, changes: Changes = NO_CHANGES, peek: Callable[[int], TokenEmbeddings | None] | None = None
    ) -> Iterator[tuple[list[WriteState], list[str]]]:
        """Begin a transaction in every shard, as the only writer of all processes, and commit them at the end.

        `peek`: `DocumentBatches.peek` of the documents that will be added.
        """
        with self._storage.transaction() as transaction:
            if changes != NO_CHANGES:
                transaction.apply(changes._replace(removed={}, moved={}))
            if peek is not None and self._is_ivf:
                self._choose_codec(peek)
            try:
                fields: list[str] = []
                yield self._call("write", "begin"), fields
            except BaseException:
                with suppress(LatelierError):  # a process that has died has rolled back already
                    self._call("write", "roll_back")
                raise
            stored, errors = self._gather("write", "commit", dict.fromkeys(range(self.shards), (fields,)))
        if errors:
            error = next(iter(errors.values()))
            raise StorageError(
                f"this write is stored in {_numbered(stored)}, but perhaps not in {_numbered(errors)}: {error} Call "
                "update() with the same documents, or remove() with the ids that are left, to complete it."
            ) from error

    def compact(
        self, *, keywords: bool | None = None, tokenizer: Tokenizer | None = None, show_progress: bool = False
    ) -> None:
        """See `Index.compact`; all shards are compacted at the same time."""
        check_compaction(keywords, tokenizer)
        with progress_bar(shown=show_progress, unit=" documents") as progress, self._storage.transaction():
            damages = self._call("write", "compact", (keywords, tokenizer))
            progress.update(len(self))
        if found := [damage for own in damages for damage in own]:
            warn_of_damage("; ".join(found))

    # Reading.

    @property
    def search_options(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Index.search_options`."""
        return KINDS[self._configuration["index"]].search_options

    def _find(self, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[Hit]]:
        """See `Index.find`; each shard computes BM25 with the statistics of its own documents."""
        vectors = check_queries(queries, None, texts, options.mode)
        every = dict.fromkeys(range(self.shards), (vectors, k, texts, options))
        found = self._call("read", "search", every)
        by_query: list[tuple[ShardFindings, ...]] = list(zip(*found, strict=True))
        has_words = any(len(each.by_words.numbers) for row in by_query for each in row)
        if options.mode != "vectors" and not has_words and len(self) and not self.statistics().has_texts:
            raise without_texts()
        return [merge_findings(row, options, k) for row in by_query]

    def highest_scores(self, texts: Sequence[str]) -> list[float]:
        """See `Index.highest_scores`: of the shard that has the highest."""
        found = self._call("read", "read", ("highest_scores", texts))
        return [max(own) for own in zip(*found, strict=True)]

    def near_words(self, text: str) -> dict[str, str]:
        """See `Index.near_words`."""
        found: dict[str, Near] = {}
        for own in self._call("read", "read", ("nearest_words", asked_terms(text, self.tokenizer or ""))):
            for word, near in own.items():
                if word not in found or (near.edits, -near.documents) < (found[word].edits, -found[word].documents):
                    found[word] = near
        return {word: near.spelled for word, near in found.items() if near.edits}

    def get(self, ids: Id | Iterable[Id]) -> Record | list[Record]:
        """See `Index.get`."""
        wanted = as_ids(ids)
        found = {record.id: record for _, own in self._by_shard("get", wanted) for record in own}
        records = [found[id] for id in wanted]
        if is_single_id(ids):
            return records[0]
        return records

    def get_embeddings(self, ids: Id | Iterable[Id], ranges: Ranges | None = None) -> TokenEmbeddings:
        """See `Index.get_embeddings`."""
        wanted = as_ids(ids)
        chosen = check_ranges(ranges, len(wanted)) or [None] * len(wanted)
        if not wanted:
            return TokenEmbeddings.from_list([], dim=self.dim).to(self.dtype)
        own = self._positions(wanted)
        calls = {shard: ([wanted[i] for i in some], [chosen[i] for i in some]) for shard, some in own.items()}
        found, errors = self._gather("read", "embeddings", calls)
        if errors:
            check_known(wanted, self.existing(wanted))
            raise next(iter(errors.values()))
        counts = np.zeros(len(wanted), dtype="int64")
        begins = np.zeros(len(wanted), dtype="int64")
        read = 0
        for shard, some in own.items():
            rows = np.array(found[shard][1])
            counts[some] = rows
            begins[some] = read + np.cumsum(rows) - rows
            read += int(rows.sum())
        rows = consecutive(begins, counts)
        return TokenEmbeddings.concatenate([found[shard][0] for shard in own])[rows]

    def existing(self, ids: Sequence[Id]) -> dict[Id, int]:
        """See `Index.existing`."""
        own = {shard: ([ids[i] for i in positions],) for shard, positions in self._positions(ids).items()}
        return {id: number for found in self._call("read", "numbers", own) for id, number in found.items()}

    def ids(self) -> list[Id]:
        """See `Index.ids`."""
        found = self._call("read", "ids")
        numbers = {id: number for own in found for id, number in own.items()}
        return sorted(numbers, key=numbers.__getitem__)

    def statistics(self) -> IndexStatistics:
        """See `Index.statistics`; no vector is read."""
        found: list[IndexStatistics] = self._read("statistics")
        files = sum(path.stat().st_size for path in self.path.iterdir() if path.is_file())
        return IndexStatistics(
            documents=sum(each.documents for each in found),
            tokens=sum(each.tokens or 0 for each in found),
            removed=sum(each.removed or 0 for each in found),
            bytes=files + sum(each.bytes or 0 for each in found),
            has_texts=any(each.has_texts for each in found),
            has_metadata=any(each.has_metadata for each in found),
            text_bytes=sum(each.text_bytes or 0 for each in found),
            cut=stored_cut(self.settings),
            passages=sum(each.passages for each in found),
        )

    def verify(self) -> VerifyReport:
        """See `Index.verify`."""
        own = self._storage.verify()
        files = own.files
        damages = list(own.damages)
        for shard, report in enumerate(self._read("verify")):
            files += report.files
            damages += [replace(damage, file=f"shards/{shard}/{damage.file}") for damage in report.damages]
        return VerifyReport(files, tuple(damages))

    def close(self) -> None:
        """See `Index.close`; the processes of the shards end."""
        self._storage.close()
        if self._is_closed or is_forked():
            return
        self._is_closed = True  # first: calls that the end of the processes fails say so
        if self._workers and connection_of(self._ray) == self._connection:
            closing = [each.close.options(concurrency_group="write").remote() for each in self._workers]
            self._ray.wait(closing, num_returns=len(closing), timeout=_RESTART_SECONDS)
            for each in self._workers:
                stop(self._ray, each)

    def __len__(self) -> int:
        return sum(self._read("__len__"))

    def __repr__(self) -> str:
        stored = self._configuration
        where = f"{self.shards} shards of {KINDS[stored['index']].__name__}, {str(self.path)!r}"
        try:
            found = self.statistics()
        except LatelierError:
            return f"Sharded(closed or damaged, {str(self.path)!r})"
        if not found.documents:
            return f"Sharded(0 documents, {where})"
        numbers = f"{self.nbits}-bit" if self._is_ivf else self.dtype
        return f"Sharded({found.documents:,} documents, {found.tokens:,} tokens, dim={self.dim}, {numbers}, {where})"

    # Calls of the shards.

    @property
    def _is_ivf(self) -> bool:
        return self._configuration["index"] == "ivf"

    def _positions(self, ids: Sequence[Id]) -> dict[int, list[int]]:
        """Return the positions of ids by shard; shards without an id are left out."""
        found: dict[int, list[int]] = {}
        for position, id in enumerate(ids):
            found.setdefault(shard_of(id, self.shards), []).append(position)
        return found

    def _by_shard(self, name: str, ids: Sequence[Id]) -> list[tuple[list[Id], Any]]:
        """Call a method of those shards that have some of the ids; return their ids and results; name unknown ids."""
        own = {shard: [ids[i] for i in positions] for shard, positions in self._positions(ids).items()}
        found, errors = self._gather("read", "read", {shard: (name, each) for shard, each in own.items()})
        if errors:
            check_known(ids, self.existing(ids))
            raise next(iter(errors.values()))
        return [(own[shard], result) for shard, result in found.items()]

    def _read(self, name: str) -> list[Any]:
        """Return a property, or the result of a method without arguments, of the index of each shard."""
        return self._call("read", "read", (name,))

    def _call(
        self, group: str, method: str, arguments: tuple[Any, ...] | Mapping[int, tuple[Any, ...]] = ()
    ) -> list[Any]:
        """Call a method of `ShardWorker` in all shards; raise the first error, once all calls have ended."""
        given = dict.fromkeys(range(self.shards), arguments) if isinstance(arguments, tuple) else arguments
        found, errors = self._gather(group, method, given)
        for error in errors.values():
            raise error
        return list(found.values())

    def _gather(
        self, group: str, method: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> tuple[dict[int, Any], dict[int, Exception]]:
        """Call a method of several shards at the same time; return the results and the errors, by shard.

        Reads are repeated until a process that has died runs again. Writes are not: what the process had
        written before is rolled back.
        """
        found: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        ray = self._ray.exceptions
        deaths = ray.RayActorError, ray.ObjectLostError, ray.WorkerCrashedError, ray.NodeDiedError
        waiting = dict(arguments)
        deadline = time.monotonic() + _RESTART_SECONDS
        while True:
            self._check_open()
            calls = {
                shard: getattr(self._workers[shard], method).options(concurrency_group=group).remote(*given)
                for shard, given in waiting.items()
            }
            for shard, call in calls.items():
                try:
                    found[shard] = self._ray.get(call)
                    del waiting[shard]
                except ray.RayTaskError as error:
                    errors[shard] = error.cause
                    del waiting[shard]
                except deaths:  # or it is not running again yet
                    pass
            if not (waiting and group == "read" and time.monotonic() < deadline):
                break
            time.sleep(_PAUSE_SECONDS)
        self._has_held_words = self._has_held_words and group == "read"
        if errors or waiting:
            self._check_open()
        for shard in waiting:
            errors[shard] = StorageError(
                f"the process of shard {shard} in {self.path} has died, and Ray is starting it again. What was stored "
                "is kept; see that its node is running, and try again in some seconds."
            )
        return {shard: found[shard] for shard in arguments if shard in found}, errors

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_error(self.path)
        if connection_of(self._ray) != self._connection:
            raise StorageError(
                "this sharded index has lost its processes: this process has disconnected from Ray, as ray.shutdown() "
                "does. What was stored is kept; open it again."
            )


def shard_of(id: Id, shards: int) -> int:
    """Return the shard of an id: its BLAKE2b hash modulo the number of shards; 1 and "1" are two ids."""
    spelled = f"{'s' if isinstance(id, str) else 'i'}{id}".encode()
    return int.from_bytes(hashlib.blake2b(spelled, digest_size=8).digest(), "big") % shards


def _checked_configuration(
    *, shards: Any, kind: Any, nbits: Any, dtype: Any, nodes: Any, tokenizer: str | None
) -> dict[str, Any]:
    """Check the arguments of users, and return the configuration of a new index."""
    count = check_count("shards", 2 if shards is None else shards, most=_MOST_SHARDS)
    kind = "ivf" if kind is None else kind
    check_choice("kind", kind, KINDS)
    check_choice("nbits", nbits, BITS, optional=True)
    check_choice("dtype", dtype, ("float32", "float16"), optional=True)
    if (dtype if kind == "ivf" else nbits) is not None:
        raise InvalidArgumentError(f"received {dtype=} and {nbits=}; kind='flat' has a dtype, kind='ivf' nbits.")
    return {
        "shards": count,
        "index": str(kind),
        "nbits": int(nbits or 8) if kind == "ivf" else None,
        "dtype": str(dtype or "float32") if kind == "flat" else None,
        "nodes": None if nodes is None else list(nodes),
        "tokenizer": tokenizer,
    }


def _stored_configuration(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in a catalog, checked: it may come from a stranger."""
    try:
        check_choice("tokenizer", stored["tokenizer"], TOKENIZERS, optional=True)
        options = {name: stored[name] for name in ("shards", "nbits", "dtype", "nodes", "tokenizer")}
        return _checked_configuration(kind=stored["index"], **options)
    except (KeyError, TypeError, InvalidArgumentError) as error:
        raise IndexFormatError(f"the configuration of this sharded index is not known: {error}") from error


def _numbered(shards: Iterable[int]) -> str:
    """Return the numbers of shards in words."""
    numbers = sorted(shards)
    if numbers:
        return f"shard{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    return "no shard"
