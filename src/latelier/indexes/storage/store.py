"""Where segments are stored: `FileStore`, with a folder of array files per segment, and `MemoryStore`, in memory.

A segment is written into a folder with a temporary name; its files and the folder are synced, and the folder is renamed
to its final name, so a folder with a final name is complete. It never changes again: memory-mapped files do not shrink
(no SIGBUS), and a reader can use the files that it has open even after the segment is deleted.

An index may come from an untrusted source. Only `FileStore` turns names in the catalog into paths: it accepts only
names of the form that it generates itself, and follows no links.
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
from latelier.indexes.catalog.folder import looking_into, sync_folder
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
        """Store new arrays; return their name, and an empty description of files."""
        name = secrets.token_hex(8)
        self._arrays[name] = arrays
        return name, {}

    def open(self, row: SegmentRow, dim: int) -> Segment:
        """Return a segment.

        Raises
        ------
        CorruptedIndexError
            If the segment is missing.
        """
        if row.name not in self._arrays:  # a newer commit has merged it
            raise CorruptedIndexError("it is missing")
        return Segment(self._arrays[row.name], dim)

    def open_arrays(self, name: str, files: Files) -> Arrays:
        """Return the arrays with this name."""
        return self._arrays[name]

    def sizes(self, name: str, files: Files) -> dict[str, int]:
        """Return the bytes of the arrays with this name."""
        return {key: array.nbytes for key, array in self._arrays.get(name, {}).items()}

    def find_damage(self, name: str, files: Files) -> Iterator[tuple[str, str]]:
        """Yield nothing: there are no files."""
        return iter(())

    def compare_checksums(self, arrays: Arrays, name: str, files: Files) -> None:
        """Do nothing: there are no files."""

    def delete(self, names: Iterable[str]) -> None:
        """Drop segments; readers that have one open can still use its arrays."""
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
        Holds one folder per segment; made with the first segment.
    layout
        The token arrays of the index.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder = folder
        self._layout = layout

    def write(self, arrays: Arrays) -> tuple[str, Files]:
        """Write arrays into a new folder; return its name, and the description of its files for the catalog.

        Raises
        ------
        CorruptedIndexError
            If the folder of segments is a link.
        StorageError
            If the file system reports an error, such as a full disk; no file is left behind.
        """
        name = secrets.token_hex(8)
        temporary = self.folder / f".{name}"
        if self.folder.is_symlink():
            raise CorruptedIndexError(f"{self.folder} is a link, but an index must hold its own files.")
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
                f"could not write a segment into {self.folder}: {error.strerror or error}. The index is unchanged; "
                "free some space or choose another disk."
            ) from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return name, files

    def open(self, row: SegmentRow, dim: int) -> Segment:
        """Open a segment, and check that its arrays fit together; kernels rely on this check, see `Segment.check`.

        Raises
        ------
        CorruptedIndexError, StorageError
            As for `open_arrays`, and if the arrays do not fit together.
        """
        arrays = self.open_arrays(row.name, row.files)
        # "documents" is copied from the memory map, so that it cannot change with the file after it was checked.
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
            If a file is missing, or differs from its description in size, shape or dtype.
        StorageError
            If the operating system cannot open it now, for example because too many files are open.
        """
        return {Path(file).stem: read_file(self._path(name, file), written) for file, written in files.items()}

    def sizes(self, name: str, files: Files) -> dict[str, int]:
        """Return the bytes of the arrays in a folder, as the catalog gives them; 0 where it is damaged."""
        written = {file: row.get("bytes") if isinstance(row, dict) else 0 for file, row in files.items()}
        return {Path(file).stem: size if type(size) is int and size > 0 else 0 for file, size in written.items()}

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
            If an array does not match its checksum.
        """
        for file, written in files.items():
            compare_checksum(arrays[Path(file).stem], self._path(name, file), written)

    def delete(self, names: Iterable[str]) -> None:
        """Delete segments that no reader will open any more; `compact` deletes later what cannot be deleted now."""
        for name in names:
            if _NAME.fullmatch(name.removeprefix(".")) and not self.folder.is_symlink():
                shutil.rmtree(self.folder / name, ignore_errors=True)  # does not follow links

    def names(self) -> list[str]:
        """Return the names of all folders of segments, including the incomplete ones of killed writers.

        Raises
        ------
        StorageError
            If the system denies to look into the folder.
        """
        with looking_into(self.folder.parent):
            if not self.folder.is_dir() or self.folder.is_symlink():
                return []
            return [path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name.removeprefix("."))]

    def _path(self, name: str, file: str) -> Path:
        """Return the path of a file, given the names of its folder and itself in the catalog.

        Raises
        ------
        CorruptedIndexError
            If a name does not have the form that `write` generates, or the file or one of its folders is a link.
        """
        if not (isinstance(name, str) and _NAME.fullmatch(name) and _FILE.fullmatch(file)):
            raise CorruptedIndexError(
                f"the catalog of the index in {self.folder.parent} is damaged: it names the file {file!r:.60} of the "
                f"segment {name!r:.60}, which no index has"
            )
        path = self.folder / name / file
        with looking_into(self.folder.parent):
            for link in (self.folder, path.parent, path):
                if link.is_symlink():
                    raise CorruptedIndexError(f"{link} is a link, but an index must hold its own files")
        return path


SegmentStore: TypeAlias = "MemoryStore | FileStore"
