"""The folder of an index: whether it is one, and how it becomes one."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.store.connections import WAIT_SECONDS, translate_errors
from latelier.indexes.store.forks import using
from latelier.indexes.store.integrity import check_side_files
from latelier.utils.checks import describe
from latelier.utils.files import CATALOG, sync_folder


def as_folder(path: object) -> Path:
    """Return a user's path as an absolute one; raise `StorageError` if the operating system cannot look it up."""
    try:
        # Absolute, since connections and segments are opened later too, when the working directory may have changed.
        folder = Path(os.fsdecode(path)).absolute()  # type: ignore[arg-type]
        with suppress(FileNotFoundError, NotADirectoryError):  # `check_index_folder` decides
            folder.stat()
        if path != "":  # as from a variable that is not set, it would be the working directory
            return folder
    except OSError as error:  # a name that is too long, or a parent folder without permission
        reason = error.strerror or error
        raise StorageError(f"could not look for an index in {str(path)!r:.200}: {reason}.") from error
    except (TypeError, ValueError):  # no path, or one that cannot be encoded
        pass
    raise InvalidArgumentError(f"received {describe(path)} as a path; give the folder of the index as a str or a Path.")


def check_index_folder(folder: Path, *, create: bool) -> None:
    """Check that a folder holds an index, or, with `create`, that one can be made in it.

    Raises `IndexFormatError` if not, `CorruptedIndexError` if SQLite must not open the catalog.
    """
    if folder.exists() and not folder.is_dir():
        raise IndexFormatError(f"{folder} is a file; an index is a folder.")
    if folder.is_dir():
        found = sorted(path.name for path in folder.iterdir())
    else:
        found = []
    # Looked for after the others: another process may be making the index.
    if (folder / CATALOG).is_file():
        check_side_files(folder)
    elif found:
        shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        fact = f"{folder} is not an index: it holds {shown}."
        if create:
            raise IndexFormatError(f"{fact} Choose a new or an empty folder.")
        raise IndexFormatError(fact, advice="give-index")
    elif not create:
        raise no_index(folder)


@contextmanager
def looking_into(folder: Path) -> Iterator[None]:
    """Raise a `StorageError` where the system fails to make a folder, or to look into it or its files."""
    try:
        yield
    except LatelierError:  # some are OSErrors
        raise
    except OSError as error:
        if error.filename:
            cause = f"{error.strerror or error} for {error.filename}"
        else:
            cause = f"{error.strerror or error}"
        if isinstance(error, PermissionError):
            hint = "; let this user read the folder and all that is in it"
        else:
            hint = ""
        raise StorageError(f"could not look into the folder {folder} or make it: {cause}{hint}.") from error


def make_catalog(path: Path) -> None:
    """Make an empty catalog and its folders, unless there is a catalog already."""
    if path.is_file() and path.stat().st_size:
        return
    # Each folder that is made is an entry of the one above it, which has to be synced.
    made = [folder for folder in path.parent.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with using(), translate_errors(str(path.parent)):
        connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            mode = _begin_log(connection)
        finally:
            connection.close()
    if mode != "wal":
        raise StorageError(f"{path.parent} cannot hold SQLite's write-ahead log; choose a folder on a local disk.")
    for folder in dict.fromkeys([path.parent, path.parent.parent, *(each.parent for each in made)]):
        with suppress(PermissionError):  # one that may be written but not read cannot be synced
            sync_folder(folder)


def _begin_log(connection: sqlite3.Connection) -> str:
    """Switch a new catalog to the write-ahead log; SQLite does not wait here for another process that does the same."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def no_index(folder: Path) -> IndexFormatError:
    """Return the error for a folder in which there is no index."""
    return IndexFormatError(f"there is no index in {folder}.", advice="make-index")
