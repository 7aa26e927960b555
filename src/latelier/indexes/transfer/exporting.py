"""`export_documents`: writes the documents of an index into a folder, from which any index can import them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np

from latelier.errors import EmbeddingsError, IndexFormatError, InvalidArgumentError, StorageError
from latelier.indexes.base import Index, PathLike
from latelier.indexes.results import Id
from latelier.indexes.store.connections import as_folder
from latelier.indexes.transfer.batches import BATCH_BYTES, TransferBatch, batches_of_bytes, check_documents, read_index
from latelier.indexes.transfer.chunk_files import chunk_contents, describe_chunk, has_files, write_chunk
from latelier.indexes.transfer.manifest import DTYPES, MANIFEST, ExportManifest, digest_ids
from latelier.indexes.transfer.report import TransferReport
from latelier.utils.checks import check_choice, parse_bytes
from latelier.utils.misc import progress_bar

__all__ = ["export_documents"]

# A file that was being written when the process was killed, see `latelier.utils.files`.
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.tmp", re.ASCII)


def export_documents(
    index: Index,
    folder: PathLike,
    *,
    dtype: Literal["float32", "float16"] | None = None,
    chunk_size: int | str = BATCH_BYTES,
    show_progress: bool = False,
) -> TransferReport:
    """Write the documents of an index, with vectors, texts, metadata and settings, into a folder.

    The export is that of one moment, whatever others write meanwhile, if the index has snapshots. After an interruption
    the same call goes on: it reads the documents of the finished chunks again, compares them, and writes the others.
    Only the ids of all documents, and one chunk, are held in memory.

    Parameters
    ----------
    index
        Any index.
    folder
        An empty or new folder, or one with an interrupted export of this index.
    dtype
        Floating type of the vectors; None: float16 if the index holds float16, else float32. Vectors of a quantised
        index are exported as they are decoded, with the loss of their codes.
    chunk_size
        Size of a chunk in bytes, or as a text such as ``"64MB"``. A chunk ends with the document with which its
        vectors, texts and metadata reach this size.
    show_progress
        Show a progress bar on stderr.

    Returns
    -------
    TransferReport
        What was written; prints as one line.

    Raises
    ------
    CorruptedIndexError
        If a document is damaged, by the checksums of the index.
    EmbeddingsError
        If a vector holds a number outside of the range of float16, and that is the dtype.
    IndexFormatError
        If the folder holds something else.
    InvalidArgumentError
        If the folder holds an export of another index, or of this one before it changed.
    StorageError
        If a file cannot be written, or the index has no snapshots and changed meanwhile.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from latelier import indexes
    >>> index, folder = indexes.Flat(), tempfile.mkdtemp()
    >>> index.add(["a", "b"], [np.eye(2), np.ones((1, 2))], texts=["one", "two"])
    >>> report = indexes.export_documents(index, folder)
    >>> report.documents, report.tokens, report.written
    (2, 3, 2)
    >>> indexes.export_documents(index, folder).written
    0
    """
    began = perf_counter()
    check_choice("dtype", dtype, DTYPES, optional=True)
    size = parse_bytes("chunk_size", chunk_size) or BATCH_BYTES
    path = as_folder(folder)
    check_documents(index)
    with index.snapshot():
        ids = index.ids()
        wanted = ExportManifest.of(index, ids, dtype or _stored_dtype(index, ids))
        manifest = _begin(path, wanted)
        with progress_bar(shown=show_progress, total=len(ids), unit=" documents") as progress:
            written = kept = 0
            for batch in _kept_batches(index, ids, manifest, path):
                progress.update(len(batch.ids))
                kept += len(batch.ids)
            for batch in batches_of_bytes(_cast(read_index(index, ids[kept:]), manifest.dtype), size):
                contents = chunk_contents(batch)
                write_chunk(path, len(manifest.chunks), contents)
                manifest = replace(manifest, chunks=(*manifest.chunks, describe_chunk(batch, contents)))
                manifest.write(path)
                written += len(batch.ids)
                progress.update(len(batch.ids))
        if digest_ids(index.ids()) != manifest.ids_sha256:
            raise StorageError(
                f"the index changed while it was exported to {path}, and it has no snapshots; remove the folder, and "
                "export again while nothing is written."
            )
        if not manifest.complete:
            manifest = replace(manifest, complete=True)
            manifest.write(path)
    return TransferReport(len(ids), manifest.tokens, written, str(path), perf_counter() - began)


def _stored_dtype(index: Index, ids: list[Id]) -> str:
    """Return the floating type in which an index returns vectors, if an export can have it, else float32."""
    found = index.get_embeddings(ids[:1]).dtype if ids else "float32"
    return found if found in DTYPES else "float32"


def _begin(folder: Path, wanted: ExportManifest) -> ExportManifest:
    """Return the manifest of the interrupted export in a folder, or make the folder and write the one that is wanted.

    Chunks that are not whole, and all after them, are not in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = os.listdir(folder)  # noqa: PTH208 (Path.iterdir yields paths)
    except FileExistsError as error:
        raise IndexFormatError(f"{folder} is a file; an export is a folder.") from error
    except OSError as error:
        raise StorageError(f"could not make {folder}: {error.strerror or error}.") from error
    if MANIFEST not in names:
        others = sorted(name for name in names if not _UNFINISHED.fullmatch(name))
        if others:
            raise IndexFormatError(
                f"{folder} is not an export: it holds {', '.join(others[:3])}. Choose a new or an empty folder."
            )
        _remove_unfinished(folder, names)
        wanted.write(folder)
        return wanted
    found = ExportManifest.read(folder)
    if replace(found, complete=False, chunks=()) != wanted:
        raise _changed(folder)
    _remove_unfinished(folder, names)
    whole = 0
    while whole < len(found.chunks) and has_files(folder, whole, found.chunks[whole]):
        whole += 1
    return found if whole == len(found.chunks) else replace(found, complete=False, chunks=found.chunks[:whole])


def _remove_unfinished(folder: Path, names: Sequence[str]) -> None:
    """Remove what a killed export was writing; call it for exports only, since indexes have files of such names too."""
    try:
        for name in filter(_UNFINISHED.fullmatch, names):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"could not remove {folder / name}: {error.strerror or error}.") from error


def _kept_batches(index: Index, ids: list[Id], manifest: ExportManifest, folder: Path) -> Iterator[TransferBatch]:
    """Yield the documents of the finished chunks from the index; raise an error for one that has changed since."""
    first = 0
    for chunk in manifest.chunks:
        parts = _cast(read_index(index, ids[first : first + chunk.documents]), manifest.dtype)
        batch = TransferBatch.concatenate(list(parts))
        if describe_chunk(batch, chunk_contents(batch)) != chunk:
            raise _changed(folder)
        yield batch
        first += chunk.documents


def _cast(parts: Iterator[TransferBatch], dtype: str) -> Iterator[TransferBatch]:
    """Yield documents with vectors of a dtype; raise an error for numbers beyond the range of float16."""
    for part in parts:
        with np.errstate(over="ignore"):
            embeddings = part.embeddings.to(dtype)
        finite = np.isfinite(embeddings.vectors).all(axis=1)
        if not finite.all():
            at = int(np.searchsorted(embeddings.offsets, np.argmin(finite), side="right")) - 1
            raise EmbeddingsError(
                f"document {part.ids[at]!r} holds numbers outside of the range of {dtype}; export with dtype='float32' "
                "into a new folder."
            )
        yield part._replace(embeddings=embeddings)


def _changed(folder: Path) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{folder} holds an export of another index, of this index before it changed, or with other options; give "
        "another folder, or remove it to export again."
    )
