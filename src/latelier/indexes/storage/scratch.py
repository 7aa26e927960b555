"""`Scratch`: arrays that a write needs for a while; those that do not fit in its memory are in temporary files."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from latelier.errors import StorageError
from latelier.indexes.storage.files import release_memory

__all__ = ["Scratch"]

# Bytes copied at a time, before the memory of mapped files is given back.
_COPIED = 4 << 20


class Scratch:
    """Makes arrays in memory, or in temporary files that are deleted with the array, even if the process is killed.

    Parameters
    ----------
    folder
        Folder of the temporary files; ``None`` keeps all arrays in memory.
    most
        Arrays with more bytes are in a file; ``None`` keeps all arrays in memory.

    Attributes
    ----------
    block
        Bytes that a writer may hold in memory of each array that it reads or makes.

    Examples
    --------
    >>> Scratch().empty((2, 3), "int32").shape
    (2, 3)
    """

    def __init__(self, folder: Path | None = None, most: int | None = None) -> None:
        self._folder, self._most = folder, most
        self.block = sys.maxsize if folder is None or most is None else max(1 << 10, most)

    def empty(self, shape: int | Sequence[int], dtype: np.dtype | str) -> np.ndarray:
        """Return an array whose values are arbitrary.

        Raises
        ------
        StorageError
            If the disk has no room for it.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if self._folder is None or self._most is None or size <= self._most:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                _allocate(file.fileno(), size)
                return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
        except OSError as error:
            raise StorageError(
                f"could not write {size:,} temporary bytes into {self._folder}: {error.strerror or error}. Earlier "
                "commits are kept; free some space."
            ) from error

    def concatenate(self, blocks: Iterable[np.ndarray], rows: int, like: np.ndarray) -> np.ndarray:
        """Return the rows of all blocks in one array.

        Parameters
        ----------
        blocks
            Arrays; the memory of mapped ones is given back while they are copied.
        rows
            Their number of rows together.
        like
            An array with the dtype and the shape per row of the result.
        """
        joined = self.empty((rows, *like.shape[1:]), like.dtype)
        step = max(1, _COPIED // max(1, like.dtype.itemsize * math.prod(like.shape[1:])))
        count = 0
        for block in blocks:
            for first in range(0, len(block), step):
                some = block[first : first + step]
                joined[count : count + len(some)] = some
                count += len(some)
                release_memory(block)
                release_memory(joined)
        return joined


def _allocate(file: int, size: int) -> None:
    """Reserve the space of a file; without it, a full disk would kill the process at its first access to a page."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    zeros = bytes(min(size, _COPIED))
    for written in range(0, size, len(zeros)):
        os.write(file, zeros[: size - written])
