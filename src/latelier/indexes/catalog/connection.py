"""Connections to the catalog: creating an empty catalog, opening a connection, and translating SQLite's errors."""

from __future__ import annotations

import ctypes
import sqlite3
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from latelier.errors import CorruptedIndexError, LatelierError, ReadOnlyIndexError, StorageError
from latelier.indexes.catalog import forks
from latelier.indexes.catalog.authorizer import Authorizer
from latelier.indexes.catalog.folder import sync_folder

__all__ = [
    "WAIT_SECONDS",
    "Connection",
    "busy_error",
    "connect",
    "leave",
    "make_catalog",
    "read_uid",
    "translate_errors",
]

# How long a writer waits for another writer before it raises an error.
WAIT_SECONDS = 5.0
# What SQLite's errors say of a damaged catalog.
_SIGNS_OF_DAMAGE = ("malformed", "not a database", "Could not decode", "unsupported file format")


class Connection(sqlite3.Connection):
    """A connection to the catalog.

    Attributes
    ----------
    authorizer
        Restricts statements to reading documents while a filter is evaluated.
    single_use
        Whether this connection cannot see later commits of others, so that each transaction needs a new connection.
    inherited
        Whether this process inherited the connection from its parent by a fork, and so must not use it.
    """

    authorizer: Authorizer
    single_use = False
    inherited = False

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """See `sqlite3.Connection.execute`."""
        if self.inherited:
            raise _inherited_error()
        # Told apart here from errors of iterators of users, which are read within a transaction too.
        try:
            return super().execute(*arguments)
        except UnicodeDecodeError as error:  # SQLite's own message quotes the damaged schema
            raise sqlite3.OperationalError(f"malformed schema: {error}") from error
        except sqlite3.OperationalError as error:
            if str(error).startswith(("no such table", "no such column")):
                raise sqlite3.OperationalError(f"malformed schema: {error}") from error
            raise

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """See `sqlite3.Connection.executemany`."""
        if self.inherited:
            raise _inherited_error()
        return super().executemany(*arguments)


def make_catalog(path: Path) -> None:
    """Make an empty catalog and its folders, unless there is a catalog already.

    Raises
    ------
    StorageError
        If the folder cannot be made, or its file system cannot hold SQLite's write-ahead log.
    """
    if path.is_file() and path.stat().st_size:
        return
    try:
        # Each folder that is made is an entry of the one above it, which has to be synced.
        made = [folder for folder in path.parent.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"could not make the folder {path.parent}: {error.strerror or error}.") from error
    with forks.using(), translate_errors(str(path.parent)):
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
    """Switch a new catalog to the write-ahead log, and return its journal mode.

    SQLite does not wait here for another process that does the same.
    """
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def connect(uri: str, *, alone: bool = False) -> Connection:
    """Open a connection.

    Parameters
    ----------
    uri
        ``":memory:"`` or a ``file:`` URI.
    alone
        Lock the file for this connection alone, so that SQLite needs no shared-memory file (``-shm``).

    Returns
    -------
    Connection
        With an authorizer that allows everything until it is restricted.
    """
    connection = sqlite3.connect(
        uri,
        uri=uri != ":memory:",
        timeout=WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    try:
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")  # bytes; by default a large write leaves a large log
        # Read the file, so that an unreadable one raises its error here.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # Load the JSON table-valued functions now: later, the authorizer would deny it as a change of the schema.
        connection.execute("SELECT count(*) FROM json_each('[]'), json_tree('[]')").fetchone()
    except BaseException:
        connection.close()
        raise
    connection.authorizer = Authorizer()
    connection.set_authorizer(connection.authorizer)
    return connection


def read_uid(connection: Connection) -> str | None:
    """Return the random name that the index got when it was made; ``None`` for an empty or foreign database."""
    # Read `setting` only if it is a table: in a hostile file it could be a view that never ends.
    tables = "SELECT count(*) FROM sqlite_master WHERE name = 'setting' AND type = 'table' AND sql LIKE '%name%value%'"
    if not connection.execute(tables).fetchone()[0]:
        return None
    row = connection.execute("SELECT value FROM setting WHERE name = 'uid'").fetchone()
    return None if row is None else str(row[0])


def leave(connection: Connection) -> None:
    """In a forked child, give up a connection of the parent: it is never used again, and never closed."""
    if not connection.inherited:
        connection.inherited = True
        # This reference is never released, so Python does not close the connection, not even at exit.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


@contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Raise SQLite's errors as errors of this library, but not those of databases that generators of users read."""
    try:
        yield
    except sqlite3.Error as error:
        if not _is_own(error):
            raise
        raise _translate(error, where) from error


def _is_own(error: sqlite3.Error) -> bool:
    """Whether SQLite was called in this package."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("latelier.")


def _translate(error: sqlite3.Error, where: str) -> LatelierError:
    reason = str(error)
    if "locked" in reason:
        return busy_error(where)
    if "readonly" in reason:
        return ReadOnlyIndexError(f"the index in {where} cannot be written: {reason}.")
    if any(sign in reason for sign in _SIGNS_OF_DAMAGE):
        return CorruptedIndexError(
            f"the catalog of the index in {where} is damaged: {reason}. Restore it from a backup or rebuild the index."
        )
    return StorageError(
        f"SQLite failed on the catalog of the index in {where}: {reason}. Earlier commits are not affected."
    )


def _inherited_error() -> StorageError:
    return StorageError(
        "this process was forked within a call on this index; only the process that began the call can continue it. "
        "Leave the forked process with os._exit, as multiprocessing does."
    )


def busy_error(where: str) -> StorageError:
    """Return the error for a writer that has waited `WAIT_SECONDS` for another writer."""
    return StorageError(
        f"another write to the index in {where} has not finished within {WAIT_SECONDS:g} seconds; try again later."
    )
