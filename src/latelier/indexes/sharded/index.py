"""`Sharded`: an index whose documents are divided among shards, each an ordinary index in a process of a Ray cluster.

The folder of the index holds a catalog with the commit record and the settings of users, but no documents; each shard
has a folder of its own, ``shards/<generation>/<shard>``, which `latelier.indexes.open` can open alone. Writes go
through `latelier.indexes.sharded.writing`, and reads through `latelier.indexes.sharded.views`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes.base import Index, PathLike, SearchOptions, Tokenizer
from latelier.indexes.documents import DocumentBatches
from latelier.indexes.exact import check_efforts, measure_recall
from latelier.indexes.results import (
    CheckReport,
    Hit,
    Id,
    IndexStatistics,
    Record,
    VerifyReport,
    warn_of_damage,
)
from latelier.indexes.sharded.commit_record import MOST_SHARDS, CommitRecord
from latelier.indexes.sharded.configuration import KINDS, Configuration
from latelier.indexes.sharded.generations import Generations
from latelier.indexes.sharded.placement import positions_by_shard
from latelier.indexes.sharded.replicas import Replicas, persist
from latelier.indexes.sharded.resharding import Resharding
from latelier.indexes.sharded.searching import search_view
from latelier.indexes.sharded.views import ShardsView, ShardsViews, read_record
from latelier.indexes.sharded.writing import Writer
from latelier.indexes.store import connections
from latelier.indexes.store.connections import as_folder
from latelier.indexes.store.keywords import check_compaction, check_expected, check_options
from latelier.indexes.store.settings import UserSettings
from latelier.indexes.store.storage import Storage
from latelier.indexes.stored import MemoryReport
from latelier.indexes.values import as_id, as_ids, as_prefixes, check_known, is_single_id
from latelier.utils.checks import check_count, parse_bytes
from latelier.utils.misc import progress_bar
from latelier.utils.ragged import lengths_to_offsets

if TYPE_CHECKING:
    import torch

__all__ = ["Sharded"]

# Bytes of the vectors that are read, divided and sent at a time.
_BATCH_BYTES = 16 << 20


class Sharded(Index):
    """An index of several shards in the processes of a Ray cluster, on one machine or on several.

    It finds what one index with the same documents finds: exactly with ``index="flat"`` and with ``effort="exact"``.
    If Ray is not connected to a cluster, a local one is started; call ``ray.init(address=...)`` before to use another.

    Parameters
    ----------
    path
        Folder of the index, on a local disk of this machine.
    shards
        Number of shards of a new index, by default 2.
    index
        Kind of the shards: ``"ivf"`` (the default), see `latelier.indexes.IVF`, or ``"flat"``, see
        `latelier.indexes.Flat`.
    nbits
        For ``"ivf"``: bits per number.
    dtype
        For ``"flat"``: ``"float32"`` or ``"float16"``.
    replicas
        Number of copies of each shard of a new index, by default 1. Searches take them in turn, and go on with the
        others when one dies; writes need all of them.
    nodes
        IP addresses of Ray nodes, or names of custom resources of them: replica ``r`` of shard ``i`` is on
        ``nodes[(i + r) % len(nodes)]``, in a folder with the same path there. None: as the index was made; a new one is
        on this machine.
    keywords, tokenizer
        See `latelier.indexes.Flat`.
    read_only
        Never write; implied if the folder cannot be written.
    max_memory
        Maximum memory of all shards and replicas together, each of which gets an equal part; see
        `latelier.indexes.Flat`.
    device
        None or ``"cpu"``.

    Raises
    ------
    IndexFormatError
        If the folder holds something else, or an index of another kind or of a newer version.
    InvalidArgumentError
        If the index in the folder has another number of shards, replicas or bits, another kind or another dtype.
    MissingExtraError
        If Ray is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from latelier import indexes
    >>> folder = tempfile.mkdtemp()
    >>> index = indexes.Sharded(folder, shards=2, index="flat")
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
        index: Literal["ivf", "flat"] | None = None,
        nbits: Literal[8, 4, 2, 1] | None = None,
        dtype: Literal["float32", "float16"] | None = None,
        replicas: int | None = None,
        nodes: Sequence[str] | None = None,
        keywords: bool | None = None,
        tokenizer: Tokenizer | None = None,
        read_only: bool = False,
        max_memory: int | str | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        if device is not None and str(device) != "cpu":
            raise InvalidArgumentError(f"received device={str(device)!r}, but shards are searched on the CPU only.")
        if path is None:
            raise InvalidArgumentError("received None as a path; a sharded index needs a folder.")
        self.path: Path = as_folder(path)
        budget = parse_bytes("max_memory", max_memory)
        given = Configuration.checked(shards, replicas, index, nbits, dtype, nodes, check_options(keywords, tokenizer))
        stored = {"kind": self.kind, **given.to_json()}
        self._storage = Storage(self.path, stored, lambda dim: {}, read_only=read_only)
        try:
            self._configuration = Configuration.from_json(self._storage.configuration)
            initial = self._configuration.initial_record()
            present = self._configuration._replace(shards=read_record(self._storage, initial).shards)
            present.check_equal(self.path, shards, replicas, index, nbits, dtype)
        except BaseException:
            self._storage.close()
            raise
        self._given_nodes, self._budget = nodes, budget
        self._generations = Generations(self.path, self._start)
        self._views = ShardsViews(self._storage, self._generations, initial)
        self._writer = Writer(self._storage, self._generations, self._views)
        try:
            with self._views.using() as (record, running):
                if not self._storage.read_only:
                    self._writer.catch_up(record, running, drop_others=False)
            if keywords is not None or tokenizer is not None:
                self._check_tokenizer(keywords, tokenizer)
        except BaseException:
            self.close()
            raise

    @property
    def shards(self) -> int:
        """Number of shards."""
        return self._views.record().shards

    @property
    def replicas(self) -> int:
        """Number of copies of each shard."""
        return self._views.record().replicas

    @property
    def read_only(self) -> bool:
        """Whether writing raises an error."""
        return self._storage.read_only

    @property
    def dtype(self) -> str:
        """Floating type of the vectors that `get_embeddings` returns."""
        return self._configuration.dtype or "float32"

    @property
    def nbits(self) -> int | None:
        """Bits per number of the shards; None if they are exact."""
        return self._configuration.nbits

    @property
    def dim(self) -> int | None:
        """See `Index.dim`."""
        return self._views.run(lambda view: view.dim)

    @property
    def fields(self) -> list[str]:
        """See `Index.fields`."""
        return self._storage.fields()

    @property
    def settings(self) -> UserSettings:
        """See `Index.settings`."""
        return self._storage.settings

    @property
    def tokenizer(self) -> str | None:
        """Tokenizer of the keyword index; None if the index has none."""
        return self._views.run(lambda view: view.tokenizer)

    @property
    def memory(self) -> MemoryReport:
        """What all shards and replicas take in memory together; see `MemoryReport`."""
        self._storage.stamp()  # raises an error if the index is closed
        reports: list[MemoryReport] = self._views.call("memory")
        kept, read = Counter[str](), Counter[str]()
        for report in reports:
            kept.update(report.kept)
            read.update(report.read)
        budgets = [report.budget for report in reports if report.budget is not None]
        tables, working = sum(report.tables for report in reports), sum(report.working for report in reports)
        return MemoryReport(sum(budgets) if budgets else None, tables, working, dict(kept), dict(read))

    def remove(self, ids: Id | Iterable[Id] = (), *, prefixes: Iterable[str] = ()) -> None:
        """See `Index.remove`."""
        known, begins = list(dict.fromkeys(as_ids(ids))), as_prefixes(prefixes)
        with self._writer.begin() as (write, view):
            check_known(known, {id for found in self._by_shard(view, "known", known).values() for id in found})
            write.remove, write.prefixes = known, begins

    @property
    def search_options(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Index.search_options`."""
        return KINDS[self._configuration.shard_kind].search_options

    def find(self, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[Hit]]:
        """See `Index.find`; each shard searches with the same options."""
        return self._views.run(lambda view: search_view(view, queries, k, texts, options))

    def get(self, ids: Id | Iterable[Id]) -> Record | list[Record]:
        """See `Index.get`."""
        wanted = as_ids(ids)
        by_shard = self._views.run(lambda view: self._by_shard(view, "records", wanted))
        found: dict[Id, Record] = {id: record for own in by_shard.values() for id, record in own.items()}
        check_known(wanted, found)
        records = [found[id] for id in wanted]
        return records[0] if is_single_id(ids) else records

    def get_embeddings(self, ids: Id | Iterable[Id]) -> TokenEmbeddings:
        """See `Index.get_embeddings`."""
        wanted = as_ids(ids)
        if not wanted:
            return TokenEmbeddings.from_list([], dim=self.dim).to(self.dtype)
        distinct = list(dict.fromkeys(wanted))
        found = self._views.run(lambda view: self._by_shard(view, "embeddings", distinct)).values()
        places = {id: place for place, id in enumerate(id for own, _ in found for id in own)}
        check_known(wanted, places)
        stored = TokenEmbeddings.concatenate([embeddings for own, embeddings in found if own])
        return stored[np.array([places[id] for id in wanted])]

    def ids(self, prefix: str | None = None) -> list[Id]:
        """See `Index.ids`."""
        begin = None if prefix is None else as_prefixes([prefix])[0]
        found = self._views.run(lambda view: view.ask("numbered_ids", begin))
        ids = [id for own, _ in found for id in own]
        order = np.argsort(np.concatenate([np.array(numbers, dtype="int64") for _, numbers in found]))
        return [ids[place] for place in order]

    def snapshot(self) -> AbstractContextManager[None]:
        """See `Index.snapshot`."""
        return self._views.hold()

    def compact(
        self, *, keywords: bool | None = None, tokenizer: Tokenizer | None = None, show_progress: bool = False
    ) -> None:
        """See `Index.compact`; all shards are compacted at the same time."""
        check_compaction(keywords, tokenizer)
        with progress_bar(shown=show_progress, unit=" documents") as progress:
            damages = self._writer.reorganise(lambda replica: replica.write("compact", keywords, tokenizer))
            progress.update(len(self))
        if found := [damage for own in damages for damage in own]:
            warn_of_damage("; ".join(found))

    def reshard(self, shards: int, *, show_progress: bool = False) -> None:
        """Divide the documents among another number of shards, while others go on reading and writing.

        Stored vectors are copied as they are, so results stay. The old shards stay on disk until `compact` or the next
        `reshard`. With the present number of shards, all of them are made anew.

        Parameters
        ----------
        shards
            The new number of shards.
        show_progress
            Show a progress bar on stderr.

        Raises
        ------
        LatelierError
            If a process dies, a document is damaged, or another `reshard` begins; the index is unchanged.
        """
        count = check_count("shards", shards, most=MOST_SHARDS)
        with progress_bar(shown=show_progress, unit=" documents", total=len(self)) as progress:
            given = (self._storage, self._generations, self._views, self._writer)
            Resharding(*given, self._start, progress.update).run(count)

    def check(self, k: int = 10, *, queries: int = 20) -> CheckReport:
        """See `Index.check` and `latelier.indexes.IVF.check`."""
        k, queries = check_count("k", k), check_count("queries", queries)
        with self.snapshot():
            if self.search_options:
                return check_efforts(self, k, queries)
            return measure_recall(self, k, queries)[0]

    def statistics(self) -> IndexStatistics:
        """Return how much the index holds, and on how many bytes, those of all replicas; no vector is read."""
        files = (path for path in self.path.iterdir() if path.is_file())
        found: list[IndexStatistics] = self._views.call("statistics")
        with self._views.open() as view:
            return IndexStatistics(
                documents=view.documents,
                tokens=view.tokens,
                removed=sum(each.removed for each in found) // view.record.replicas,
                bytes=sum(each.bytes or 0 for each in found) + sum(path.stat().st_size for path in files),
                has_texts=view.has_texts,
                has_metadata=view.has_metadata,
            )

    def verify(self) -> VerifyReport:
        """See `Index.verify`."""
        own = self._storage.verify()
        with self._views.using() as (_, running):
            reports: list[VerifyReport] = persist(replicas := list(running), lambda each: each.call("verify"))
        files, damages = own.files, list(own.damages)
        for replica, report in zip(replicas, reports, strict=True):
            folder = replica.options.folder.removeprefix(str(self.path)).replace("\\", "/").strip("/")
            files += report.files
            damages += [replace(damage, file=f"{folder}/{damage.file}") for damage in report.damages]
        return VerifyReport(files, tuple(damages))

    def close(self) -> None:
        """See `Index.close`; the processes of the shards end."""
        self._storage.close()
        self._views.close()
        self._generations.close()

    def __len__(self) -> int:
        return self._views.run(lambda view: view.documents)

    def __contains__(self, id: object) -> bool:
        try:
            known = as_id(id)
        except InvalidArgumentError:
            return False
        return bool(self._views.run(lambda view: self._by_shard(view, "known", [known])).popitem()[1])

    def __repr__(self) -> str:
        try:
            documents, tokens, dim = self._views.run(lambda view: (view.documents, view.tokens, view.dim))
            where = f"{self.shards} shards of {self._configuration.class_name}, {str(self.path)!r}"
        except LatelierError:
            return f"Sharded(closed or damaged, {str(self.path)!r})"
        if not documents:
            return f"Sharded(0 documents, {where})"
        numbers = self._configuration.describe_numbers()
        return f"Sharded({documents:,} documents, {tokens:,} tokens, dim={dim}, {numbers}, {where})"

    def _start(self, record: CommitRecord, options: dict[str, Any] | None = None) -> Replicas:
        """Start the processes of the shards of a commit; `options` are those of new shards."""
        return Replicas(
            self.path,
            record,
            self._configuration.shard_kind,
            self._configuration.options() | (options or {}),
            nodes=self._given_nodes,
            read_only=self._storage.read_only,
            max_memory=None if self._budget is None else self._budget // (record.shards * record.replicas),
        )

    def _write(
        self, given: tuple[Any, Any, Any, Any], *, replace: bool, prefixes: Sequence[str], show_progress: bool
    ) -> None:
        batches = DocumentBatches(*given, dtype=self.dtype, batch_bytes=_BATCH_BYTES, show_progress=show_progress)
        with self._writer.begin() as (write, view):
            write.replace, write.prefixes = replace, list(prefixes)
            read = batches.read(view.dim, lambda embeddings, _: {"vectors": embeddings.vectors})
            for batch in connections.iterate_outside(read):
                embeddings = TokenEmbeddings(batch.arrays["vectors"], lengths_to_offsets(batch.lengths))
                write.insert(batch.documents, embeddings)

    def _by_shard(self, view: ShardsView, method: str, ids: Sequence[Id]) -> dict[int, Any]:
        """Return the result of a method of `ShardReader` for those shards that hold some of the ids."""
        positions = positions_by_shard(ids, len(view.shards))
        given = {shard: ([ids[position] for position in own],) for shard, own in positions.items()}
        return view.ask_some(method, given)

    def _check_tokenizer(self, keywords: bool | None, tokenizer: str | None) -> None:
        check_expected(f"the index in {self.path}", self.tokenizer, keywords, tokenizer)
