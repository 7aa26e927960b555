"""`TransferBatch`: documents on their way from one index to another; reading them from an index in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, StorageError, UnknownIdError
from latelier.indexes.base import Index
from latelier.indexes.results import Id
from latelier.indexes.values import dump_json

__all__ = ["BATCH_BYTES", "PART_BYTES", "TransferBatch", "batches_of_bytes", "check_documents", "read_index"]

# Size of a chunk file, and of a transaction of the target. A batch is in memory up to four times: its parts, their
# concatenation, the bytes of the file, and what a target makes of it.
BATCH_BYTES = 64 << 20
# Size of the parts in which an index or a chunk file is read, and the most documents of one.
PART_BYTES = 8 << 20
_PART_DOCUMENTS = 4096
# The size of documents is not known before the first are read.
_FIRST_DOCUMENTS = 16


class TransferBatch(NamedTuple):
    """Some documents, in the order of insertion.

    `ids`: one id per document; `embeddings`: one ``(tokens, dim)`` matrix per document, float32 or float16, numpy;
    `texts`, `metadata`: one text or ``None``, and one dict, per document.
    """

    ids: list[Id]
    embeddings: TokenEmbeddings
    texts: list[str | None]
    metadata: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"TransferBatch({len(self.ids):,} documents, {self.embeddings.num_tokens:,} tokens)"

    @property
    def nbytes(self) -> np.ndarray:
        """``(documents,)`` int64: the bytes of each document's vectors, text and metadata."""
        vectors = self.embeddings.lengths * self.embeddings.dim * self.embeddings.vectors.itemsize
        texts = [len(text.encode()) if text else 0 for text in self.texts]
        more = [len(dump_json(metadata)) if metadata else 0 for metadata in self.metadata]
        return np.asarray(vectors + np.array(texts, dtype="int64") + np.array(more, dtype="int64"))

    def between(self, first: int, last: int) -> TransferBatch:
        """Return the documents at the positions ``first:last``."""
        part = slice(first, last)
        return TransferBatch(self.ids[part], self.embeddings[part], self.texts[part], self.metadata[part])

    def select(self, positions: Sequence[int]) -> TransferBatch:
        """Return the documents at some positions."""
        return TransferBatch(
            [self.ids[i] for i in positions],
            self.embeddings[np.array(positions, dtype="int64")],
            [self.texts[i] for i in positions],
            [self.metadata[i] for i in positions],
        )

    @classmethod
    def concatenate(cls, parts: Sequence[TransferBatch]) -> TransferBatch:
        """Return the documents of all parts, at least one, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            [id for part in parts for id in part.ids],
            TokenEmbeddings.concatenate([part.embeddings for part in parts]),
            [text for part in parts for text in part.texts],
            [metadata for part in parts for metadata in part.metadata],
        )


def check_documents(index: Index) -> None:
    """Check that no document of an index is damaged: what is read from it gets new checksums, which hide the damage.

    `index`: any index. All its files are read. Raises `CorruptedIndexError` if a document is damaged.
    """
    report = index.verify()
    ids = report.ids
    if ids:
        raise CorruptedIndexError(
            f"{len(ids):,} documents of {index!r} are damaged, such as {ids[0]!r:.60}; verify() lists them and their "
            "files. Replace them by update() or remove them by remove(), or restore the index from a backup; then call "
            "again."
        )


def read_index(index: Index, ids: Sequence[Id]) -> Iterator[TransferBatch]:
    """Yield documents of an index in parts of about `PART_BYTES`.

    Yields: at least one document; vectors as the index returns them, in float16 if it holds float16, else in float32.
    Raises `StorageError` if a document is not in the index any more.
    """
    first, count = 0, _FIRST_DOCUMENTS
    while first < len(ids):
        some = list(ids[first : first + count])
        try:
            embeddings, records = index.get_embeddings(some).to("numpy"), index.get(some)
        except UnknownIdError as error:
            raise StorageError(f"a document was removed from the index while it was read: {error}") from error
        if embeddings.dtype not in ("float32", "float16"):
            embeddings = embeddings.to("float32")
        part = TransferBatch(some, embeddings, [record.text for record in records], [r.metadata for r in records])
        yield part
        first += len(some)
        size = max(1, int(part.nbytes.sum()) // len(some))
        count = max(1, min(PART_BYTES // size, 4 * count, _PART_DOCUMENTS))


def batches_of_bytes(parts: Iterable[TransferBatch], max_bytes: int) -> Iterator[TransferBatch]:
    """Regroup documents: a batch ends with the document with which it reaches a size.

    So the batches depend on the documents only, and not on the parts in which they come.
    """
    waiting: list[TransferBatch] = []
    size = 0
    for part in parts:
        ends = np.cumsum(part.nbytes)
        first, before = 0, 0
        # The first document with which the batch has `max_bytes`.
        while (last := int(np.searchsorted(ends, before + max_bytes - size))) < len(part.ids):
            yield TransferBatch.concatenate([*waiting, part.between(first, last + 1)])
            waiting, size, first, before = [], 0, last + 1, int(ends[last])
        if first < len(part.ids):
            waiting.append(part.between(first, len(part.ids)))
            size += int(ends[-1]) - before
    if waiting:
        yield TransferBatch.concatenate(waiting)
