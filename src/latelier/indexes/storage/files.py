"""Where segments are stored: `FileStore`, a folder of ``.npy`` files for each; `MemoryStore`, for an index in memory.

A segment is written into a folder of a temporary name, every file and the folder are synced, and the folder is
renamed: a folder of a final name is complete. It never changes again, so memory-mapped files cannot shrink under a
reader (no SIGBUS), and a reader keeps the files that it has open after the segment is deleted. The catalog holds
size, shape, dtype and checksum of each file. All but the checksum are compared whenever a segment is opened; the
checksum by `verify`, and before bytes are copied into another segment.

An index may come from a stranger: names in its catalog become paths in `FileStore` alone, which accepts only names of
the form that it makes itself and follows no links.
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
from latelier.indexes.storage.segments import Arrays, Layout, Segment

__all__ = ["FileStore", "MemoryStore", "SegmentStore"]

# Names of folders and files; a folder that is still being written has a dot before its name.
_NAME = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"[a-z_]{1,40}\.npy")
# Errors of the system that mean a damaged file. All others (too many open files, no memory) are temporary.
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP}
_DTYPES = {"<f4", "<f2", "<f8", "<i8", "<i4", "<u4", "<u2", "|u1", "|i1"}
# Larger values in a catalog are damage.
_MAX_HEADER_BYTES, _MAX_DIMENSIONS, _MAX_SIZE = 4096, 4, 1 << 48
# Smaller files are read rather than memory-mapped: a map holds a file descriptor, and their number is limited.
_MAP_BYTES = 1 << 20
_READ_BYTES = 1 << 24


class MemoryStore:
    """The segments and ANN data of an index in memory."""

    def __init__(self) -> None:
        self._arrays: dict[str, Arrays] = {}

    def write(self, arrays: Arrays) -> tuple[str, Files]:
        """Keep new arrays and return their name; there are no files."""
        name = secrets.token_hex(8)
        self._arrays[name] = arrays
        return name, {}

    def open(self, row: SegmentRow, dim: int) -> Segment:
        """Return a segment."""
        if row.name not in self._arrays:  # merged by a newer commit
            raise CorruptedIndexError("it is missing")
        return Segment(self._arrays[row.name], dim)

    def open_arrays(self, name: str, files: Files) -> Arrays:
        """Return the arrays of this name."""
        return self._arrays[name]

    def find_damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Yield nothing: there are no files."""
        return iter(())

    def compare_checksums(self, arrays: Arrays, name: str, files: Files) -> None:
        """Do nothing: there are no files."""

    def delete(self, names: Iterable[str]) -> None:
        """Forget segments; a reader that has one open keeps its arrays."""
        for name in names:
            self._arrays.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of everything stored."""
        return list(self._arrays)


class FileStore:
    """The segments and ANN data of an index on disk.

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

    def write(self, arrays: Arrays) -> tuple[str, Files]:
        """Write arrays into a new folder and return its name and the description of its files for the catalog.

        Raises
        ------
        StorageError
            If the file system reports an error, such as a full disk; no file is left behind.
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
        """Open a segment and check that its arrays fit together: from here on they are trusted, see `Segment.check`.

        Raises
        ------
        CorruptedIndexError, StorageError
            As for `open_arrays`, and if the arrays do not fit together.
        """
        arrays = self.open_arrays(row.name, row.files)
        # Copied from the map: what has been checked must not change with the file afterwards.
        segment = Segment({name: np.array(a) if name == "documents" else a for name, a in arrays.items()}, dim)
        try:
            segment.check(row, self._layout)
        except CorruptedIndexError as error:
            raise CorruptedIndexError(f"{self.folder / row.name} is damaged: {error}") from error
        return segment

    def open_arrays(self, name: str, files: Files) -> Arrays:
        """Return the arrays in a folder, the larger ones memory-mapped.

        Raises
        ------
        CorruptedIndexError
            If a file is missing, or has not the size, shape and dtype that were written.
        StorageError
            If the system cannot open it now, as with too many open files.
        """
        return {Path(file).stem: _read(self._path(name, file), written) for file, written in files.items()}

    def find_damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Read every byte in a folder; yield each damaged file and what is wrong with it."""
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

    def compare_checksums(self, arrays: Arrays, name: str, files: Files) -> None:
        """Compare open arrays with their checksums, before they are copied into another segment.

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
        """Delete segments that no reader will open any more; what cannot be deleted now is left for `compact`."""
        for name in names:
            if _NAME.fullmatch(name.removeprefix(".")) and not self.folder.is_symlink():
                shutil.rmtree(self.folder / name, ignore_errors=True)  # follows no links

    def names(self) -> list[str]:
        """Return the names of all folders in the form of a segment's, including incomplete ones of killed writers."""
        if not self.folder.is_dir() or self.folder.is_symlink():
            return []
        return [path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name.removeprefix("."))]

    def _path(self, name: str, file: str) -> Path:
        """Return the path of a file by its names in the catalog.

        Raises
        ------
        CorruptedIndexError
            If a name is not of the form that is made here, or the file or one of its folders is a link.
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


SegmentStore: TypeAlias = "MemoryStore | FileStore"


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
    """Return an array. Its header is not parsed but compared with the one that the catalog describes."""
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
            # "c", copy on write: torch shares writable memory without a copy, and a write cannot reach the file.
            return np.asarray(np.memmap(file, dtype, "c", len(header), shape))
    except CorruptedIndexError as error:
        raise CorruptedIndexError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _described(written: dict[str, Any]) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and shape that the catalog gives for a file, which take no more bytes than the file has."""
    if (
        not isinstance(written["dtype"], str)
        or written["dtype"] not in _DTYPES
        or not isinstance(written["shape"], list)
    ):
        raise CorruptedIndexError(f"the catalog says that it holds {written['dtype']!r:.60}, which no index has")
    dtype, shape = np.dtype(written["dtype"]), tuple(written["shape"])
    # Bounds that numpy can handle, also for an array with a dimension of 0.
    is_possible = len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not is_possible or math.prod(max(1, n) for n in shape) >= _MAX_SIZE:
        raise CorruptedIndexError(f"the catalog says that it has the shape {shape!r:.60}")
    if not 0 <= written["bytes"] - math.prod(shape) * dtype.itemsize <= _MAX_HEADER_BYTES:
        raise CorruptedIndexError(f"it has {written['bytes']} bytes, too many or too few for {dtype} {list(shape)}")
    return dtype, shape


def _unreadable(path: Path, error: OSError) -> CorruptedIndexError | StorageError:
    """Return the error for a file that cannot be read: damage, or a temporary failure of the system."""
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
