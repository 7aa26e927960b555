"""Where segments are stored: `FileStore`, a folder of array files for each; `MemoryStore`, for an index in memory.

A segment is written into a folder of a temporary name, every file and the folder are synced, and the folder is
renamed: a folder of a final name is complete. It never changes again, so memory-mapped files cannot shrink under a
reader (no SIGBUS), and a reader keeps the files that it has open after the segment is deleted.

An index may come from a stranger: names in its catalog become paths in `FileStore` alone, which accepts only names of
the form that it makes itself and follows no links.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.catalog.folder import sync_folder
from latelier.indexes.catalog.segment_rows import Files, SegmentRow
from latelier.indexes.storage.files import compare_checksum, file_damage, read_file, write_file
from latelier.indexes.storage.segments import Arrays, Layout, Segment

__all__ = ["FileStore", "MemoryStore", "SegmentStore"]

# Names of folders and files; a folder that is still being written has a dot before its name.
_NAME = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"[a-z_]{1,40}\.npy")


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
            files = {f"{key}.npy": write_file(temporary / f"{key}.npy", array) for key, array in arrays.items()}
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
        return {Path(file).stem: read_file(self._path(name, file), written) for file, written in files.items()}

    def find_damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Read every byte in a folder; yield each damaged file and what is wrong with it."""
        for file, written in files.items():
            try:
                reason = file_damage(self._path(name, file), written)
            except CorruptedIndexError as error:
                reason = str(error)
            if reason is not None:
                yield f"{self.folder.name}/{name}/{file}", reason

    def compare_checksums(self, arrays: Arrays, name: str, files: Files) -> None:
        """Compare open arrays with their checksums, before they are copied into another segment.

        Raises
        ------
        CorruptedIndexError
            If an array is not the one that was written.
        """
        for file, written in files.items():
            compare_checksum(arrays[Path(file).stem], self._path(name, file), written)

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
