"""`import_documents` and `copy_documents`: add the documents of an export, or of another index, to an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from time import perf_counter
from typing import Any

import numpy as np

from latelier.arrays import Array
from latelier.errors import EmbeddingsError, InvalidArgumentError, StorageError, UnknownIdError
from latelier.indexes.base import Index, PathLike
from latelier.indexes.results import Id
from latelier.indexes.store.rows import StoredMetadata
from latelier.indexes.transfer.batches import BATCH_BYTES, TransferBatch, batches_of_bytes, check_documents, read_index
from latelier.indexes.transfer.exported import Export
from latelier.indexes.transfer.report import TransferReport
from latelier.indexes.values import duplicate_ids
from latelier.utils.checks import parse_bytes, short
from latelier.utils.misc import progress_bar

__all__ = ["copy_documents", "import_documents"]


def import_documents(
    folder: PathLike,
    index: Index,
    *,
    settings: bool = True,
    batch_size: int | str = BATCH_BYTES,
    show_progress: bool = False,
) -> TransferReport:
    """Add the documents of an export to an index of any kind, in the order in which they were exported.

    Each batch is one transaction of the index. After an interruption the same call goes on: documents that are in the
    index are compared with those of the export, and the others are added. Files are compared with their checksums
    before anything in them is read.

    Parameters
    ----------
    folder
        The folder of `export_documents`.
    index
        The index, usually an empty one. It may hold other documents.
    settings
        Store the settings of the export in the index: the model that encoded the documents, how they were prepared,
        and those of users. False keeps those of the index, for documents that fit them.
    batch_size
        Size of a batch in bytes, or as a text such as ``"64MB"``.
    show_progress
        Show a progress bar on stderr.

    Returns
    -------
    TransferReport
        What was added; prints as one line.

    Raises
    ------
    CorruptedIndexError
        If a file of the export is missing or damaged. The chunks before it are in the index.
    DuplicateIdError
        If the index holds another document with the same id, or the export holds an id twice.
    EmbeddingsError
        If the index holds vectors of another dim, or vectors of the export hold NaN or infinity.
    IndexFormatError
        If there is no export, or one that a newer version wrote.
    InvalidArgumentError
        If the export was interrupted, a document cannot be stored, or the index has other settings.
    StorageError
        If others removed documents meanwhile.

    Examples
    --------
    >>> import tempfile
    >>> from latelier import indexes
    >>> source, folder = indexes.Flat(), tempfile.mkdtemp()
    >>> source.add(["a", "b"], [np.eye(2), np.ones((1, 2))], texts=["one", "two"])
    >>> report = indexes.export_documents(source, folder)
    >>> index = indexes.IVF(nbits=4)
    >>> indexes.import_documents(folder, index).written
    2
    >>> index.get("b").text
    'two'
    """
    export = Export(folder)
    about = export.manifest
    target = _Target(index, about.dim, export.settings if settings else {})
    return target.fill(export, about.documents, batch_size, show_progress)


def copy_documents(
    source: Index,
    target: Index,
    *,
    settings: bool = True,
    batch_size: int | str = BATCH_BYTES,
    show_progress: bool = False,
) -> TransferReport:
    """Add the documents of an index to another one of any kind, without files between them.

    Parameters
    ----------
    source
        The index to copy from; read as of one moment, if it has snapshots. If a document of it is damaged, by its
        checksums, then `CorruptedIndexError` is raised.
    target
        The index to copy to, usually an empty one.
    settings, batch_size, show_progress
        See `import_documents`, which also describes what happens after an interruption, and the errors.

    Returns
    -------
    TransferReport
        What was added; prints as one line.

    Examples
    --------
    >>> from latelier import indexes
    >>> flat, ivf = indexes.Flat(), indexes.IVF(nbits=4)
    >>> flat.add(["a", "b"], [np.eye(2), np.ones((1, 2))])
    >>> report = indexes.copy_documents(flat, ivf)
    >>> report.written, ivf.ids()
    (2, ['a', 'b'])
    """
    if source is target or (source.path is not None and source.path == target.path):
        raise InvalidArgumentError("source and target are the same index; give two.")
    check_documents(source)
    with source.snapshot():
        ids = source.ids()
        filling = _Target(target, source.dim if ids else None, dict(source.settings) if settings else {})
        report = filling.fill(read_index(source, ids), len(ids), batch_size, show_progress)
        if source.ids() != ids:
            raise StorageError(
                "the source changed while it was copied, and it has no snapshots; copy again into a new index while "
                "nothing is written."
            )
    return report


class _Target:
    """An index that documents are added to, after its dim and its settings were compared with those of the source."""

    def __init__(self, index: Index, dim: int | None, settings: dict[str, Any]) -> None:
        if dim is not None and index.dim not in (None, dim):
            raise EmbeddingsError(f"the vectors have {dim} dimensions, those of {index!r} have {index.dim}.")
        self._index = index
        self._before = set(index.ids())
        self._moved: set[Id] = set()
        self._store_settings(settings)

    def _store_settings(self, settings: dict[str, Any]) -> None:
        """Store settings before the first document, since they say what the vectors mean."""
        stored = dict(self._index.settings)
        # An index with documents and without a setting may hold documents of another model, or prepared otherwise.
        differing = [n for n in settings if (n in stored or self._before) and stored.get(n) != settings[n]]
        if differing:
            names = ", ".join(map(short, differing[:5]))
            raise InvalidArgumentError(
                f"{self._index!r} does not have the settings {names} of the source: another model may have encoded its "
                "documents. Give an empty index; or settings=False (--no-settings), if the documents of both fit "
                "together."
            )
        for name in settings:
            if name not in stored:
                self._index.settings[name] = settings[name]

    def fill(
        self, parts: Iterable[TransferBatch], documents: int, batch_size: int | str, show_progress: bool
    ) -> TransferReport:
        """Add all documents, and count them."""
        began, tokens, written = perf_counter(), 0, 0
        size = parse_bytes("batch_size", batch_size) or BATCH_BYTES
        with progress_bar(shown=show_progress, total=documents, unit=" documents") as progress:
            for batch in batches_of_bytes(parts, size):
                written += self._add(batch)
                tokens += batch.embeddings.num_tokens
                progress.update(len(batch.ids))
        missing = self._moved.difference(self._index.ids())
        if missing:
            raise StorageError(
                f"others removed {len(missing):,} of the documents meanwhile, such as {min(map(repr, missing))}."
            )
        return TransferReport(documents, tokens, written, repr(self._index), perf_counter() - began)

    def _add(self, batch: TransferBatch) -> int:
        """Add the documents that are not in the index, in one transaction; return how many there are."""
        twice = [id for id, count in Counter(batch.ids).items() if count > 1 or id in self._moved]
        if twice:
            raise duplicate_ids(twice, "in the source twice")
        new = [i for i, id in enumerate(batch.ids) if id not in self._before]
        if len(new) < len(batch.ids):
            there = [i for i, id in enumerate(batch.ids) if id in self._before]
            self._compare(batch.select(there))
            batch = batch.select(new)
        if new:
            metadata = list(map(StoredMetadata, batch.metadata))
            self._index.add(batch.ids, batch.embeddings, batch.texts, metadata)
        self._moved.update(batch.ids)
        return len(new)

    def _compare(self, batch: TransferBatch) -> None:
        """Raise an error unless the index holds these documents."""
        try:
            stored, records = self._index.get_embeddings(batch.ids), self._index.get(batch.ids)
        except UnknownIdError as error:
            raise StorageError(f"others removed documents meanwhile: {error}") from error
        other = [
            record.id
            for i, record in enumerate(records)
            if (record.text, record.metadata) != (batch.texts[i], batch.metadata[i])
            or not _may_be_same(batch.embeddings[i], stored[i])
        ]
        if other:
            raise duplicate_ids(
                other, "in the index already, with another text, other metadata or other vectors; remove it there"
            )
        self._moved.update(batch.ids)


def _may_be_same(vectors: Array, stored: Array) -> bool:
    """Whether the stored vectors of a document may be these vectors, as an index rounds or quantises them.

    Codes keep the sign of each number or make it zero, so ``vector @ stored >= 0`` for each token, also at one bit.
    """
    if vectors.shape != stored.shape:
        return False
    products = np.einsum("td,td->t", np.asarray(vectors, dtype="float32"), np.asarray(stored, dtype="float32"))
    return bool((products >= 0).all())
