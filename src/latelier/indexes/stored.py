"""`StoredIndex`: all of an index but what it keeps of the vectors and how it finds the best of them.

An index on this library's storage derives from it and gives three hooks: `_encode` makes the arrays of a segment,
`_decode` makes vectors of them again, `_search` finds the best documents. It sees users' arguments only when they
have been checked.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes.base import Index, Parameters, PathLike
from latelier.indexes.catalog.filters.bounds import check_timeout
from latelier.indexes.catalog.folder import as_folder
from latelier.indexes.catalog.settings import UserSettings
from latelier.indexes.catalog.values import as_id, as_ids, is_single_id
from latelier.indexes.gpu import GpuSearch
from latelier.indexes.inputs import DocumentBatches, pack_queries
from latelier.indexes.recall import measure_recall
from latelier.indexes.results import CheckReport, Hit, Id, Record, VerifyReport
from latelier.indexes.storage.segments import Part, merge_rows
from latelier.indexes.storage.snapshot import Snapshot
from latelier.indexes.storage.storage import Storage
from latelier.indexes.warning import warn_of_damage
from latelier.scores.topk import TopK
from latelier.utils import resolve_device
from latelier.utils.checks import check_count
from latelier.utils.progress import progress_bar

__all__ = ["SEGMENT_BYTES", "StoredIndex"]

Search: TypeAlias = Callable[[Snapshot, Sequence[Part], TokenEmbeddings, TopK], None]

# Of float vectors, held in memory while they are written; also the size up to which segments are merged.
SEGMENT_BYTES = 256 << 20


class StoredIndex(Index):
    """An index on the storage of this library.

    Parameters
    ----------
    path
        Folder of the index; ``None`` keeps it in memory.
    configuration
        That of a new index; that of an existing one is ``self._storage.configuration``.
    read_only
        Never write.
    segment_bytes
        Size of the batches in which documents are written, and of the segments that are merged from smaller ones.
    device
        Where to search: a GPU keeps a copy of all vectors, made as they are first searched, and scores every document
        for every query, many queries at a time. None or ``"cpu"``: as this index does it on the CPU.
    """

    kind: ClassVar[str]
    # What each value of the configuration can be.
    _choices: ClassVar[dict[str, tuple[Any, ...]]]

    def __init__(
        self,
        path: PathLike | None,
        configuration: Mapping[str, Any],
        *,
        read_only: bool,
        segment_bytes: int,
        device: str | torch.device | None = None,
    ) -> None:
        if path is None and read_only:
            raise InvalidArgumentError("an index in memory begins empty; read_only=True needs a path.")
        self.path = None if path is None else as_folder(path)
        self._segment_bytes = segment_bytes
        self.device = resolve_device(device or "cpu")
        self._gpu = None if self.device.type == "cpu" else GpuSearch(self.device, self._decode, self._device_dtype)
        configuration = {"kind": self.kind, **configuration}
        self._storage = Storage(self.path, configuration, self._layout, read_only=read_only)
        for name, choices in self._choices.items():
            stored = self._storage.configuration.get(name)
            if stored not in choices:
                self._storage.close()
                known = ", ".join(map(repr, choices))
                raise IndexFormatError(f"the index in {path} has {name}={stored!r}; this version knows {known}.")

    @property
    @abstractmethod
    def dtype(self) -> str:
        """Floating type in which vectors are handed to `_encode` and returned by `get_embeddings`."""

    @abstractmethod
    def _encode(self, embeddings: TokenEmbeddings) -> dict[str, np.ndarray]:
        """Return the arrays to keep of some documents, each with one row per token."""

    @abstractmethod
    def _layout(self, dim: int) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Return, for each array that `_encode` makes, its dtype and the shape of what it keeps of one token."""

    @abstractmethod
    def _decode(self, part: Part) -> TokenEmbeddings:
        """Return the vectors of stored documents."""

    @abstractmethod
    def _search(self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK) -> None:
        """Offer documents of `parts`, which hold all of the snapshot that may be found, to `best`."""

    @property
    def _device_dtype(self) -> str:
        """Floating type of the vectors that a GPU keeps."""
        return str(self.dtype)

    def _merge(self, parts: Sequence[Part]) -> dict[str, np.ndarray]:
        """Return the arrays for the documents of several parts; the default copies the rows of their tokens."""
        return merge_rows(parts)

    @property
    def read_only(self) -> bool:
        """Whether writing is refused."""
        return self._storage.read_only

    @property
    def dim(self) -> int | None:
        """See `Index.dim`."""
        return self._storage.dim()

    @property
    def settings(self) -> UserSettings:
        """See `Index.settings`."""
        return self._storage.settings

    def add(
        self,
        ids: Id | Iterable[Id],
        embeddings: Any,
        texts: str | Iterable[str | None] | None = None,
        metadata: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
        *,
        show_progress: bool = False,
    ) -> None:
        """See `Index.add`."""
        self._write((ids, embeddings, texts, metadata), replace=False, show_progress=show_progress)

    def update(
        self,
        ids: Id | Iterable[Id],
        embeddings: Any,
        texts: str | Iterable[str | None] | None = None,
        metadata: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
        *,
        show_progress: bool = False,
    ) -> None:
        """See `Index.update`."""
        self._write((ids, embeddings, texts, metadata), replace=True, show_progress=show_progress)

    def remove(self, ids: Id | Iterable[Id]) -> None:
        """See `Index.remove`."""
        self._storage.remove(as_ids(ids), self._merge)

    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        filter: str | Sequence[str] | None = None,
        parameters: Parameters = (),
        filter_timeout: float | None = 10.0,
    ) -> list[list[Hit]]:
        """See `Index.search`."""
        return self._find(self._search, queries, k, filter, parameters, filter_timeout)

    def _find(
        self,
        search: Search,
        queries: Any,
        k: int,
        filter: str | Sequence[str] | None,
        parameters: Parameters,
        filter_timeout: float | None,
    ) -> list[list[Hit]]:
        """Check the arguments of a search, have it done by `search`, and name what it has found."""
        check_count("k", k)
        seconds = check_timeout(filter_timeout)
        if filter is None:
            snapshot, allowed = self._storage.snapshot(), None
        else:
            snapshot, allowed = self._storage.select(filter, parameters, seconds)
        packed = pack_queries(queries, snapshot.dim)
        best = TopK(len(packed), min(int(k), max(1, snapshot.documents)))
        search = search if self._gpu is None else self._gpu.search
        search(snapshot, snapshot.parts(allowed), packed, best)
        ids = iter(snapshot.ids(np.concatenate([*best.numbers, np.zeros(0, dtype="int64")])))
        return [[Hit(next(ids), float(score)) for score in scores] for scores in best.scores]

    def get(self, ids: Id | Iterable[Id]) -> Record | list[Record]:
        """See `Index.get`."""
        records = self._storage.records(as_ids(ids))
        return records[0] if is_single_id(ids) else records

    def get_embeddings(self, ids: Id | Iterable[Id]) -> TokenEmbeddings:
        """See `Index.get_embeddings`."""
        snapshot, numbers = self._storage.find(as_ids(ids))
        if not len(numbers):
            return TokenEmbeddings.from_list([], dim=snapshot.dim).to(self.dtype)
        distinct, asked = np.unique(numbers, return_inverse=True)
        # Distinct numbers ascend, and so do segments: the groups come in the order of the numbers.
        parts = [self._decode(part) for part, _ in snapshot.groups(distinct)]
        return TokenEmbeddings.concatenate(parts)[asked]

    def ids(self) -> list[Id]:
        """See `Index.ids`."""
        return self._storage.ids()

    def compact(self, *, show_progress: bool = False) -> None:
        """See `Index.compact`."""
        limit = self._segment_numbers // (self.dim or 1)
        with progress_bar(shown=show_progress, unit=" documents") as progress:
            damages = self._storage.compact(self._merge, limit=limit, progress=progress.update)
        if damages:
            warn_of_damage(f"{'; '.join(damages)}. What is damaged was left as it is, the rest is compacted.")

    def snapshot(self) -> AbstractContextManager[None]:
        """See `Index.snapshot`."""
        return self._storage.held()

    def check(self, k: int = 10, *, queries: int = 20) -> CheckReport:
        """See `Index.check`."""
        check_count("k", k)
        check_count("queries", queries)
        with self.snapshot():
            return measure_recall(self, int(k), int(queries))[0]

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
        where += "" if self._gpu is None else f", searched on {self.device}"
        return (
            f"{type(self).__name__}({snapshot.documents:,} documents, {snapshot.tokens:,} tokens, dim={snapshot.dim}, "
            f"{self._describe()}, {where})"
        )

    @property
    def _segment_numbers(self) -> int:
        """Numbers of vectors up to which segments are merged."""
        return self._segment_bytes // np.dtype(self.dtype).itemsize

    def _describe(self) -> str:
        """Return what `repr` says of the stored numbers."""
        return self.dtype

    def _write(self, given: tuple[Any, Any, Any, Any], *, replace: bool, show_progress: bool) -> None:
        documents = DocumentBatches(
            *given, dtype=self.dtype, batch_bytes=self._segment_bytes, show_progress=show_progress
        )
        self._storage.write(documents, self._encode, self._merge, replace=replace, limit=self._segment_numbers)
