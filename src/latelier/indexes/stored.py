"""`StoredIndex`: the base class of indexes in this library's own storage; subclasses encode and search the vectors."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes.base import Index, Parameters, PathLike
from latelier.indexes.catalog import forks
from latelier.indexes.catalog.filters.bounds import check_limits
from latelier.indexes.catalog.folder import as_folder
from latelier.indexes.catalog.keywords import check_compaction, check_expected, check_options
from latelier.indexes.catalog.settings import UserSettings
from latelier.indexes.catalog.values import as_id, as_ids, as_prefixes, is_single_id
from latelier.indexes.hybrid_search import SearchParts, hits_of, rank_with_keywords
from latelier.indexes.inputs import DocumentBatch, DocumentBatches, prepare_queries
from latelier.indexes.memory import MemoryReport
from latelier.indexes.ranking import Ranking
from latelier.indexes.recall import measure_recall
from latelier.indexes.results import CheckReport, Hit, Id, Record, VerifyReport
from latelier.indexes.search_mode import Fusion, Mode, SearchMode, Tokenizer
from latelier.indexes.statistics import IndexStatistics
from latelier.indexes.storage.scratch import Scratch
from latelier.indexes.storage.segments import Arrays, Part, Segment, TokenArray
from latelier.indexes.storage.snapshot import Snapshot
from latelier.indexes.storage.storage import Storage, StoredSizes
from latelier.indexes.storage.transaction import Transaction
from latelier.indexes.warning import warn_of_damage
from latelier.kernels.threads import FirstUse
from latelier.scores.topk import TopK
from latelier.utils import resolve_device
from latelier.utils.checks import check_count, parse_bytes
from latelier.utils.misc import progress_bar

if TYPE_CHECKING:
    import torch

    from latelier.indexes.gpu import GpuSearch

__all__ = ["StoredIndex"]

# Maximum size of the vectors of a batch in a write without a budget, and of the vectors of a merged segment.
_SEGMENT_BYTES = 256 << 20
# Shares of the working memory: a batch, held in the form in which it came and as token arrays; and each array that a
# write makes.
_BATCH_SHARE, _SCRATCH_SHARE = 4, 4
# The header of an array's file.
_HEADER_BYTES = 128


class StoredIndex(Index):
    """An index in this library's own storage.

    This class checks the arguments of users, so a subclass gets packed, finite vectors of one dim. A subclass provides:

    ``kind``, ``_choices``
        Its name in the catalog, and the values that each entry of the configuration can have.
    ``dtype``, ``_layout``
        The floating type of the vectors that it takes and returns, and the token arrays that it stores.
    ``encode``, ``_decode``
        Convert vectors to token arrays, and back.
    ``_plan``
        Divides the memory budget.
    ``_search``
        Finds the best documents for queries among the documents that a filter has selected.

    It can also override ``after_write`` (maintenance of ANN data), ``_are_finite``, ``_gpu_dtype`` and ``_describe``.

    A write calls ``add -> _write -> DocumentBatches -> encode -> Transaction.insert`` and returns after its commit. A
    search calls ``search -> _find -> _search``; `_find` evaluates the filter first, and makes hits of the found
    documents last.

    Parameters
    ----------
    path
        Folder of the index; ``None`` keeps it in memory.
    configuration
        Configuration of a new index; an existing index keeps its own, ``self._storage.configuration``.
    read_only
        Never write.
    max_memory
        The memory budget, as bytes or a text with a unit; see `latelier.indexes.memory`.
    keywords, tokenizer
        Whether a new index has a keyword index of its texts, and with which tokenizer; see `check_options`.
    device
        Device to search on. A GPU gets a copy of the vectors at the first search, and scores every document for every
        query, many queries at a time. ``None`` or ``"cpu"`` searches with `_search`.
    """

    kind: ClassVar[str]
    _choices: ClassVar[dict[str, tuple[Any, ...]]]
    # Decides whether kernels or numpy answer a search.
    _first_use: ClassVar[FirstUse]
    # Maximum size of the segments that are merged from smaller ones, and of the batches in which documents are written,
    # both as vectors of the index's dtype; a memory budget makes the batches smaller.
    _segment_bytes: int = _SEGMENT_BYTES

    def __init__(
        self,
        path: PathLike | None,
        configuration: Mapping[str, Any],
        *,
        read_only: bool,
        max_memory: int | str | None,
        keywords: bool | None = None,
        tokenizer: Tokenizer | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        if path is None and read_only:
            raise InvalidArgumentError("an index in memory begins empty; read_only=True needs a path.")
        self.path = None if path is None else as_folder(path)
        self._max_memory = parse_bytes("max_memory", max_memory)
        self._gpu: GpuSearch | None = None
        resolved = None if device is None else resolve_device(device)  # before a folder is made
        configuration = {"kind": self.kind, **configuration}
        given = check_options(keywords, tokenizer)
        self._storage = Storage(self.path, configuration, self._layout, tokenizer=given, read_only=read_only)
        for name, choices in self._choices.items():
            stored = self._storage.configuration.get(name)
            if stored not in choices:
                self._storage.close()
                known = ", ".join(map(repr, choices))
                raise IndexFormatError(f"the index in {path} has {name}={stored!r}; this version knows {known}.")
        if self._max_memory is not None:
            try:
                self._storage.scratch = Scratch(self.path, self.memory.working // _SCRATCH_SHARE)
            except BaseException:
                self._storage.close()
                raise
        if keywords is not None or tokenizer is not None:
            self._check_tokenizer(keywords, tokenizer)
        if resolved is not None and resolved.type != "cpu":
            from latelier.indexes.gpu import GpuSearch

            self._gpu = GpuSearch(resolved, self._decode, self._gpu_dtype)

    # Methods that subclasses provide.

    @property
    @abstractmethod
    def dtype(self) -> str:
        """Floating type of the vectors that `encode` gets and `get_embeddings` returns."""

    @abstractmethod
    def _layout(self, dim: int) -> dict[str, TokenArray]:
        """Return the dtype and the shape per token of each array that `encode` returns."""

    @abstractmethod
    def encode(self, embeddings: TokenEmbeddings, into: Arrays | None = None) -> Arrays:
        """Return the token arrays of some documents, each with one row per token; they may be written to `into`."""

    def _are_finite(self, arrays: Arrays) -> bool:
        """Whether token arrays show that all vectors were finite; if not, the vectors themselves are checked."""
        return False

    @abstractmethod
    def _decode(self, part: Part) -> TokenEmbeddings:
        """Return the vectors of stored documents."""

    @abstractmethod
    def _search(self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK) -> None:
        """Search the documents in `parts`, and add those with the highest scores to `best`."""

    @abstractmethod
    def _plan(self, sizes: StoredSizes, dim: int | None) -> MemoryReport:
        """Divide the memory budget of an index that stores so much; raise an error if it is not enough."""

    def after_write(self) -> None:
        """Run maintenance after the commit of an `add` or `update`; by default, do nothing."""

    @property
    def _gpu_dtype(self) -> str:
        """Floating type of the vectors that a GPU holds."""
        return str(self.dtype)

    def _describe(self) -> str:
        """Return the description of the stored numbers in `repr`."""
        return self.dtype

    # The steps of writes and searches, for an index whose documents are divided among several such as this.

    @property
    def storage(self) -> Storage:
        """Where the documents are stored."""
        return self._storage

    @property
    def batch_bytes(self) -> int:
        """Size of the vectors that a write holds in memory at a time, in bytes."""
        if self._max_memory is None:
            return self._segment_bytes
        return min(self._segment_bytes, self.memory.working // _BATCH_SHARE)

    def budget_check(self) -> Callable[[DocumentBatch], DocumentBatch]:
        """Return a function that checks the memory budget and returns each batch of a write that it is called with.

        It raises `InvalidArgumentError` if the index with all batches so far could not be searched within the budget.
        """
        documents, arrays, ann_data = self._storage.sizes()
        total = Counter(arrays)

        def check(batch: DocumentBatch) -> DocumentBatch:
            nonlocal documents
            if self._max_memory is not None:
                ids = [document.id for document in batch.documents]
                segment = Segment.build(np.arange(len(ids)), ids, batch.lengths, batch.arrays)
                documents += len(ids)
                total.update({name: _HEADER_BYTES + array.nbytes for name, array in segment.arrays.items()})
                self._plan(StoredSizes(documents, total, ann_data), batch.dim)
            return batch

        return check

    def insert(
        self, transaction: Transaction, batch: DocumentBatch, *, replace: bool, numbers: np.ndarray | None = None
    ) -> None:
        """Insert documents in a transaction; see `Transaction.insert`."""
        most = self._max_segment_tokens(batch.dim)
        transaction.insert(batch, replace=replace, max_tokens=most, numbers=numbers)

    def searcher(self, **options: Any) -> SearchParts:
        """Return the function that searches, with options of this index's own `search`."""
        if options:
            raise InvalidArgumentError(
                f"received {', '.join(options)}, but the search of {type(self).__name__} has no such option."
            )
        return self._search

    def search_by_kernels(self) -> None:
        """Let kernels answer all searches of this process, so that equal vectors always get equal scores."""
        self._first_use.is_over(sys.maxsize, lambda: None)

    # Public methods.

    @property
    def read_only(self) -> bool:
        """Whether writing raises an error."""
        return self._storage.read_only

    @property
    def dim(self) -> int | None:
        """See `Index.dim`."""
        return self._storage.dim()

    @property
    def fields(self) -> list[str]:
        """See `Index.fields`."""
        return self._storage.fields()

    @property
    def memory(self) -> MemoryReport:
        """What the index takes in memory, and what it reads from its files; prints as a table.

        Examples
        --------
        >>> from latelier import indexes
        >>> index = indexes.Flat(max_memory="1GB")
        >>> index.add("a", np.eye(4))
        >>> index.memory.kept, index.memory.read
        ({'vectors': 64}, {})
        """
        return self._plan(self._storage.sizes(), self.dim)

    @property
    def tokenizer(self) -> str | None:
        """Tokenizer of the keyword index; None if the index has none."""
        return self._storage.tokenizer()

    @property
    def settings(self) -> UserSettings:
        """See `Index.settings`."""
        return self._storage.settings

    def remove(self, ids: Id | Iterable[Id] = (), *, prefixes: Iterable[str] = ()) -> None:
        """See `Index.remove`."""
        known, begins = as_ids(ids), as_prefixes(prefixes)
        with self._storage.transaction() as transaction:
            transaction.remove(known)
            transaction.remove_prefixed(begins)

    def search(
        self,
        queries: Any = None,
        k: int = 10,
        *,
        mode: Mode = "vectors",
        texts: str | Sequence[str] | None = None,
        fusion: Fusion = "relative",
        weights: Sequence[float] = (0.5, 0.5),
        depth: int | None = None,
        filter: str | Sequence[str] | None = None,
        parameters: Parameters = (),
        filter_timeout: float | None = 10.0,
    ) -> list[list[Hit]]:
        """See `Index.search`."""
        chosen = SearchMode.checked(k, mode=mode, texts=texts, fusion=fusion, weights=weights, depth=depth)
        return self._find(self._search, queries, k, filter, parameters, filter_timeout, chosen)

    def get(self, ids: Id | Iterable[Id]) -> Record | list[Record]:
        """See `Index.get`."""
        records = self._storage.records(as_ids(ids))
        return records[0] if is_single_id(ids) else records

    def get_embeddings(self, ids: Id | Iterable[Id]) -> TokenEmbeddings:
        """See `Index.get_embeddings`."""
        snapshot, numbers = self._storage.find(as_ids(ids))
        if not len(numbers):
            return TokenEmbeddings.from_list([], dim=snapshot.dim).to(self.dtype)
        distinct, positions = np.unique(numbers, return_inverse=True)
        # The parts are in ascending order of numbers, so their concatenation is in the order of `distinct`.
        parts = snapshot.parts(distinct)
        found = TokenEmbeddings.concatenate([self._decode(part) for part in parts])[positions]
        if self._max_memory is not None:
            for part in parts:
                part.segment.release()
        return found

    def ids(self, prefix: str | None = None) -> list[Id]:
        """See `Index.ids`."""
        return self._storage.ids() if prefix is None else self._storage.ids_with_prefix(*as_prefixes([prefix]))

    def compact(
        self, *, keywords: bool | None = None, tokenizer: Tokenizer | None = None, show_progress: bool = False
    ) -> None:
        """See `Index.compact`."""
        check_compaction(keywords, tokenizer)
        max_tokens = self._max_segment_tokens(self.dim or 1)
        with progress_bar(shown=show_progress, unit=" documents") as progress:
            damages = self._storage.compact(
                max_tokens=max_tokens, progress=progress.update, keywords=keywords, tokenizer=tokenizer
            )
        if damages:
            warn_of_damage(f"{'; '.join(damages)}. Damaged segments were left as they are, all others are compacted.")

    def snapshot(self) -> AbstractContextManager[None]:
        """See `Index.snapshot`."""
        return self._storage.held()

    def check(self, k: int = 10, *, queries: int = 20) -> CheckReport:
        """See `Index.check`."""
        k, queries = check_count("k", k), check_count("queries", queries)
        with self.snapshot():
            return measure_recall(self, k, queries)[0]

    def statistics(self) -> IndexStatistics:
        """Return how much the index holds, and on how many bytes; no vector is read.

        Returns
        -------
        IndexStatistics
            Numbers of documents, tokens and bytes.
        """
        with self.snapshot():
            snapshot = self._storage.snapshot()
            has_texts, has_metadata = self._storage.has_contents()
        files = () if self.path is None else (path for path in self.path.rglob("*") if path.is_file())
        return IndexStatistics(
            documents=snapshot.documents,
            tokens=snapshot.tokens,
            removed=sum(state.row.removed for state in snapshot.segments),
            bytes=sum(path.stat().st_size for path in files),
            has_texts=has_texts,
            has_metadata=has_metadata,
        )

    def verify(self) -> VerifyReport:
        """See `Index.verify`."""
        return self._storage.verify()

    def close(self) -> None:
        """See `Index.close`."""
        self._storage.close()
        if self._gpu is not None:
            self._gpu.clear()

    def __len__(self) -> int:
        return self._storage.count()

    def __contains__(self, id: object) -> bool:
        try:
            known = as_id(id)
        except InvalidArgumentError:
            return False
        return self._storage.contains(known)

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else repr(str(self.path))
        try:
            snapshot = self._storage.snapshot()
        except LatelierError:
            return f"{type(self).__name__}(closed or damaged, {where})"
        if snapshot.dim is None:
            return f"{type(self).__name__}(0 documents, {where})"
        where += "" if self._gpu is None else f", searched on {self._gpu.device}"
        return (
            f"{type(self).__name__}({snapshot.documents:,} documents, {snapshot.tokens:,} tokens, dim={snapshot.dim}, "
            f"{self._describe()}, {where})"
        )

    # Implementation.

    def _write(
        self, given: tuple[Any, Any, Any, Any], *, replace: bool, prefixes: Sequence[str], show_progress: bool
    ) -> None:
        """Store documents in one transaction, and run maintenance."""
        self._insert(given, replace=replace, prefixes=prefixes, show_progress=show_progress)
        self.after_write()

    def _insert(
        self, given: tuple[Any, Any, Any, Any], *, replace: bool, prefixes: Sequence[str], show_progress: bool
    ) -> None:
        """Insert documents; no batch of them is left in memory, whose limit maintenance needs for itself."""
        batches = DocumentBatches(*given, dtype=self.dtype, batch_bytes=self.batch_bytes, show_progress=show_progress)
        with self._storage.transaction() as transaction:
            read = transaction.prepare(map(self.budget_check(), batches.read(self.dim, self.encode, self._are_finite)))
            for batch in forks.iterate_outside(read):
                transaction.remove_prefixed(prefixes)
                prefixes = ()
                self.insert(transaction, batch, replace=replace)
            transaction.remove_prefixed(prefixes)  # if there is nothing to insert

    def _find(
        self,
        search: SearchParts,
        queries: Any,
        k: int,
        filter: str | Sequence[str] | None,
        parameters: Parameters,
        filter_timeout: float | None,
        mode: SearchMode | None = None,
    ) -> list[list[Hit]]:
        """Check the arguments of a search, select the documents to search, call `search`, and return its hits."""
        k, seconds = check_count("k", k), check_limits(filter, parameters, filter_timeout)
        search = search if self._gpu is None else self._gpu.search
        if mode is not None and mode.name != "vectors":
            given = (queries, k, mode, filter, parameters, seconds)
            return hits_of(*rank_with_keywords(self._storage, search, *given))
        if filter is None:
            snapshot, allowed = self._storage.snapshot(), None
        else:
            snapshot, allowed = self._storage.select(filter, parameters, seconds)
        packed = prepare_queries(queries, snapshot.dim)
        best = TopK(len(packed), min(k, max(1, snapshot.documents)))
        search(snapshot, snapshot.parts(allowed), packed, best)
        return hits_of(snapshot, list(map(Ranking, best.numbers, best.scores)))

    def _check_tokenizer(self, keywords: bool | None, tokenizer: str | None) -> None:
        """Close the index and raise an error if its keyword index is not what a user expects."""
        try:
            check_expected(f"the index in {self.path}", self.tokenizer, keywords, tokenizer)
        except InvalidArgumentError:
            self.close()
            raise

    def _max_segment_tokens(self, dim: int) -> int:
        """Return the maximum number of tokens of a merged segment."""
        return self._segment_bytes // np.dtype(self.dtype).itemsize // dim
