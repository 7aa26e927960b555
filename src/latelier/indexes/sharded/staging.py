"""Staged transactions: the changes of one shard, on disk before the commit and applied to the shard after it.

A staged transaction is a folder ``staged/<version>/`` in the folder of the shard, with one ``.npz`` file per batch of
documents and ``manifest.json``, which is written last: without it the folder is incomplete. All files are synced.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.documents import DocumentBatch
from latelier.indexes.results import Id
from latelier.indexes.store.connections import sync_folder
from latelier.indexes.store.rows import StoredDocument

__all__ = ["Manifest", "StagedBatch", "StagedTransaction", "staged_versions"]

_FOLDER, _MANIFEST = "staged", "manifest.json"
# Names in a batch's file that are not token arrays; these have a prefix.
_DOCUMENTS, _NUMBERS, _LENGTHS, _DIM, _TOKENS = "documents", "numbers", "lengths", "dim", "tokens_"


class Manifest(NamedTuple):
    """What a staged transaction does.

    `remove`: ids of documents to remove; all are in the shard. `prefixes`: remove also the documents whose ids begin
    with one of these. `fields`: metadata keys that become known. `replace`: whether inserted documents replace those
    with the same ids. `batches`: number of batches to insert.
    """

    remove: list[Id]
    prefixes: list[str]
    fields: list[str]
    replace: bool
    batches: int


class StagedBatch(NamedTuple):
    """Documents to insert, and their numbers, ``(documents,)`` int64."""

    batch: DocumentBatch
    numbers: np.ndarray


class StagedTransaction:
    """One staged transaction of a shard, being written or read.

    `version`: the version that the shard gets with it, see `latelier.indexes.sharded.commit_record`; `count`: number of
    batches that this object has written.
    """

    def __init__(self, shard: Path, version: str) -> None:
        self.version = version
        self.folder = shard / _FOLDER / version
        self.count = 0
        self._is_begun = False

    @property
    def is_complete(self) -> bool:
        """Whether all of it has been written."""
        return (self.folder / _MANIFEST).is_file()

    def add(self, staged: StagedBatch) -> None:
        """Write a batch of documents and sync it.

        Raises `StorageError` if the file system reports an error, such as a full disk.
        """
        batch = staged.batch
        # The fields of documents without metadata are a read-only mapping, which JSON cannot hold.
        rows = [[d.id, d.text, d.metadata, dict(d.fields)] for d in batch.documents]
        encoded = json.dumps(rows, ensure_ascii=False).encode()
        content = io.BytesIO()
        tokens = {f"{_TOKENS}{name}": array for name, array in batch.arrays.items()}
        given = {_NUMBERS: staged.numbers, _LENGTHS: batch.lengths, _DIM: np.array(batch.dim), **tokens}
        np.savez(content, **{_DOCUMENTS: np.frombuffer(encoded, "uint8"), **given})  # type: ignore[arg-type]
        self._write(self._batch_file(self.count), content.getbuffer())
        self.count += 1

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, with which the transaction is complete.

        Raises `StorageError` if the file system reports an error, such as a full disk.
        """
        temporary = self.folder / f".{_MANIFEST}"
        self._write(temporary, json.dumps(manifest._asdict()).encode())
        with self._translated_errors():
            temporary.rename(self.folder / _MANIFEST)
            sync_folder(self.folder)

    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises `CorruptedIndexError` if it is missing or damaged.
        """
        try:
            value = json.loads((self.folder / _MANIFEST).read_bytes())
            return Manifest(**value)
        except (OSError, ValueError, TypeError) as error:
            raise CorruptedIndexError(f"the staged transaction in {self.folder} is damaged: {error}.") from error

    def batches(self) -> Iterator[StagedBatch]:
        """Yield the batches in the order in which they were added."""
        for place in range(self.manifest().batches):
            yield self._read(self._batch_file(place))

    def drop(self) -> None:
        """Delete it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _batch_file(self, place: int) -> Path:
        return self.folder / f"{place}.npz"

    def _write(self, path: Path, content: Any) -> None:
        with self._translated_errors():
            if not self._is_begun:
                self.folder.mkdir(parents=True, exist_ok=True)
                sync_folder(self.folder.parent)
                sync_folder(self.folder.parent.parent)
                self._is_begun = True
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise errors of the file system as those of this library."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"could not stage this write in {self.folder}: {error.strerror or error}. Nothing was changed; see "
                "that the disk has space and can be written, and call it again."
            ) from error

    def _read(self, path: Path) -> StagedBatch:
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = dict(stored)
            rows = json.loads(arrays.pop(_DOCUMENTS).tobytes())
            documents = [StoredDocument(*row) for row in rows]
            numbers, lengths, dim = (arrays.pop(name) for name in (_NUMBERS, _LENGTHS, _DIM))
        except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
            raise CorruptedIndexError(f"the staged documents in {path} are damaged: {error}.") from error
        tokens = {name.removeprefix(_TOKENS): array for name, array in arrays.items()}
        return StagedBatch(DocumentBatch(documents, lengths, int(dim), tokens), numbers)


def staged_versions(shard: Path) -> list[str]:
    """Return the versions of the staged transactions of a shard, complete ones and others, ascending."""
    folder = shard / _FOLDER
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
