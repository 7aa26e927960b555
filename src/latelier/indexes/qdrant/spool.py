"""`Spool`: the documents of a write, read and checked in full before the first one is sent to Qdrant.

Qdrant has no transactions, so bad input must be found before anything is sent. The first batch stays in memory; when
there are more, they wait in files in the folder for temporary files.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from latelier.indexes.catalog.document_rows import StoredDocument
from latelier.indexes.inputs import DocumentBatch

__all__ = ["Spool"]


class Spool:
    """Batches of documents, kept until they have been sent.

    Examples
    --------
    >>> documents = [StoredDocument("a", None, "{}", {})]
    >>> vectors = {"vectors": np.eye(1, 2)}
    >>> batch = DocumentBatch(documents, np.array([1]), 2, vectors)
    >>> with Spool() as spool:
    ...     spool.append(batch)
    ...     spool.append(batch)
    ...     [each.documents[0].id for each in spool], spool.documents
    (['a', 'a'], 2)
    """

    def __init__(self) -> None:
        self.documents = 0
        self._first: DocumentBatch | None = None
        self._files = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def append(self, batch: DocumentBatch) -> None:
        """Keep a batch."""
        self.documents += len(batch.documents)
        if self._first is None:
            self._first = batch
            return
        file = self._file(self._files)
        arrays: dict[str, Any] = {"lengths": batch.lengths, **batch.arrays}
        np.savez(file, **arrays)
        rows = [[row.id, row.text, row.metadata, dict(row.fields)] for row in batch.documents]
        file.with_suffix(".json").write_text(json.dumps([batch.dim, rows]), encoding="utf-8")
        self._files += 1

    def __iter__(self) -> Iterator[DocumentBatch]:
        if self._first is not None:
            yield self._first
        for number in range(self._files):
            file = self._file(number)
            dim, rows = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
            with np.load(file, allow_pickle=False) as arrays:
                kept = {name: arrays[name] for name in arrays.files}
            yield DocumentBatch([StoredDocument(*row) for row in rows], kept.pop("lengths"), dim, kept)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _file(self, number: int) -> Path:
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="latelier-")
        return Path(self._folder.name) / f"{number}.npz"
