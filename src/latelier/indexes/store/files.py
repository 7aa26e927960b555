"""Array files, checksums, temporary arrays.

The description has the size in bytes, the CRC-32 of all bytes, the dtype and the shape. Opening a file compares
everything except the checksum; `verify` compares it, and so does a merge before it copies an array.

Reading a row through a map makes its page resident, and with it, on Linux, up to 15 pages beside it: 64 KiB for a
sign code of 500 bytes. So an index with a memory budget gives the memory of maps back block by block.
"""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.store.checks import check_description

# Errors of the operating system that mean damage. All others (too many open files, no memory) are temporary.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP}
# Smaller files are read rather than memory-mapped: a map holds a file descriptor, and their number is limited.
_MAP_BYTES = 1 << 20
# Linux makes up to this many bytes around a mapped byte resident when it is read.
AROUND = 1 << 16
# Bytes read or written at a time.
_CHUNK_BYTES = 1 << 22
_WRONG_CHECKSUM = "its bytes do not match their checksum"


def write_file(path: Path, array: np.ndarray) -> dict[str, Any]:
    """Write an array into a new file, sync it, and return its description for the catalog."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array)))
    checksum = zlib.crc32(header.getvalue())
    with path.open("xb") as file:
        file.write(header.getvalue())
        for chunk in _chunks(array):
            file.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
        file.flush()
        os.fsync(file.fileno())
    size = header.tell() + array.nbytes
    return {"bytes": size, "crc32": checksum, "dtype": array.dtype.str, "shape": list(array.shape)}


def read_file(path: Path, written: Any) -> np.ndarray:
    """Return an array, memory-mapped if it is large, given its description in the catalog.

    Its header is not parsed but compared with the description. Raises `CorruptedIndexError` if they differ; raises
    `StorageError` if the operating system cannot open the file now, for example because too many files are open.
    """
    try:
        dtype, shape = check_description(written, path)
        with path.open("rb") as file:
            header = file.read(written["bytes"] - math.prod(shape) * dtype.itemsize)
            expected = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
            if header[:8] != b"\x93NUMPY\x01\x00" or header[10:].rstrip() != expected.encode():
                raise CorruptedIndexError(f"it begins with {header[10:].rstrip()!r:.99}, but {expected} was written")
            if written["bytes"] <= _MAP_BYTES:
                return np.frombuffer(bytearray(file.read()), dtype).reshape(shape)
            # "c" is copy on write: torch accepts only writable memory without a copy, and no write reaches the file.
            return np.asarray(np.memmap(file, dtype, "c", len(header), shape))
    except CorruptedIndexError as error:
        raise CorruptedIndexError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise read_error(path, error) from error


def file_damage(path: Path, written: Any) -> str | None:
    """Read every byte of a file; return what is wrong with it, or ``None`` if it is intact."""
    try:
        check_description(written, path)
        checksum = 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                checksum = zlib.crc32(chunk, checksum)
    except CorruptedIndexError as error:
        return str(error)
    except OSError as error:
        if error.errno not in _DAMAGE:
            raise read_error(path, error) from error
        return str(error)
    return None if checksum == written["crc32"] else _WRONG_CHECKSUM


def compare_checksum(array: np.ndarray, path: Path, written: dict[str, Any]) -> None:
    """Raise `CorruptedIndexError` unless a file's header and the array that was read from it match their checksum."""
    try:
        with path.open("rb") as file:
            checksum = zlib.crc32(file.read(written["bytes"] - array.nbytes))
    except OSError as error:
        raise read_error(path, error) from error
    for chunk in _chunks(array):
        checksum = zlib.crc32(chunk, checksum)
    if checksum != written["crc32"]:
        raise CorruptedIndexError(f"{path} is damaged: {_WRONG_CHECKSUM}")


def read_error(path: Path, error: OSError) -> CorruptedIndexError | StorageError:
    """Return the error for a file that cannot be read: damage, or a temporary failure of the system."""
    if error.errno in _DAMAGE:
        return CorruptedIndexError(f"{path} is damaged: {error}")
    return StorageError(f"could not read {path}: {error.strerror or error}. Nothing is lost; try again.")


def release_memory(array: np.ndarray) -> None:
    """Give the memory of an array that is mapped from a file back to the system; it is read again when it is needed."""
    base = array.base
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    mapped = getattr(base, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        mapped.madvise(mmap.MADV_DONTNEED)


def _chunks(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array; the memory of a mapped one is given back after each chunk."""
    content = np.ascontiguousarray(array).reshape(-1).view("uint8").data
    for first in range(0, len(content), _CHUNK_BYTES):
        yield content[first : first + _CHUNK_BYTES]
        release_memory(array)


# Bytes copied at a time, before the memory of mapped files is given back.
_COPIED = 4 << 20


class Scratch:
    """Makes arrays in memory, or in temporary files that are deleted with the array, even if the process is killed.

    `folder`: folder of the temporary files; ``None`` keeps all arrays in memory. `most`: arrays with more bytes are in
    a file; ``None`` keeps all arrays in memory. `block`: bytes that a writer may hold in memory of each array that it
    reads or makes.
    """

    def __init__(self, folder: Path | None = None, most: int | None = None) -> None:
        self._folder, self._most = folder, most
        self.block = sys.maxsize if folder is None or most is None else max(1 << 10, most)

    def empty(self, shape: int | Sequence[int], dtype: np.dtype | str) -> np.ndarray:
        """Return an array whose values are arbitrary."""
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

        `blocks`: arrays; the memory of mapped ones is given back while they are copied. `like`: an array with the dtype
        and the shape per row of the result.
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
