"""Arrays in ``.npy`` files, one each: writing, reading, and comparison with their description in the catalog.

The description has the size in bytes, the CRC-32 of all bytes, the dtype and the shape. Opening a file compares
everything except the checksum; `verify` compares it, and so does a merge before it copies an array.
"""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from latelier.errors import CorruptedIndexError, StorageError

__all__ = ["compare_checksum", "file_damage", "read_error", "read_file", "release_memory", "write_file"]

# Errors of the operating system that mean damage. All others (too many open files, no memory) are temporary.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP}
# Dtypes of the arrays that an index stores.
_DTYPES = {"<f4", "<f2", "<f8", "<i8", "<i4", "<u4", "<u2", "|u1", "|i1"}
# A description with larger values is damaged.
_MAX_HEADER_BYTES, _MAX_DIMENSIONS, _MAX_SIZE = 4096, 4, 1 << 48
# Smaller files are read rather than memory-mapped: a map holds a file descriptor, and their number is limited.
_MAP_BYTES = 1 << 20
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
    return {
        "bytes": header.tell() + array.nbytes,
        "crc32": checksum,
        "dtype": array.dtype.str,
        "shape": list(array.shape),
    }


def read_file(path: Path, written: Any) -> np.ndarray:
    """Return an array, memory-mapped if it is large. Its header is not parsed but compared with its description.

    Parameters
    ----------
    path
        The file.
    written
        Its description in the catalog; it is checked here, as it may be damaged.

    Raises
    ------
    CorruptedIndexError
        If the file is missing, or differs from its description in size, shape or dtype.
    StorageError
        If the operating system cannot open it now, for example because too many files are open.
    """
    try:
        _check_size(path, written)
        dtype, shape = _described(written)
        size = math.prod(shape) * dtype.itemsize
        with path.open("rb") as file:
            header = file.read(max(0, written["bytes"] - size))
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


def release_memory(array: np.ndarray) -> None:
    """Give the memory of an array that is mapped from a file back to the system; it is read again when it is needed."""
    base = array.base
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    mapped = getattr(base, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        mapped.madvise(mmap.MADV_DONTNEED)


def file_damage(path: Path, written: Any) -> str | None:
    """Read every byte of a file; return what is wrong with it, or ``None`` if it is intact.

    Raises
    ------
    StorageError
        If the operating system cannot read it now.
    """
    try:
        _check_size(path, written)
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
    """Compare the checksum of a file's header and of the array that was read from it with its description.

    Raises
    ------
    CorruptedIndexError
        If the checksums differ.
    """
    try:
        with path.open("rb") as file:
            checksum = zlib.crc32(file.read(written["bytes"] - array.nbytes))
    except OSError as error:
        raise read_error(path, error) from error
    for chunk in _chunks(array):
        checksum = zlib.crc32(chunk, checksum)
    if checksum != written["crc32"]:
        raise CorruptedIndexError(f"{path} is damaged: {_WRONG_CHECKSUM}")


def _chunks(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array; the memory of a mapped one is given back after each chunk."""
    content = np.ascontiguousarray(array).reshape(-1).view("uint8").data
    for first in range(0, len(content), _CHUNK_BYTES):
        yield content[first : first + _CHUNK_BYTES]
        release_memory(array)


def _described(written: dict[str, Any]) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and shape in a description, after checking that such an array fits into the file."""
    if (
        not isinstance(written["dtype"], str)
        or written["dtype"] not in _DTYPES
        or not isinstance(written["shape"], list)
    ):
        raise CorruptedIndexError(f"the catalog gives it the dtype {written['dtype']!r:.60}, which no index has")
    dtype, shape = np.dtype(written["dtype"]), tuple(written["shape"])
    # Bounds within which numpy can make an array, even if one dimension is 0.
    is_possible = len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not is_possible or math.prod(max(1, n) for n in shape) >= _MAX_SIZE:
        raise CorruptedIndexError(f"the catalog gives it the shape {shape!r:.60}, which no index has")
    if not 0 <= written["bytes"] - math.prod(shape) * dtype.itemsize <= _MAX_HEADER_BYTES:
        raise CorruptedIndexError(f"it has {written['bytes']} bytes, too many or too few for {dtype} {list(shape)}")
    return dtype, shape


def read_error(path: Path, error: OSError) -> CorruptedIndexError | StorageError:
    """Return the error for a file that cannot be read: damage, or a temporary failure of the system."""
    if error.errno in _DAMAGE:
        return CorruptedIndexError(f"{path} is damaged: {error}")
    return StorageError(f"could not read {path}: {error.strerror or error}. Nothing is lost; try again.")


def _check_size(path: Path, written: Any) -> None:
    if not (isinstance(written, dict) and {"bytes", "crc32", "dtype", "shape"} <= written.keys()):
        raise CorruptedIndexError("the catalog has no complete description of it")
    if not path.is_file():
        raise CorruptedIndexError("it is missing")
    size = path.stat().st_size
    if type(written["bytes"]) is not int or size != written["bytes"]:
        raise CorruptedIndexError(f"it has {size} bytes, but {written['bytes']} were written")
