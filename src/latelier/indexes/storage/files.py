"""Where the arrays of segments are kept: folders of ``.npy`` files on disk, or a dict in memory.

A folder is written under a temporary name, every file and the folder are synced, and then it is renamed: under its
final name a folder is whole. It is never changed again, so a map of it cannot be pulled away (no SIGBUS), and a
reader that has it open keeps it even after it was deleted. Size, shape, dtype and checksum of each file stand in the
catalog; all but the checksum are compared whenever a segment is opened, the checksum by `verify` and wherever bytes are
copied on into another segment.

A catalog may come from a stranger: its names become paths in `FileSegments` alone, which takes those that it makes
itself and follows no links.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.catalog.folder import sync_folder
from latelier.indexes.catalog.segment_rows import Files, SegmentRow
from latelier.indexes.storage.segments import Layout, Segment, check_segment

__all__ = ["FileSegments", "MemorySegments", "Segments"]

# Names that are made here; a folder that is still being written has a dot before its name.
_NAME = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"[a-z_]{1,40}\.npy")
# What a damaged file makes the system say. All else (too many open files, no memory) passes.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP}
_DTYPES = {"<f4", "<f2", "<f8", "<i8", "<i4", "<u4", "<u2", "|u1", "|i1"}
_MOST_HEADER = 4096
_MOST_DIMENSIONS, _MOST_NUMBERS = 4, 1 << 48
# Smaller files are read rather than mapped: a map holds a file descriptor, and those are few.
_MAP_BYTES = 1 << 20
_READ_BYTES = 1 << 24


class MemorySegments:
    """The segments of an index in memory."""

    def __init__(self) -> None:
        self._arrays: dict[str, dict[str, np.ndarray]] = {}

    def write(self, arrays: dict[str, np.ndarray]) -> tuple[str, Files]:
        """Keep new arrays and return their name; there are no files."""
        name = secrets.token_hex(8)
        self._arrays[name] = arrays
        return name, {}

    def open(self, row: SegmentRow, dim: int) -> Segment:
        """Return a segment."""
        if row.name not in self._arrays:  # merged by a newer commit
            raise CorruptedIndexError("it is missing")
        return Segment(self._arrays[row.name], dim)

    def open_arrays(self, name: str, files: Files) -> dict[str, np.ndarray]:
        """Return arrays."""
        return self._arrays[name]

    def damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Yield nothing: there is no file that could be damaged."""
        return iter(())

    def check(self, arrays: dict[str, np.ndarray], name: str, files: Files) -> None:
        """Do nothing, for the same reason."""

    def delete(self, names: Iterable[str]) -> None:
        """Forget segments; who still searches them keeps them."""
        for name in names:
            self._arrays.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of all segments."""
        return list(self._arrays)


class FileSegments:
    """The segments of an index on disk.

    Parameters
    ----------
    folder
        Holds one folder per segment; made with the first of them.
    layout
        The index's own arrays.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder = folder
        self._layout = layout

    def write(self, arrays: dict[str, np.ndarray]) -> tuple[str, Files]:
        """Write a new segment and return its name and what the catalog must know of its files.

        Raises
        ------
        StorageError
            If the file system refuses, as when the disk is full; nothing is left behind.
        """
        name = secrets.token_hex(8)
        temporary = self.folder / f".{name}"
        if self.folder.is_symlink():
            raise CorruptedIndexError(f"{self.folder} is a link, which is not followed: an index holds its own files.")
        try:
            if not self.folder.is_dir():
                self.folder.mkdir()
                sync_folder(self.folder.parent)
            temporary.mkdir()
            files = {f"{key}.npy": _write(temporary / f"{key}.npy", array) for key, array in arrays.items()}
            sync_folder(temporary)
            temporary.rename(self.folder / name)
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise StorageError(
                f"could not write a segment into {self.folder}: {error.strerror or error}. The index is as it was; "
                "free some space or choose another disk."
            ) from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return name, files

    def open(self, row: SegmentRow, dim: int) -> Segment:
        """Return a segment whose arrays fit together: here bytes from disk become trusted, see `check_segment`.

        Raises
        ------
        CorruptedIndexError, StorageError
            As for `open_arrays`, and if the arrays do not fit.
        """
        arrays = self.open_arrays(row.name, row.files)
        # Read, not mapped: what is checked must not change in the file afterwards.
        segment = Segment({name: np.array(a) if name == "documents" else a for name, a in arrays.items()}, dim)
        try:
            check_segment(segment, row, self._layout)
        except CorruptedIndexError as error:
            raise CorruptedIndexError(f"{self.folder / row.name} is damaged: {error}") from error
        return segment

    def open_arrays(self, name: str, files: Files) -> dict[str, np.ndarray]:
        """Return arrays, the larger ones memory-mapped.

        Raises
        ------
        CorruptedIndexError
            If a file is missing, or is not of the size, shape and dtype that were written.
        StorageError
            If the system cannot open it now, as with too many open files.
        """
        return {Path(file).stem: _read(self._path(name, file), written) for file, written in files.items()}

    def damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Read every byte of a segment; yield each damaged file and what is wrong with it."""
        for file, written in files.items():
            try:
                path = self._path(name, file)
                _check_size(path, written)
                if _checksum(path) != written["crc32"]:
                    raise CorruptedIndexError("its bytes are not those that were written")
            except CorruptedIndexError as error:
                yield f"{self.folder.name}/{name}/{file}", str(error)
            except OSError as error:
                if error.errno not in _DAMAGE:
                    raise _unreadable(path, error) from error
                yield f"{self.folder.name}/{name}/{file}", str(error)

    def check(self, arrays: dict[str, np.ndarray], name: str, files: Files) -> None:
        """Compare checksums of open arrays, before what is in memory is copied on.

        Raises
        ------
        CorruptedIndexError
            If an array is not the one that was written.
        """
        for file, written in files.items():
            path, content = self._path(name, file), _content(arrays[Path(file).stem])
            try:
                with path.open("rb") as opened:
                    header = opened.read(written["bytes"] - len(content))
            except OSError as error:
                raise _unreadable(path, error) from error
            if zlib.crc32(content, zlib.crc32(header)) != written["crc32"]:
                raise CorruptedIndexError(f"{path} is damaged: its bytes are not those that were written")

    def delete(self, names: Iterable[str]) -> None:
        """Delete segments that no reader will open any more; what the system refuses now waits for `compact`."""
        for name in names:
            if _NAME.fullmatch(name.removeprefix(".")) and not self.folder.is_symlink():
                shutil.rmtree(self.folder / name, ignore_errors=True)  # which refuses to follow a link

    def names(self) -> list[str]:
        """Return the names of all folders that are segments, those of killed writers included."""
        if not self.folder.is_dir() or self.folder.is_symlink():
            return []
        return [path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name.removeprefix("."))]

    def _path(self, name: str, file: str) -> Path:
        """Return the path of a file that the catalog names.

        Raises
        ------
        CorruptedIndexError
            If the name is not one that is made here, or a link on the way leads elsewhere.
        """
        if not (isinstance(name, str) and _NAME.fullmatch(name) and _FILE.fullmatch(file)):
            raise CorruptedIndexError(
                f"the catalog of the index in {self.folder.parent} is damaged: it names the file {file!r:.60} of the "
                f"segment {name!r:.60}, which no index has"
            )
        path = self.folder / name / file
        for link in (self.folder, path.parent, path):
            if link.is_symlink():
                raise CorruptedIndexError(f"{link} is a link, which is not followed: an index holds its own files")
        return path


Segments: TypeAlias = "MemorySegments | FileSegments"


def _write(path: Path, array: np.ndarray) -> dict[str, Any]:
    header, content = io.BytesIO(), _content(array)
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array)))
    with path.open("xb") as file:
        file.write(header.getvalue())
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return {
        "bytes": header.tell() + len(content),
        "crc32": zlib.crc32(content, zlib.crc32(header.getvalue())),
        "dtype": array.dtype.str,
        "shape": list(array.shape),
    }


def _content(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view("uint8").data


def _read(path: Path, written: Any) -> np.ndarray:
    """Return an array, whose header is compared with what the catalog says rather than parsed."""
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
            # "c" maps privately: torch shares such memory without a copy, and not even a mistake could reach the file.
            return np.asarray(np.memmap(file, dtype, "c", len(header), shape))
    except CorruptedIndexError as error:
        raise CorruptedIndexError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _described(written: dict[str, Any]) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and shape that a catalog names, which take no more bytes than the file has."""
    if (
        not isinstance(written["dtype"], str)
        or written["dtype"] not in _DTYPES
        or not isinstance(written["shape"], list)
    ):
        raise CorruptedIndexError(f"the catalog says that it holds {written['dtype']!r:.60}, which no index has")
    dtype, shape = np.dtype(written["dtype"]), tuple(written["shape"])
    # Few enough dimensions for numpy, and also of an array without numbers no more than it can count.
    possible = len(shape) <= _MOST_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not possible or math.prod(max(1, n) for n in shape) >= _MOST_NUMBERS:
        raise CorruptedIndexError(f"the catalog says that it has the shape {shape!r:.60}")
    if not 0 <= written["bytes"] - math.prod(shape) * dtype.itemsize <= _MOST_HEADER:
        raise CorruptedIndexError(f"it has {written['bytes']} bytes, too many or too few for {dtype} {list(shape)}")
    return dtype, shape


def _unreadable(path: Path, error: OSError) -> CorruptedIndexError | StorageError:
    """Return what it means that a file cannot be read: damage, or something that passes."""
    if error.errno in _DAMAGE:
        return CorruptedIndexError(f"{path} is damaged: {error}")
    return StorageError(f"could not read {path}: {error.strerror or error}. Nothing is lost; try again.")


def _check_size(path: Path, written: Any) -> None:
    if not (isinstance(written, dict) and {"bytes", "crc32", "dtype", "shape"} <= written.keys()):
        raise CorruptedIndexError("the catalog does not say what was written")
    if not path.is_file():
        raise CorruptedIndexError("it is missing")
    size = path.stat().st_size
    if type(written["bytes"]) is not int or size != written["bytes"]:
        raise CorruptedIndexError(f"it has {size} bytes, but {written['bytes']} were written")


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            value = zlib.crc32(chunk, value)
    return value
