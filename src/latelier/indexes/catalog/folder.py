"""The folder of an index: checks its path and its files, and detects that it was replaced after it was opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from latelier.errors import IndexFormatError, InvalidArgumentError, StorageError
from latelier.indexes.catalog.rows import CATALOG, damaged
from latelier.utils.checks import describe

__all__ = [
    "FileId",
    "OpenedFolder",
    "as_folder",
    "check_index_folder",
    "closed_error",
    "looking_into",
    "no_index",
    "replaced_error",
    "sync_folder",
]

# Device and inode of a file, which are the same for every path to it.
FileId: TypeAlias = "tuple[int, int]"
# The last bytes of a journal that names a super-journal: https://www.sqlite.org/fileformat.html#the_rollback_journal
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")


def as_folder(path: object) -> Path:
    """Return a user's path as an absolute one.

    Raises
    ------
    InvalidArgumentError
        If it is not a path.
    StorageError
        If the operating system cannot look up the path.
    """
    # An empty text, as from a variable that is not set, would be the working directory.
    if isinstance(path, (str, os.PathLike)) and path != "" and "\0" not in os.fsdecode(path) and _is_encodable(path):
        # Absolute, since connections and segments are opened later too, when the working directory may have changed.
        folder = Path(os.fsdecode(path)).absolute()
        try:
            folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass  # `check_index_folder` decides
        except OSError as error:  # a name that is too long, or a parent folder without permission
            reason = error.strerror or error
            raise StorageError(f"could not look for an index in {str(folder)!r:.200}: {reason}.") from error
        return folder
    raise InvalidArgumentError(f"received {describe(path)} as a path; give the folder of the index as a str or a Path.")


def _is_encodable(path: str | os.PathLike[str]) -> bool:
    """Whether a path can be passed to the system: a lone surrogate cannot, unless it stands for a byte."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def check_index_folder(folder: Path, *, create: bool) -> None:
    """Check that a folder holds an index, or, with `create`, that one can be made in it.

    Raises
    ------
    IndexFormatError
        If it does not, or cannot.
    CorruptedIndexError
        If opening the catalog could make SQLite touch other files.
    StorageError
        If the system denies to look into the folder.
    """
    with looking_into(folder):
        if folder.exists() and not folder.is_dir():
            raise IndexFormatError(f"{folder} is a file; an index is a folder.")
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        # Looked for after the others: another process may be making the index.
        if (folder / CATALOG).is_file():
            _check_side_files(folder)
            return
    if not found and not create:
        raise no_index(folder)
    if found:
        shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        cure = "Choose a new or an empty folder" if create else "Give the folder of an index"
        raise IndexFormatError(f"{folder} is not an index: it holds {shown}. {cure}.")


@contextmanager
def looking_into(folder: Path) -> Iterator[None]:
    """Raise a `StorageError` where the system denies to look into a folder or its files."""
    try:
        yield
    except PermissionError as error:
        raise StorageError(
            f"could not look into {folder}: {error.strerror} for {error.filename}; let this user read the folder and "
            "all that is in it."
        ) from error


def no_index(folder: Path) -> IndexFormatError:
    """Return the error for a folder in which there is no index."""
    return IndexFormatError(
        f"there is no index in {folder}; create one with latelier index SOURCE --index FOLDER, or in Python with "
        "Retriever(index=folder) or indexes.Flat(folder)."
    )


def _check_side_files(folder: Path) -> None:
    """Reject files that would make SQLite touch other files or hang.

    SQLite would write through a link, wait for ever on a pipe, and delete the super-journal that a journal names.
    """
    for name in (CATALOG, *(f"{CATALOG}-{suffix}" for suffix in ("wal", "shm", "journal"))):
        file = folder / name
        # Another process may delete a file at any moment, so each is looked at once.
        with suppress(FileNotFoundError):
            mode = file.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise damaged(f"{file} is a link, but an index must hold its own files")
            if not stat.S_ISREG(mode):
                raise damaged(f"{file} is not a regular file")
    with suppress(FileNotFoundError):
        journal = folder / f"{CATALOG}-journal"
        if journal.read_bytes().endswith(_SUPER_JOURNAL):
            raise damaged(f"{journal} is not a journal that an index writes")


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk; on Windows, where this is neither possible nor needed, do nothing."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class OpenedFolder:
    """Detects that the catalog, or the folder of segments, was replaced after an index was opened.

    Parameters
    ----------
    catalog
        The catalog's file.
    """

    def __init__(self, catalog: Path) -> None:
        self._folder_path = catalog.parent
        # str, since they are looked up at every call: making a Path of one takes longer than os.stat.
        self._catalog, self._segments = str(catalog), str(catalog.with_name("segments"))
        self.catalog_id: FileId | None = None
        self._segments_id: FileId | None = None

    def find(self) -> FileId | None:
        """Return the file id of the catalog that is there now; ``None`` if there is no file."""
        return _file_id(self._catalog)

    def remember(self, found: FileId | None) -> None:
        """Store the file id of the catalog that was opened; only the first call has an effect."""
        if self.catalog_id is None:
            self.catalog_id = found

    def is_same(self, *, segments: bool = False) -> bool:
        """Whether the catalog, and with `segments` the folder of segments too, are those that were opened."""
        if self.catalog_id is not None and _file_id(self._catalog) != self.catalog_id:
            return False
        if not segments:
            return True
        found = _file_id(self._segments)
        self._segments_id = self._segments_id or found  # the folder is made with the first segment
        return found in (None, self._segments_id)

    def check(self, *, segments: bool = False) -> None:
        """Check that the catalog, and with `segments` the folder of segments too, are those that were opened.

        Raises
        ------
        StorageError
            If one was moved or replaced.
        """
        if not self.is_same(segments=segments):
            raise replaced_error(self._folder_path)


def replaced_error(folder: Path) -> StorageError:
    """Return the error for a folder that no longer holds the index that was opened."""
    return StorageError(
        f"the index in {folder} was replaced or moved since it was opened; nothing was changed. Open it again with "
        "indexes.open(path)."
    )


def closed_error(folder: Path | str) -> InvalidArgumentError:
    """Return the error for an index that was closed."""
    again = "its documents are gone" if folder == "memory" else "open it again with indexes.open(path)"
    return InvalidArgumentError(f"the index in {folder} is closed; {again}.")


def _file_id(path: str) -> FileId | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (faster than Path.stat)
    except OSError:
        return None
    return found.st_dev, found.st_ino
