"""Connections to the catalog, an SQLite database, of which each transaction takes one from a pool.

On disk, thanks to SQLite's write-ahead log, a reading transaction sees the latest commit without waiting for a writer;
there is one writer at a time. In memory, there is one connection with a lock; a writer first prepares its changes, and
takes the lock only to apply them.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import traceback
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from latelier.errors import CommitError, CorruptedIndexError, InvalidArgumentError, ReadOnlyIndexError, StorageError
from latelier.indexes.store.forks import Lock, close_at_forks, is_forking, using
from latelier.utils.files import SEGMENTS

# How long a writer waits for another writer before it raises an error.
WAIT_SECONDS = 5.0
# What SQLite's errors say of a damaged catalog.
_SIGNS_OF_DAMAGE = ("malformed", "not a database", "Could not decode", "unsupported file format", "no such")


def closed_error(folder: Path | str) -> InvalidArgumentError:
    """Return the error for an index that was closed."""
    if folder == "memory":
        again = "its documents are gone"
    else:
        again = "open it again with indexes.open(path)"
    return InvalidArgumentError(f"the index in {folder} is closed; {again}.")


def _replaced_error(folder: str) -> StorageError:
    return StorageError(
        f"the index in {folder} was replaced or moved since it was opened; nothing was changed. Open it again with "
        "indexes.open(path)."
    )


def _busy_error(where: str) -> StorageError:
    return StorageError(
        f"another write to the index in {where} has not finished within {WAIT_SECONDS:g} seconds; try again later."
    )


@contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Raise SQLite's errors as errors of this library, but not those of databases that generators of users read."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter, as SQLite quotes a damaged schema in its message
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__")).startswith("latelier.indexes."):
            raise
        reason = str(error)
        if "locked" in reason:
            raise _busy_error(where) from error
        if "readonly" in reason:
            raise ReadOnlyIndexError(f"the index in {where} cannot be written: {reason}.") from error
        if isinstance(error, UnicodeDecodeError) or any(sign in reason for sign in _SIGNS_OF_DAMAGE):
            raise CorruptedIndexError(
                f"the catalog of the index in {where} is damaged: {reason}. Restore it from a backup or rebuild the "
                "index."
            ) from error
        raise StorageError(
            f"SQLite failed on the catalog of the index in {where}: {reason}. Earlier commits are not affected."
        ) from error


_TABLES = {"document", "content", "json_each"}
# SQLite reports these operators, and the table-valued function, as functions.
_OPERATORS = ("->", "->>", "json_each")


class Authorizer:
    """Restricts a connection while a filter is evaluated, as a second line of defence behind the grammar of filters.

    SQLite calls it when a statement is compiled, but not when `sqlite3` runs a compiled statement from its cache.
    """

    def __init__(self) -> None:
        self._functions: Collection[str] | None = None

    @contextmanager
    def restricted_to(self, functions: Collection[str]) -> Iterator[None]:
        """Deny everything except reading documents and calling `functions`, within a ``with`` block."""
        self._functions = functions
        try:
            yield
        finally:
            self._functions = None

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Return ``SQLITE_OK`` or ``SQLITE_DENY``; what `first` and `second` name depends on `action`."""
        if self._functions is None or action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            if first in _TABLES:
                return sqlite3.SQLITE_OK
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_FUNCTION:
            called = str(second).lower()
        else:
            called = None
        is_allowed = called in _OPERATORS or called in self._functions
        if is_allowed:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


class Connection(sqlite3.Connection):
    """A connection to the catalog.

    `authorizer`: restricts statements while a filter is evaluated. `single_use`: whether it cannot see later commits of
    others, so that each transaction needs a new one. `process`: the process that may use it, None for all.
    """

    authorizer: Authorizer
    single_use = False
    process: int | None = None

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """See `sqlite3.Connection.execute`."""
        self._refuse_inherited()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """See `sqlite3.Connection.executemany`."""
        self._refuse_inherited()
        return super().executemany(*arguments)

    def _refuse_inherited(self) -> None:
        if self.process not in (None, os.getpid()):
            raise StorageError(
                "this process was forked within a call on this index; only the process that began the call can "
                "continue it. Leave the forked process with os._exit, as multiprocessing does."
            )


def connect(uri: str, *, alone: bool = False) -> Connection:
    """Open a connection to ``":memory:"`` or a ``file:`` URI.

    `alone`: lock the file for this connection alone, so that SQLite needs no shared-memory file (``-shm``).
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
        connection.execute("SELECT count(*) FROM json_each('[]')").fetchone()
    except BaseException:
        connection.close()
        raise
    connection.authorizer = Authorizer()
    connection.set_authorizer(connection.authorizer)
    return connection


class MemoryPool:
    """The one connection to a catalog in memory; a forked child has a copy of its own."""

    where = "memory"

    def __init__(self) -> None:
        with using():
            self._connection = connect(":memory:")
        self._lock = Lock(threading.RLock)
        self._writer = Lock()
        self._closed = False
        self._close = weakref.finalize(self, _close_all, [self._connection])
        close_at_forks(self)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Take the connection, so that nothing changes while it is used."""
        with using(), self._lock.current, translate_errors(self.where):
            if self._closed:
                raise closed_error(self.where)
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[Callable[[], Connection]]:
        """Become the only writer, and yield a function that returns the connection.

        Its first call begins the transaction; from then on readers wait. The transaction commits at the end of the
        context, or is rolled back if an error is raised.
        """
        with _one_writer(self._writer, self.where), translate_errors(self.where), ExitStack() as transaction:
            begun: list[Connection] = []

            def begin() -> Connection:
                if not begun:
                    # From here on close() waits. If it was called earlier, reading() raises an error.
                    begun.append(transaction.enter_context(self.reading()))
                    begun[0].execute("BEGIN IMMEDIATE")
                return begun[0]

            try:
                yield begin
                for connection in begun:
                    _commit(connection, self.where)
            except BaseException:
                for connection in begun:
                    _rollback(connection)
                raise

    def is_in_place(self) -> bool:
        """Return True: memory, unlike files, cannot be moved or replaced."""
        return True

    def close(self) -> None:
        """Drop the catalog once no thread is using it any more."""
        self._closed = True
        with suppress(StorageError), using(), self._lock.current:  # raised where no index can be used
            self._close()

    def close_idle(self) -> None:
        """Do nothing before a fork: the child can use its copy of the memory."""

    def leave_to_parent(self) -> None:
        """Leak the copy in a forked child, which may be unable to close it."""
        _leak(self._connection)


# Device and inode of a file, which are the same for every path to it.
FileId: TypeAlias = "tuple[int, int]"
# Catalogs to which this process, a forked child, has inherited connections.
_inherited: set[FileId] = set()


class FilePool:
    """A pool of connections to a catalog on disk.

    `read_only`: never write, not even SQLite's side files if the folder cannot be written.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.where = str(path.parent)
        self.read_only = read_only
        self._uri = path.absolute().as_uri()
        # str, since they are looked up at every call: making a Path of one takes longer than os.stat.
        self._catalog = str(path)
        self._segments = str(path.with_name(SEGMENTS))
        # What was opened first: the catalog, the JSON of the name inside of it, the folder of segments.
        self._catalog_id: FileId | None = None
        self.uid: str | None = None
        self._segments_id: FileId | None = None
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._writer = Lock()
        self._closed = False
        weakref.finalize(self, _close_all, self._idle)
        close_at_forks(self)

    @contextmanager
    def reading(self, begin: str = "BEGIN") -> Iterator[Connection]:
        """Begin a reading transaction, which sees the latest commit and nothing newer."""
        if self._closed:
            raise closed_error(self.where)
        with using(), translate_errors(self.where):
            if not self.is_in_place(segments=False):
                raise _replaced_error(self.where)
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._open()
            self._busy.add(connection)
            try:
                connection.execute(begin)
                yield connection
                _commit(connection, self.where)
            except BaseException:
                _rollback(connection)
                raise
            finally:
                self._give_back(connection)

    @contextmanager
    def writing(self) -> Iterator[Callable[[], Connection]]:
        """Begin the only writing transaction, and yield a function that returns its connection.

        The transaction commits at the end of the context, or is rolled back if an error is raised.
        """
        if self.read_only:
            raise ReadOnlyIndexError(
                f"the index in {self.where} is open for reading only; to change it, open it without read_only=True in "
                "a folder that you may write."
            )
        with _one_writer(self._writer, self.where), self.reading("BEGIN IMMEDIATE") as connection:
            self._check_uid(connection)
            if not self.is_in_place():
                raise _replaced_error(self.where)
            yield lambda: connection
            if not self.is_in_place():
                raise _replaced_error(self.where)

    def is_in_place(self, *, segments: bool = True) -> bool:
        """Whether the catalog, and with `segments` their folder too, are still the files that were opened."""
        if self._catalog_id is not None and _file_id(self._catalog) != self._catalog_id:
            return False
        if not segments:
            return True
        found = _file_id(self._segments)
        self._segments_id = self._segments_id or found  # the folder is made with the first segment
        return found in (None, self._segments_id)

    def close(self) -> None:
        """Close all idle connections; with the last one of all processes, SQLite moves its log into the catalog."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that no transaction is using."""
        _close_all(self._idle)

    def leave_to_parent(self) -> None:
        """Leak all connections in a forked child, and let it open none to this catalog."""
        for connection in (*self._idle, *self._busy):
            _leak(connection)
            if self._catalog_id is not None:
                _inherited.add(self._catalog_id)
        self._idle.clear()
        self._busy.clear()

    def _give_back(self, connection: Connection) -> None:
        if connection.process != os.getpid():
            return
        # Without SQLite's shared-memory file a connection does not see later commits of others, so it is used once.
        if self._closed or connection.single_use or is_forking():
            connection.close()
        else:
            self._idle.append(connection)
        self._busy.discard(connection)
        if self._closed:  # another thread may have closed the pool since the check above
            self.close_idle()

    def _open(self) -> Connection:
        """Open a connection, if the catalog is the one that was opened first."""
        found = _file_id(self._catalog)
        if found in _inherited:
            raise StorageError(
                f"the index in {self.where} was in use when this process was forked, so it cannot be used here. Fork "
                "while nothing is being added, or start processes with multiprocessing.get_context('spawn')."
            )
        connection = self._connect()
        try:
            # SQLite opens the catalog and its log by name: the catalog must not have been replaced in between.
            if found != _file_id(self._catalog):
                raise _replaced_error(self.where)
            self._check_uid(connection)
        except BaseException:
            connection.close()
            raise
        self._catalog_id = self._catalog_id or found
        connection.process = os.getpid()
        return connection

    def _check_uid(self, connection: Connection) -> None:
        """Compare the random name of the index, since its file may have been overwritten in place."""
        if self.uid is not None:
            row = connection.execute("SELECT value FROM setting WHERE name = 'uid'").fetchone()
            if row is None or row[0] != self.uid:
                raise _replaced_error(self.where)

    def _connect(self) -> Connection:
        if not self.read_only:
            return connect(f"{self._uri}?mode=rw")
        try:
            return connect(f"{self._uri}?mode=ro")
        except sqlite3.OperationalError:
            if _file_id(self._catalog) is None:
                raise
            # In a folder that cannot be written, SQLite cannot make its shared-memory file.
            log = Path(f"{self._catalog}-wal")
            if not (log.exists() and log.stat().st_size):
                connection = connect(f"{self._uri}?mode=ro&immutable=1")
            elif os.name != "nt":
                connection = connect(f"{self._uri}?mode=ro&vfs=unix-none", alone=True)
            else:
                raise
            connection.single_use = True
            return connection


ConnectionPool: TypeAlias = "MemoryPool | FilePool"


def _file_id(path: str) -> FileId | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (faster than Path.stat)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _leak(connection: Connection) -> None:
    """Never release this reference, so that Python does not close the connection, not even at exit."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _close_all(connections: list[Connection]) -> None:
    with suppress(IndexError, StorageError):  # another thread took the last one; no index can be used
        if connections:
            with using():
                while connections:
                    connections.pop().close()


def _commit(connection: Connection, where: str) -> None:
    if not connection.in_transaction:
        return
    try:
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise
        raise CommitError(
            f"the disk failed while a write to the index in {where} was committed ({error}), so it is unknown whether "
            "the write took effect; earlier commits are kept. When the disk works again, open the index anew, look "
            "(`id in index`, `index.get`), and repeat the write with update() or remove() if it is missing."
        ) from error


def _rollback(connection: Connection) -> None:
    if connection.in_transaction and connection.process in (None, os.getpid()):
        connection.execute("ROLLBACK")


@contextmanager
def _one_writer(lock: Lock, where: str) -> Iterator[None]:
    """Let one thread of this process write at a time; SQLite does the same for processes."""
    held = lock.current
    if not held.acquire(timeout=WAIT_SECONDS):
        raise _busy_error(where)
    try:
        yield
    finally:
        held.release()
