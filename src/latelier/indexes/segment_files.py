"""Where the arrays of segments are kept: folders of ``.npy`` files on disk, or a dict in memory.

A folder is written under a temporary name, every file and the folder are synced, and then it is renamed: under its
final name a folder is whole. It is never changed again, so a map of it cannot be pulled away (no SIGBUS), and a
reader that has it open keeps it even after it was deleted. Size, shape, dtype and checksum of each file stand in the
catalog; all but the checksum are compared whenever a segment is opened, the checksum by `verify`.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.segments import Segment

__all__ = ["FileSegments", "Files", "MemorySegments", "Segments", "sync_folder"]

Files: TypeAlias = "dict[str, dict[str, Any]]"

# Smaller files are read rather than mapped: a map holds a file descriptor, and those are few.
_MAP_BYTES = 1 << 20
_READ_BYTES = 1 << 24


class MemorySegments:
    """The segments of an index in memory."""

    def __init__(self) -> None:
        self._segments: dict[str, Segment] = {}

    def write(self, arrays: dict[str, np.ndarray]) -> tuple[str, Files]:
        """Keep a new segment and return its name; there are no files."""
        name = secrets.token_hex(8)
        self._segments[name] = Segment(arrays)
        return name, {}

    def open(self, name: str, files: Files) -> Segment:
        """Return a segment."""
        return self._segments[name]

    def damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Yield nothing: there is no file that could be damaged."""
        return iter(())

    def delete(self, names: Iterable[str]) -> None:
        """Forget segments; who still searches them keeps them."""
        for name in names:
            self._segments.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of all segments."""
        return list(self._segments)


class FileSegments:
    """The segments of an index on disk.

    Parameters
    ----------
    folder
        Holds one folder per segment; made with the first of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, arrays: dict[str, np.ndarray]) -> tuple[str, Files]:
        """Write a new segment and return its name and what the catalog must know of its files.

        Raises
        ------
        StorageError
            If the file system refuses, as when the disk is full; nothing is left behind.
        """
        name = secrets.token_hex(8)
        temporary = self.folder / f".{name}"
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

    def open(self, name: str, files: Files) -> Segment:
        """Return a segment, its larger files memory-mapped.

        Raises
        ------
        CorruptedIndexError
            If a file is missing, or is not of the size, shape and dtype that were written.
        """
        return Segment({Path(file).stem: _read(self.folder / name / file, written) for file, written in files.items()})

    def damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Read every byte of a segment; yield each damaged file and what is wrong with it."""
        for file, written in files.items():
            path = self.folder / name / file
            try:
                _check_size(path, written)
                if _checksum(path) != written["crc32"]:
                    raise CorruptedIndexError("its bytes are not those that were written")
            except (CorruptedIndexError, OSError) as error:
                yield f"{self.folder.name}/{name}/{file}", str(error)

    def delete(self, names: Iterable[str]) -> None:
        """Delete segments that no reader will open any more; what the system refuses now waits for `compact`."""
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def names(self) -> list[str]:
        """Return the names of all folders, those of killed writers included."""
        return [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []


Segments: TypeAlias = "MemorySegments | FileSegments"


def _write(path: Path, array: np.ndarray) -> dict[str, Any]:
    header = io.BytesIO()
    array = np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    content = array.reshape(-1).view("uint8").data
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


def _read(path: Path, written: dict[str, Any]) -> np.ndarray:
    try:
        _check_size(path, written)
        # "c" maps privately: torch shares such memory without a copy, and not even a mistake could reach the file.
        mode: Any = "c" if written["bytes"] > _MAP_BYTES else None
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
        if [array.dtype.str, list(array.shape)] != [written["dtype"], written["shape"]]:
            raise CorruptedIndexError(
                f"it holds {array.dtype.str} {list(array.shape)}, but {written['dtype']} {written['shape']} was written"
            )
    except (CorruptedIndexError, OSError, ValueError, EOFError) as error:
        raise CorruptedIndexError(f"{path} is damaged: {error}") from error
    return np.asarray(array)


def _check_size(path: Path, written: dict[str, Any]) -> None:
    if not path.is_file():
        raise CorruptedIndexError("it is missing")
    size = path.stat().st_size
    if size != written["bytes"]:
        raise CorruptedIndexError(f"it has {size} bytes, but {written['bytes']} were written")


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable, where the system can (Windows cannot, and does not need it)."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
