"""`IVF`: the approximate index, with inverted lists over coded tokens; for more than some thousand documents.

Documents are stored coded and can be searched as soon as they are committed: by the sign codes of all, and by inverted
lists once there are enough. Lists are built after the commit, by the call that has written the documents: searches
never wait for them, and a process that is killed meanwhile loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, IndexDamageWarning, InvalidArgumentError, StorageError
from latelier.indexes.base import Parameters, PathLike
from latelier.indexes.catalog import forks
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.document_table import DocumentTable
from latelier.indexes.ivf.inverted_lists import InvertedLists, append_documents
from latelier.indexes.ivf.kernels.codes import BITS
from latelier.indexes.ivf.maintenance import Maintenance, Thresholds, due_maintenance, train_lists
from latelier.indexes.ivf.search import Scope, search_query
from latelier.indexes.ivf.search_parameters import Effort, SearchParameters, advise, choose_search_parameters
from latelier.indexes.recall import measure_recall
from latelier.indexes.results import CheckReport, Hit
from latelier.indexes.storage.segments import Part, TokenArray
from latelier.indexes.storage.snapshot import Snapshot
from latelier.indexes.stored import StoredIndex
from latelier.indexes.warning import warn_caller, warn_of_damage
from latelier.kernels.threads import for_ranges
from latelier.scores.topk import TopK
from latelier.utils.checks import check_count

__all__ = ["IVF"]

# A batch of documents, counted as float32, may take 1 / _MEMORY_BATCHES of the memory limit. Their codes take a quarter
# of that or less, and as much again while they are merged and written; training takes the rest.
_MEMORY_BATCHES = 2
# Multiplications per query, by which queries are shared out among threads: a few at a time.
_QUERY_WORK = 1 << 25
# Efforts that `check` tries besides the default.
_EFFORTS = (0.5, 2.0, 4.0)
_BALANCED = partial(choose_search_parameters, effort="balanced")


class IVF(StoredIndex):
    """The approximate index: inverted lists over tokens of 8, 4, 2 or 1 bits per number.

    Parameters
    ----------
    path
        Folder of the index, made if it does not exist; ``None`` keeps it in memory.
    nbits
        Bits per number: 8 (the default), 4, 2 or 1. Fixed when the index is made. At 128 dims a token takes 150, 75,
        45 or 30 bytes on disk, all included.
    read_only
        Never write; implied where the folder cannot be written.
    memory_limit
        Memory in bytes that a write takes at most, approximately, whatever the number of documents.
    device
        A GPU to search on, such as ``"cuda"``: it keeps a copy of all vectors in half precision, 256 bytes per token at
        128 dims, and scores every document for every query, whatever the effort. None searches on the CPU.

    Raises
    ------
    IndexFormatError
        If the folder holds something else, or an index of another kind or of a newer version.
    InvalidArgumentError
        If the index in the folder has another number of bits.

    Examples
    --------
    >>> index = IVF(nbits=4)
    >>> index.add(["a", "b"], [np.eye(4), -np.eye(4)])
    >>> [[hit]] = index.search(np.array([[0.0, 1.0, 0.0, 0.0]]), k=1)
    >>> hit.id, round(hit.score, 2)
    ('a', 0.99)
    >>> index
    IVF(2 documents, 8 tokens, dim=4, 4-bit, in memory)
    """

    kind = "ivf"
    _choices: ClassVar = {"nbits": BITS}
    _thresholds: ClassVar = Thresholds()
    dtype = "float32"

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        nbits: Literal[8, 4, 2, 1] | None = None,
        read_only: bool = False,
        memory_limit: int = 1 << 30,
        device: str | torch.device | None = None,
    ) -> None:
        if nbits is not None and not (isinstance(nbits, (int, np.integer)) and nbits in BITS):
            raise InvalidArgumentError(f"received nbits={nbits!r}; expected one of {', '.join(map(str, BITS))}.")
        segment_bytes = max(1, check_count("memory_limit", memory_limit) // _MEMORY_BATCHES)
        own = {"nbits": int(nbits or 8)}
        super().__init__(path, own, read_only=read_only, segment_bytes=segment_bytes, device=device)
        self._loaded: _Loaded | None = None
        self._loading = forks.Lock()
        self._has_warned = False
        if nbits not in (None, self.nbits):
            self.close()
            raise InvalidArgumentError(
                f"received nbits={nbits!r}, but the index in {path} has {self.nbits}, which is fixed; leave it out, or "
                "make a new index."
            )

    @property
    def nbits(self) -> int:
        """Bits per number."""
        return int(self._storage.configuration["nbits"])

    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        filter: str | Sequence[str] | None = None,
        parameters: Parameters = (),
        filter_timeout: float | None = 10.0,
        effort: Effort = "balanced",
        nprobe: int | None = None,
        candidates: int | None = None,
        rerank: int | None = None,
    ) -> list[list[Hit]]:
        """Return the `k` best documents of each query, or nearly: see `Index.search`.

        Parameters
        ----------
        queries, k, filter, parameters, filter_timeout
            As for any index.
        effort
            Sets `nprobe`, `candidates` and the number of reranked documents: ``"balanced"`` (the default) is 1.0,
            ``"fast"`` is 0.5, and any other number multiplies them likewise. ``"exact"`` scores the codes of all
            documents. `check` measures the recall of some efforts.
        nprobe
            Inverted lists probed per query token.
        candidates
            Documents from the probed lists that enter the Hamming stage, which compares sign codes.
        rerank
            Documents that leave the Hamming stage and are scored by their codes. By default, all whose Hamming
            distance leaves it open whether they are among the best.

        Returns
        -------
        list of list of Hit
            One list per query, best first. Scores are those of the stored codes, in single precision.

        Raises
        ------
        EmbeddingsError
            If a query has no token, NaN or infinity, or another dim than the index.
        InvalidArgumentError
            If `k` or a search parameter is not a positive integer, the effort is unknown, or the filter is rejected
            or cannot be evaluated.
        FilterTimeoutError
            If the filter takes too long.

        Examples
        --------
        >>> index = IVF()
        >>> index.add(["a", "b"], [np.eye(4), -np.eye(4)])
        >>> hits = index.search(np.eye(4)[:2], k=2, effort="exact")
        >>> [hit.id for hit in hits[0]]
        ['a', 'b']
        """
        choose = partial(choose_search_parameters, effort=effort, nprobe=nprobe, candidates=candidates, rerank=rerank)
        choose(check_count("k", k), dim=1)  # raises for wrong arguments, also while the index is empty
        return self._find(partial(self._search, choose=choose), queries, k, filter, parameters, filter_timeout)

    def compact(self, *, show_progress: bool = False) -> None:
        """Merge small segments, and bring the inverted lists up to date; see `Index.compact`.

        All documents are appended to the lists. Centroids are trained anew where the tokens have doubled since the last
        training, a quarter of the documents was removed, or new documents are less similar to their centroids.

        Parameters
        ----------
        show_progress
            Count documents on stderr.
        """
        super().compact(show_progress=show_progress)
        with suppress(CorruptedIndexError):  # the user has been warned of it
            self._maintain(compacting=True)

    def check(self, k: int = 10, *, queries: int = 20) -> CheckReport:
        """Measure recall@k of a search with default effort, and recommend an effort: see `Index.check`.

        Recall is against exact scores of the stored codes. The loss of coding itself is not in it, as that would take
        the original vectors.

        Parameters
        ----------
        k
            How many hits to compare.
        queries
            How many documents of the index to use as queries; each one reads the whole index.

        Returns
        -------
        CheckReport
            Prints as one line; its `advice` names the effort to search with.
        """
        k, queries = check_count("k", k), check_count("queries", queries)
        ways = [partial(self.search, effort=effort) for effort in (1.0, *_EFFORTS)]
        with self.snapshot():
            report, *others = measure_recall(self, k, queries, ways)
        recalls = {1.0: report.recall, **dict(zip(_EFFORTS, (other.recall for other in others), strict=True))}
        return replace(report, advice=advise(recalls))

    def close(self) -> None:
        """See `Index.close`."""
        super().close()
        self._loaded = None

    @property
    def _gpu_dtype(self) -> str:
        return "float16"  # rounds a decoded number by less than coding has

    def _layout(self, dim: int) -> dict[str, TokenArray]:
        return Codec(self.nbits, dim).layout

    def _encode(self, embeddings: TokenEmbeddings) -> dict[str, np.ndarray]:
        return Codec(self.nbits, embeddings.dim).encode(embeddings)

    def _decode(self, part: Part) -> TokenEmbeddings:
        return Codec(self.nbits, part.segment.dim).decode(part)

    def _describe(self) -> str:
        return f"{self.nbits}-bit"

    def _search(
        self,
        snapshot: Snapshot,
        parts: Sequence[Part],
        queries: TokenEmbeddings,
        best: TopK,
        choose: Callable[..., SearchParameters] = _BALANCED,
    ) -> None:
        if not parts:
            return
        table, lists = self._load(snapshot)
        if sum(len(part.positions) for part in parts) == len(table.living):
            has_removed = len(table.living) < len(table.numbers)
            scope = Scope(table, lists, table.alive if has_removed else np.zeros(0, "uint8"), table.living)
        else:
            allowed = table.mask(parts)
            scope = Scope(table, lists, allowed, np.flatnonzero(allowed))
        parameters = choose(best.k, queries.dim, tokens=table.tokens)

        vectors, offsets = queries.vectors, queries.offsets

        def search(first: int, last: int) -> None:
            for i in range(first, last):
                found = search_query(scope, vectors[offsets[i] : offsets[i + 1]], best.k, parameters)
                best.scores[i], best.numbers[i] = found.scores, found.numbers

        if len(queries) == 1:
            search(0, 1)
        else:
            for_ranges(search, np.arange(len(queries) + 1), _QUERY_WORK)

    def _load(self, snapshot: Snapshot) -> tuple[DocumentTable, InvertedLists | None]:
        """Return the document table and inverted lists of a snapshot, loaded once."""
        with self._loading.current:
            loaded = self._loaded
            if loaded is None or loaded.snapshot is not snapshot:
                codec = Codec(self.nbits, snapshot.dim or 0)
                lists = self._read_lists(snapshot)
                listed = np.zeros(0, dtype="int64") if lists is None else lists.numbers
                loaded = self._loaded = _Loaded(snapshot, DocumentTable(snapshot.parts(), codec, listed), lists)
            return loaded.table, loaded.lists

    def _read_lists(self, snapshot: Snapshot) -> InvertedLists | None:
        """Return the stored inverted lists, ``None`` where there are none for these documents or they are damaged."""
        lists, damage = None, snapshot.ann_damage
        try:
            lists = None if snapshot.ann_data is None else InvertedLists.from_arrays(snapshot.ann_data)
        except CorruptedIndexError as error:
            damage = error
        if damage is not None and not self._has_warned:
            self._has_warned = True
            warn_caller(
                f"the ANN data of {self!r} is damaged: {damage}. Searches compare all documents, which takes longer "
                "and finds no less. verify() names the file; compact(), or the next write, makes the data anew.",
                IndexDamageWarning,
            )
        # Lists of another dim are left from documents that were all removed before the present ones were added.
        return lists if lists is not None and lists.has_dim(snapshot.dim or 0) else None

    def _after_write(self) -> None:
        """Bring the inverted lists up to date after a write; warn where that fails, as the write has succeeded."""
        try:
            self._maintain()
        except StorageError as error:
            warn_caller(
                f"the documents are written, but the data for searching them faster is not: {error} The next write, or "
                "compact(), tries it again.",
                RuntimeWarning,
            )
        except CorruptedIndexError as error:
            warn_of_damage(f"the documents are written, but the data for searching them faster is not: {error}")

    def _maintain(self, *, compacting: bool = False) -> None:
        """Train or append to the inverted lists, where that is due, and store them."""
        snapshot = self._storage.snapshot()
        if not snapshot.documents:
            return
        table, lists = self._load(snapshot)
        due = due_maintenance(table, lists, self._thresholds, compacting=compacting)
        keeps_bytes = lists is not None and (due is Maintenance.APPEND or compacting)
        if keeps_bytes and not self._storage.check_ann_data(snapshot):
            due = Maintenance.TRAIN  # damaged bytes are neither kept nor copied
        if due is Maintenance.TRAIN:
            self._storage.write_ann_data(train_lists(table, memory=self._segment_bytes).arrays())
        elif due is Maintenance.APPEND and lists is not None:
            self._storage.write_ann_data(append_documents(lists, table, table.unlisted).arrays())
        elif lists is None and (snapshot.ann_data is not None or snapshot.ann_damage is not None):
            self._storage.write_ann_data(None)  # damaged or of another dim, and too few documents to train anew


class _Loaded(NamedTuple):
    """What searches need of a snapshot."""

    snapshot: Snapshot
    table: DocumentTable
    lists: InvertedLists | None
