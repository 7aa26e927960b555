"""Reading scattered rows of memory-mapped arrays from their files, which keeps the pages of the maps out of memory.

Reading a row through a map makes its page resident, and with it, on Linux, up to 15 pages beside it: 64 KiB for a
sign code of 500 bytes. An index with a memory budget reads the rows that it needs into a buffer instead.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.storage.files import read_error
from latelier.utils.ragged import lengths_to_offsets

__all__ = ["FileReads"]


class FileReads:
    """Reads bytes by their addresses in arrays.

    Parameters
    ----------
    arrays
        C-contiguous arrays. Bytes of mapped ones are read from their files, those of others are copied. The arrays
        must stay alive as long as this object.

    Raises
    ------
    StorageError
        If a file cannot be opened now, for example because too many files are open.

    Examples
    --------
    >>> array = np.arange(5, dtype="uint8")
    >>> addresses = array.ctypes.data + np.array([3, 0])
    >>> buffer, places = FileReads([array]).read(addresses, np.array([2, 1]))
    >>> buffer[places], buffer[places[0] + 1]
    (array([3, 0], dtype=uint8), np.uint8(4))
    """

    def __init__(self, arrays: Iterable[np.ndarray]) -> None:
        mapped = [(array, array.base) for array in arrays if isinstance(array.base, np.memmap)]
        mapped.sort(key=lambda pair: pair[0].ctypes.data)
        self._starts = np.array([array.ctypes.data for array, _ in mapped], dtype="int64")
        self._ends = self._starts + np.array([array.nbytes for array, _ in mapped], dtype="int64")
        self._offsets = [base.offset for _, base in mapped]
        self._files: list[BinaryIO | None] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._files)
        for _, base in mapped:
            self._files.append(_open(str(base.filename)))

    def read(self, addresses: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return bytes in a new buffer; neighbours are read together.

        Parameters
        ----------
        addresses, sizes
            ``(n,)`` int64: where each run of bytes begins in one of the arrays, and its length, at least 1.

        Returns
        -------
        tuple of numpy.ndarray
            The buffer, uint8, and where each run begins in it, ``(n,)`` int64.

        Raises
        ------
        CorruptedIndexError
            If a file has become shorter, or its disk cannot read it.
        StorageError
            If the operating system cannot read a file now.
        """
        order = np.argsort(addresses, kind="stable")
        begins, lengths = addresses[order], sizes[order]
        ends, targets = begins + lengths, lengths_to_offsets(lengths)
        buffer = np.empty(int(targets[-1]), dtype="uint8")
        heads = np.flatnonzero(np.concatenate([[True], begins[1:] != ends[:-1]])[: len(begins)])
        tails = np.append(heads[1:], len(begins)) - 1
        owners = np.searchsorted(self._starts, begins[heads], side="right") - 1
        view, base = buffer.data, buffer.ctypes.data
        runs = (owners, begins[heads], ends[tails] - begins[heads], targets[heads])
        for owner, begin, size, target in zip(*(column.tolist() for column in runs), strict=True):
            file = self._files[owner] if owner >= 0 and begin < self._ends[owner] else None
            if file is None:
                ctypes.memmove(base + target, begin, size)
            else:
                place = self._offsets[owner] + begin - int(self._starts[owner])
                self._read_run(file, view[target : target + size], place)
        places = np.empty(len(order), dtype="int64")
        places[order] = targets[:-1]
        return buffer, places

    def _read_run(self, file: BinaryIO, target: memoryview, place: int) -> None:
        try:
            while len(target):  # a read that is interrupted, or longer than 2 GiB, returns fewer bytes
                count = self._read_some(file, target, place)
                if not count:
                    raise CorruptedIndexError(
                        f"{file.name} is damaged: it ends at byte {place}. verify() lists damage."
                    )
                target, place = target[count:], place + count
        except OSError as error:
            raise read_error(Path(file.name), error) from error

    def _read_some(self, file: BinaryIO, target: memoryview, place: int) -> int:
        """Read bytes at a place of a file; return how many there were, 0 at its end."""
        if hasattr(os, "preadv"):
            return os.preadv(file.fileno(), [target], place)
        with self._lock:
            file.seek(place)
            return file.readinto(target)  # type: ignore[attr-defined]


def _open(path: str) -> BinaryIO | None:
    """Return a file; None if it was deleted after it was mapped: then its map is read."""
    try:
        return Path(path).open("rb", buffering=0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise read_error(Path(path), error) from error


def _close_all(files: Sequence[BinaryIO | None]) -> None:
    for file in files:
        if file is not None:
            file.close()
