"""What users hand in, as batches that can be stored: checked, converted, in step and of bounded size.

Embeddings may come as packed batches, lists of matrices or generators of either, on any device; ids, texts and
metadata as any iterables. All are read together, a part at a time, so a collection that does not fit in memory can be
handed over as generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from tqdm import tqdm

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.indexes.base import Id
from latelier.indexes.matrices import is_array, pack, refuse_padded
from latelier.indexes.values import SqlValue, as_id, check_text, encode_metadata, is_single_id
from latelier.utils.ranges import split_by_rows

__all__ = ["Batch", "Document", "Documents", "Encode"]

Encode: TypeAlias = Callable[[TokenEmbeddings], "dict[str, np.ndarray]"]

_PART_BYTES = 16 << 20
_PART_DOCUMENTS = 1024
_ROW_BYTES = 300  # what one document costs as Python objects, beside its text and metadata


class Document(NamedTuple):
    """What the catalog stores of one document; ``metadata`` is JSON, ``fields`` the SQL value of each key."""

    id: Id
    text: str | None
    metadata: str
    fields: Mapping[str, SqlValue]

    @property
    def nbytes(self) -> int:
        """About what it takes in memory."""
        return _ROW_BYTES + len(self.text or "") + 2 * len(self.metadata)


class Batch(NamedTuple):
    """Some documents, the tokens of each, and what the index keeps of them: arrays with one row per token."""

    documents: list[Document]
    lengths: np.ndarray
    dim: int
    arrays: dict[str, np.ndarray]


class Documents:
    """The documents of one `add` or `update`, still unread.

    Parameters
    ----------
    ids, embeddings, texts, metadata
        As the user gave them.
    dtype
        The floating type to convert vectors to.
    batch_bytes
        A batch ends when it has reached this size.
    show_progress
        Count documents on stderr.

    Examples
    --------
    >>> documents = Documents(["a", "b"], (np.ones((n, 2)) for n in (1, 3)), None, None)
    >>> [batch] = documents.batches(None, lambda embeddings: {"sums": embeddings.vectors.sum(axis=1)})
    >>> batch.lengths, batch.dim, batch.arrays
    (array([1, 3]), 2, {'sums': array([2., 2., 2., 2.], dtype=float32)})
    """

    def __init__(
        self,
        ids: Any,
        embeddings: Any,
        texts: Any,
        metadata: Any,
        *,
        dtype: str = "float32",
        batch_bytes: int = 256 << 20,
        show_progress: bool = False,
    ) -> None:
        refuse_padded(embeddings)
        for name, values in (("ids", ids), ("texts", texts), ("metadata", metadata)):
            if getattr(values, "ndim", 1) == 0:
                raise InvalidArgumentError(f"received an array without dimensions as {name}; give one per document.")
        if is_single_id(ids):
            ids, texts, metadata = [ids], None if texts is None else [texts], None if metadata is None else [metadata]
        if isinstance(ids, Sized) and len(ids) == 1:
            embeddings = [embeddings] if is_array(embeddings) else embeddings
            texts = [texts] if isinstance(texts, str) else texts
            metadata = [metadata] if isinstance(metadata, Mapping) else metadata
        elif is_array(embeddings):
            raise InvalidArgumentError("one matrix goes with one id; give several ids a list of matrices.")
        if isinstance(texts, str) or isinstance(metadata, Mapping):
            raise InvalidArgumentError("one text or one dict of metadata goes with one id; give several ids a list.")
        self._embeddings = embeddings
        columns = [_Column("ids", ids), _Column("texts", texts), _Column("metadata", metadata)]
        _compare_lengths(columns, embeddings)
        self._columns = columns
        self._dtype = dtype
        self._batch_bytes = batch_bytes
        self._show_progress = show_progress

    def batches(self, dim: int | None, encode: Encode) -> Iterator[Batch]:
        """Read them, once.

        Parameters
        ----------
        dim
            The dim that the index has; ``None`` takes the first document's.
        encode
            Makes what the index keeps of some vectors. Done part by part, so that of a batch no more is held.

        Raises
        ------
        EmbeddingsError
            If a document's vectors cannot be stored; the message names its id.
        InvalidArgumentError
            If one of the columns runs out early, or an id, text or metadata cannot be stored.
        """
        documents: list[Document] = []
        lengths: list[np.ndarray] = []
        parts: list[dict[str, np.ndarray]] = []
        size = 0

        def batch() -> Batch:
            arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            return Batch(documents, np.concatenate(lengths), dim or 0, arrays)

        with self._progress() as progress:
            for rows, part in self._parts(dim):
                dim = part.dim
                documents += rows
                lengths.append(part.lengths)
                parts.append(encode(part))
                size += part.vectors.nbytes + sum(row.nbytes for row in rows)
                if size >= self._batch_bytes:
                    yield batch()
                    documents, lengths, parts, size = [], [], [], 0
                if progress is not None:
                    progress.update(len(rows))
        if documents:
            yield batch()

    def _parts(self, dim: int | None) -> Iterator[tuple[list[Document], TokenEmbeddings]]:
        count = 0
        for items in _split(self._embeddings, min(_PART_BYTES, self._batch_bytes)):
            ids, texts, metadata = (column.take(len(items), count) for column in self._columns)
            ids = [as_id(id) for id in ids]
            part = pack(items, [f"document {id!r}" for id in ids], self._dtype, dim)
            rows = [
                Document(id, check_text(text, id), *encode_metadata(more, id))
                for id, text, more in zip(ids, texts, metadata, strict=True)
            ]
            dim, count = part.dim, count + len(items)
            yield rows, part
        for column in self._columns:
            column.expect_end(count)

    def _progress(self) -> Any:
        if not self._show_progress:
            return nullcontext()
        return tqdm(total=self._columns[0].length, unit=" documents")


class _Column:
    """One of the iterables that are read in step; ``None`` stands for as many ``None`` as are asked for."""

    def __init__(self, name: str, values: Any) -> None:
        if values is None and name == "ids":
            raise InvalidArgumentError("received None as ids; give one id per document.")
        if values is not None and not isinstance(values, Iterable):
            raise InvalidArgumentError(f"received {type(values).__name__} as {name}; give one per document.")
        self.name = name
        self.length: int | None = len(values) if isinstance(values, Sized) else None
        self._values = None if values is None else iter(values)

    def take(self, n: int, before: int) -> list[Any]:
        if self._values is None:
            return [None] * n
        taken = list(islice(self._values, n))
        if len(taken) < n:
            raise InvalidArgumentError(
                f"{self.name} ran out after {before + len(taken)} documents, while embeddings go on; give one each."
            )
        return taken

    def expect_end(self, count: int) -> None:
        if self._values is not None and next(self._values, self) is not self:
            raise InvalidArgumentError(
                f"embeddings ran out after {count} documents, while {self.name} go on; give one each."
            )


def _compare_lengths(columns: list[_Column], embeddings: Any) -> None:
    """Refuse unequal lengths before anything is read, where the lengths can be known."""
    known: dict[str, int] = {column.name: column.length for column in columns if column.length is not None}
    if isinstance(embeddings, TokenEmbeddings):
        known["embeddings"] = len(embeddings)
    if len(set(known.values())) > 1:
        shortest = min(known, key=lambda name: known[name])
        lengths = ", ".join(f"{length} {name}" for name, length in known.items())
        raise InvalidArgumentError(f"received {lengths}: {shortest} ran out first; give one of each per document.")


def _split(embeddings: Any, part_bytes: int) -> Iterator[list[Any] | TokenEmbeddings]:
    """Cut embeddings into parts of about `part_bytes`: lists of matrices, or packed batches as they came."""
    if isinstance(embeddings, TokenEmbeddings):
        yield from _split_packed(embeddings, part_bytes)
        return
    if not isinstance(embeddings, Iterable) or isinstance(embeddings, (str, bytes, Mapping)):
        raise InvalidArgumentError(
            f"received {type(embeddings).__name__} as embeddings; give TokenEmbeddings, a list of (tokens, dim) "
            "matrices or an iterable of either."
        )
    waiting: list[Any] = []
    size = 0
    for item in embeddings:
        if isinstance(item, TokenEmbeddings):
            if waiting:
                yield waiting
                waiting, size = [], 0
            yield from _split_packed(item, part_bytes)
            continue
        waiting.append(item)
        is_sparse = isinstance(item, torch.Tensor) and item.layout != torch.strided  # which has no size, and is refused
        size += 0 if is_sparse else getattr(item, "nbytes", 0)
        if size >= part_bytes or len(waiting) >= _PART_DOCUMENTS:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _split_packed(embeddings: TokenEmbeddings, part_bytes: int) -> Iterator[TokenEmbeddings]:
    tokens = max(1, part_bytes // max(1, 4 * embeddings.dim))
    for first, last in split_by_rows(embeddings.offsets, tokens, _PART_DOCUMENTS):
        yield embeddings[first:last]
