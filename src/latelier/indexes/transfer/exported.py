"""`Export`: the documents in a folder that `export_documents` has written, read in parts of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.indexes.base import PathLike
from latelier.indexes.store.connections import as_folder
from latelier.indexes.transfer.batches import TransferBatch
from latelier.indexes.transfer.chunk_files import read_chunk
from latelier.indexes.transfer.manifest import ExportManifest
from latelier.utils.misc import progress_bar

__all__ = ["Export"]


class Export:
    """An export in a folder.

    Parameters
    ----------
    folder
        The folder.

    Attributes
    ----------
    path
        The folder, absolute.
    manifest
        What ``manifest.json`` holds: `documents`, `tokens`, `dim`, `dtype`, `kind`, `nbits`, `tokenizer`, `settings`.

    Raises
    ------
    IndexFormatError
        If there is no export, or one that a newer version wrote.
    CorruptedIndexError
        If its manifest is damaged.
    InvalidArgumentError
        If it was interrupted.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from latelier import indexes
    >>> index, folder = indexes.Flat(), tempfile.mkdtemp()
    >>> index.add(["a", "b"], [np.eye(2), np.ones((1, 2))], texts=["one", "two"])
    >>> report = indexes.export_documents(index, folder)
    >>> for batch in indexes.Export(folder):
    ...     print(batch.ids, batch.texts, batch.embeddings)
    ['a', 'b'] ['one', 'two'] TokenEmbeddings(2 texts, 3 tokens, dim=2, float32, numpy)
    """

    def __init__(self, folder: PathLike) -> None:
        self.path = as_folder(folder)
        self.manifest = ExportManifest.read(self.path)
        if not self.manifest.complete:
            raise InvalidArgumentError(f"the export in {self.path} was interrupted; export again to go on.")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the exported index."""
        return self.manifest.settings

    def verify(self, *, show_progress: bool = False) -> None:
        """Read every byte, and compare it with its checksum.

        Parameters
        ----------
        show_progress
            Show a progress bar on stderr.

        Raises
        ------
        CorruptedIndexError
            If a file is missing or damaged; the message names it.
        """
        with progress_bar(shown=show_progress, total=len(self), unit=" documents") as progress:
            for batch in self:
                progress.update(len(batch.ids))

    def __iter__(self) -> Iterator[TransferBatch]:
        """Yield the documents in the order of insertion; each chunk is compared with its checksums first."""
        for number in range(len(self.manifest.chunks)):
            yield from read_chunk(self.path, number, self.manifest)

    def __len__(self) -> int:
        return self.manifest.documents

    def __repr__(self) -> str:
        about = self.manifest
        return (
            f"Export({about.documents:,} documents, {about.tokens:,} tokens, dim={about.dim}, {about.dtype}, of an "
            f"index of kind {about.kind}, in {self.path})"
        )
