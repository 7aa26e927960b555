"""`IVF`: tokens as codes, documents found by cells, signs and codes; the index for more than some thousand documents.

Documents are stored coded, each by itself, and are searchable as soon as they are committed: by comparing the signs of
all of them, and once there are enough, by cells. Cells are made from the documents, in the writing call that makes
them pay, after its commit: a search never waits for them, and a process that is killed meanwhile loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, IndexDamageWarning, InvalidArgumentError, StorageError
from latelier.indexes.base import Parameters, PathLike
from latelier.indexes.catalog import forks
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.document_table import Table
from latelier.indexes.ivf.filling import fill_cells
from latelier.indexes.ivf.inverted_lists import Cells
from latelier.indexes.ivf.kernels.codes import BITS, byte_width
from latelier.indexes.ivf.maintenance import Growth, needed_growth
from latelier.indexes.ivf.search import Scope, search_one
from latelier.indexes.ivf.search_parameters import Effort, Knobs, advise, choose_knobs
from latelier.indexes.ivf.training import train_centroids
from latelier.indexes.recall import measure_recall
from latelier.indexes.results import CheckReport, Hit
from latelier.indexes.storage.segments import Part
from latelier.indexes.storage.snapshot import Snapshot
from latelier.indexes.stored import StoredIndex
from latelier.indexes.warning import warn_caller, warn_of_damage
from latelier.kernels.threads import for_ranges
from latelier.scores.topk import TopK
from latelier.utils.checks import check_count

__all__ = ["IVF"]

# The memory limit in batches, counted as float32: at a quarter of that and less, codes take as much again while they
# are put together, merged with others and written, and training takes the rest.
_MEMORY_BATCHES = 2
# For sharing queries out among threads, as multiplications: a few queries at a time.
_QUERY_WORK = 1 << 25


# What `check` tries beside the default.
_EFFORTS = (0.5, 2.0, 4.0)
_BALANCED = partial(choose_knobs, effort="balanced")


class IVF(StoredIndex):
    """An approximate index of coded tokens.

    Parameters
    ----------
    path
        Folder of the index, made if it does not exist; ``None`` keeps it in memory.
    nbits
        Bits per number: 8 (the default), 4, 2 or 1. Fixed when the index is made. At 128 dims a token takes 150, 75,
        45 or 30 bytes on disk, all included.
    read_only
        Never write. Set by itself where the folder cannot be written.
    memory_limit
        About how many bytes a write may take, however much is written.
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
        self._seen: tuple[Snapshot, Table, Cells | None] | None = None
        self._looking = forks.Lock()
        self._warned = False
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
            ``"balanced"`` (the default), ``"fast"``, which looks at half as much, ``"exact"``, which scores the codes
            of all documents, or a number: 2.0 looks at twice as much as ``"balanced"``. `check` says what it buys.
        nprobe
            Cells that each query token visits, in place of what the effort says.
        candidates
            Documents found in cells whose signs are compared.
        rerank
            Exactly so many documents have their codes scored, in place of as many as their signs leave in doubt.

        Returns
        -------
        list of list of Hit
            One list per query, best first. Scores are those of the stored codes, in single precision.

        Raises
        ------
        EmbeddingsError
            If a query has no token, NaN or infinity, or another dim than the index.
        InvalidArgumentError
            If `k` or one of the knobs is not a positive integer, the effort is unknown, or the filter is refused or
            cannot be evaluated.
        FilterTimeoutError
            If the filter takes too long.

        Examples
        --------
        >>> index = IVF()
        >>> index.add(["a", "b"], [np.eye(4), -np.eye(4)])
        >>> [hit.id for hit in index.search(np.eye(4)[:2], k=2, effort="exact")[0]]
        ['a', 'b']
        """
        knobs = partial(choose_knobs, effort=effort, nprobe=nprobe, candidates=candidates, rerank=rerank)
        knobs(check_count("k", k), 1)  # refuses what is wrong with them, also while the index is empty
        return self._find(partial(self._search, knobs=knobs), queries, k, filter, parameters, filter_timeout)

    def compact(self, *, show_progress: bool = False) -> None:
        """Merge what many writes have scattered, and bring cells up to date; see `Index.compact`.

        Cells are made anew where documents have drifted away from them, have more than doubled, or have been removed
        in numbers.

        Parameters
        ----------
        show_progress
            Count documents on stderr.
        """
        super().compact(show_progress=show_progress)
        with suppress(CorruptedIndexError):  # of which the user was warned
            self._grow(compacting=True)

    def check(self, k: int = 10, *, queries: int = 20) -> CheckReport:
        """Measure recall@k of a search with default effort, and say how much effort would do: see `Index.check`.

        Recall is against exact scores of the stored codes: what coding itself loses, only vectors as they came can
        tell.

        Parameters
        ----------
        k
            How many hits to compare.
        queries
            How many documents to use as queries; each one reads the whole index.

        Returns
        -------
        CheckReport
            Prints as one readable line; its `advice` names the effort to search with.
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
        self._seen = None

    @property
    def _device_dtype(self) -> str:
        return "float16"  # which holds a decoded number to within less than it was rounded by

    def _layout(self, dim: int) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        return Codec(self.nbits, dim).layout

    def _encode(self, embeddings: TokenEmbeddings) -> dict[str, np.ndarray]:
        return Codec(self.nbits, embeddings.dim).encode(embeddings)

    def _decode(self, part: Part) -> TokenEmbeddings:
        return Codec(self.nbits, part.segment.dim).decode(part)

    def _describe(self) -> str:
        return f"{self.nbits}-bit"

    def _write(self, given: tuple[Any, Any, Any, Any], *, replace: bool, show_progress: bool) -> None:
        super()._write(given, replace=replace, show_progress=show_progress)
        self._grow_if_possible()

    def _search(
        self,
        snapshot: Snapshot,
        parts: Sequence[Part],
        queries: TokenEmbeddings,
        best: TopK,
        knobs: Callable[..., Knobs] = _BALANCED,
    ) -> None:
        if not parts:
            return
        table, cells = self._look(snapshot)
        if sum(len(part.positions) for part in parts) == len(table.living):
            scope = Scope(table, cells, np.zeros(0, "uint8") if table.all_alive else table.alive, table.living)
        else:
            mask = table.mask(parts)
            scope = Scope(table, cells, mask, np.flatnonzero(mask))
        chosen = knobs(best.k, queries.dim, tokens=table.tokens)

        vectors, offsets = queries.vectors, queries.offsets

        def search(first: int, last: int) -> None:
            for i in range(first, last):
                found = search_one(scope, vectors[offsets[i] : offsets[i + 1]], best.k, chosen)
                best.scores[i], best.numbers[i] = found.scores, found.numbers

        if len(queries) == 1:
            search(0, 1)
        else:
            for_ranges(search, np.arange(len(queries) + 1), _QUERY_WORK)

    def _look(self, snapshot: Snapshot) -> tuple[Table, Cells | None]:
        """Return the documents and cells of a snapshot, made once."""
        with self._looking.current:
            seen = self._seen
            if seen is None or seen[0] is not snapshot:
                codec = Codec(self.nbits, snapshot.dim or 0)
                cells = self._read_cells(snapshot)
                known = np.zeros(0, dtype="int64") if cells is None else cells.numbers
                seen = self._seen = snapshot, Table(snapshot.parts(), codec, known), cells
            return seen[1], seen[2]

    def _grow_if_possible(self) -> None:
        """Make cells where that is due; what stands in the way is tried again by the next write.

        What the caller was to write is committed, so it is no error.
        """
        try:
            self._grow()
        except StorageError as error:
            warn_caller(
                f"the documents are written, but the data for searching them faster is not: {error} The next write, or "
                "compact(), tries it again.",
                RuntimeWarning,
            )
        except CorruptedIndexError as error:
            warn_of_damage(f"the documents are written, but the data for searching them faster is not: {error}")

    def _read_cells(self, snapshot: Snapshot) -> Cells | None:
        """Return the stored cells, ``None`` where there are none for these documents or they are damaged."""
        cells, damage = None, snapshot.ann_damage
        try:
            cells = None if snapshot.ann_data is None else Cells.from_arrays(snapshot.ann_data)
        except CorruptedIndexError as error:
            damage = error
        if damage is not None and not self._warned:
            self._warned = True
            warn_caller(
                f"the ANN data of {self!r} is damaged: {damage}. Searches compare all documents, which takes longer "
                "and finds no less. verify() names the file; compact(), or the next write, makes the data anew.",
                IndexDamageWarning,
            )
        # Otherwise they are of documents that are all gone, and the index has been filled anew.
        return cells if cells is not None and cells.fits(snapshot.dim or 0) else None

    def _grow(self, *, compacting: bool = False) -> None:
        """Make cells, or fill them up, where that is due."""
        snapshot = self._storage.snapshot()
        if not snapshot.documents:
            return
        table, cells = self._look(snapshot)
        growth = needed_growth(table, cells, compacting=compacting)
        if cells is not None and (growth is Growth.FILL or compacting) and not self._storage.check_ann_data(snapshot):
            growth = Growth.TRAIN  # rather than copy on, or keep, what is damaged
        if growth is Growth.TRAIN:
            living = np.flatnonzero(table.alive)
            living = living[np.argsort(table.numbers[living], kind="stable")]
            centroids = train_centroids(table, living, most=self._segment_bytes // byte_width(table.codec.dim))
            self._storage.write_ann_data(fill_cells(centroids, table, living).arrays())
        elif growth is Growth.FILL and cells is not None:
            self._storage.write_ann_data(fill_cells(cells.centroids, table, table.fresh, cells).arrays())
        elif cells is None and (snapshot.ann_data is not None or snapshot.ann_damage is not None):
            self._storage.write_ann_data(None)  # damaged or of other documents, and too few are left to make it anew
