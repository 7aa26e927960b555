"""Pools of connections to the catalog, for threads, forked processes and read-only folders.

On disk, each transaction takes a connection from the pool. Thanks to SQLite's write-ahead log, reading transactions see
the latest commit without waiting for a writer; there is one writer at a time. In memory, there is one connection with a
lock; a writer first prepares its changes, and takes the lock only to apply them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from latelier.errors import CommitError, ReadOnlyIndexError, StorageError
from latelier.indexes.catalog import connection as sqlite
from latelier.indexes.catalog import forks
from latelier.indexes.catalog.connection import Connection, connect, leave, translate_errors
from latelier.indexes.catalog.folder import FileId, OpenedFolder, closed_error, replaced_error

__all__ = ["ConnectionPool", "FilePool", "MemoryPool"]

# Catalogs to which this process, a forked child, has inherited connections: SQLite's locks do not work on them here.
_inherited: set[FileId] = set()


class MemoryPool:
    """The one connection to a catalog in memory."""

    where = "memory"

    def __init__(self) -> None:
        with forks.using():
            self._connection = connect(":memory:")
        self._lock = forks.Lock(threading.RLock)
        self._writer = forks.Lock()
        self._closed = False
        self._close = weakref.finalize(self, _close_all, [self._connection])
        forks.register(self)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Take the connection, so that nothing changes while it is used."""
        with forks.using(), self._lock.current, translate_errors(self.where):
            _check_open(self._closed, self.where)
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[Callable[[], Connection]]:
        """Become the only writer, and yield a function that returns the connection.

        Its first call begins the transaction; from then on readers wait. The transaction commits at the end of the
        context, or is rolled back if an error is raised.
        """
        _check_open(self._closed, self.where)
        forks.check_usable()
        with _one_writer(self._writer, self.where), translate_errors(self.where), ExitStack() as transaction:
            begun: Connection | None = None

            def begin() -> Connection:
                nonlocal begun
                if begun is None:
                    # From here on close() waits. If it was called earlier, reading() raises an error.
                    begun = transaction.enter_context(self.reading())
                    begun.execute("BEGIN IMMEDIATE")
                return begun

            try:
                yield begin
                if begun is not None:
                    _commit(begun, self.where)
            except BaseException:
                if begun is not None:
                    _rollback(begun)
                raise

    def is_in_place(self) -> bool:
        """Return True: memory, unlike files, cannot be moved or replaced."""
        return True

    def close(self) -> None:
        """Drop the catalog once no thread is using it any more."""
        self._closed = True
        with suppress(StorageError), forks.using(), self._lock.current:  # raised where no index can be used
            self._close()

    def close_idle(self) -> None:
        """Do nothing: a forked child can use its copy of the memory."""

    def leave_to_parent(self, *, all_of_them: bool) -> None:
        """See `forks.Pool`."""
        if all_of_them:
            self._close.detach()
            leave(self._connection)


class FilePool:
    """A pool of connections to a catalog on disk.

    Parameters
    ----------
    path
        The catalog's file.
    read_only
        Never write, not even SQLite's side files if the folder cannot be written.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.where = str(path.parent)
        self.read_only = read_only
        self._folder = OpenedFolder(path)
        self._uid: str | None = None
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._writer = forks.Lock()
        self._closed = False
        self._close = weakref.finalize(self, _close_all, self._idle)
        forks.register(self)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a reading transaction, which sees the latest commit and nothing newer."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Callable[[], Connection]]:
        """Begin the only writing transaction, and yield a function that returns its connection.

        The transaction commits at the end of the context, or is rolled back if an error is raised.

        Raises
        ------
        ReadOnlyIndexError
            If the index is open for reading only.
        StorageError
            If another writer does not finish in time, or if the files were moved or replaced.
        """
        _check_open(self._closed, self.where)
        if self.read_only:
            raise ReadOnlyIndexError(
                f"the index in {self.where} is open for reading only; to change it, open it without read_only=True in "
                "a folder that you may write."
            )
        forks.check_usable()
        with _one_writer(self._writer, self.where), self._transaction("BEGIN IMMEDIATE") as connection:
            self._check_uid(connection)
            self._folder.check(segments=True)
            yield lambda: connection
            self._folder.check(segments=True)

    def is_in_place(self) -> bool:
        """Whether the files are still those that were opened, so that segments may be deleted."""
        return self._folder.is_same(segments=True)

    def close(self) -> None:
        """Close all idle connections; with the last one of all processes, SQLite moves its log into the catalog."""
        self._closed = True
        _close_all(self._idle)

    def close_idle(self) -> None:
        """See `forks.Pool`."""
        _close_all(self._idle)

    def leave_to_parent(self, *, all_of_them: bool) -> None:
        """See `forks.Pool`."""
        inherited = [*self._idle, *self._busy]
        if inherited and self._folder.catalog_id is not None:
            _inherited.add(self._folder.catalog_id)
        for connection in inherited:
            leave(connection)
        self._close.detach()
        self._idle, self._busy = [], set()
        self._close = weakref.finalize(self, _close_all, self._idle)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        _check_open(self._closed, self.where)
        with forks.using(), translate_errors(self.where):
            connection = self._take()
            try:
                connection.execute(begin)
                yield connection
                _commit(connection, self.where)
            except BaseException:
                _rollback(connection)
                raise
            finally:
                self._give_back(connection)

    def _take(self) -> Connection:
        self._folder.check()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open()
        self._busy.add(connection)
        return connection

    def _give_back(self, connection: Connection) -> None:
        if connection.inherited:
            return
        # Without SQLite's shared-memory file a connection does not see later commits of others, so it is used once.
        if self._closed or connection.single_use or forks.is_fork_near():
            connection.close()
        else:
            self._idle.append(connection)
        self._busy.discard(connection)
        if self._closed:  # another thread may have closed the pool since the check above
            _close_all(self._idle)

    def _open(self) -> Connection:
        """Open a connection to the catalog that was opened first.

        Raises
        ------
        StorageError
            If the catalog was replaced, or a connection to it was inherited from the parent process.
        """
        found = self._folder.find()
        if found in _inherited:
            raise StorageError(
                f"the index in {self.where} was in use when this process was forked, so it cannot be used here. Fork "
                "while nothing is being added, or start processes with multiprocessing.get_context('spawn')."
            )
        connection = self._connect()
        try:
            # SQLite opens the catalog and its log by name: the catalog must not have been replaced in between.
            if found != self._folder.find():
                raise replaced_error(self.path.parent)
            self._check_uid(connection)
        except BaseException:
            connection.close()
            raise
        self._folder.remember(found)
        return connection

    def _check_uid(self, connection: Connection) -> None:
        """Check the random name of the index, since its file may have been overwritten in place."""
        found = sqlite.read_uid(connection)
        if self._uid is not None and found != self._uid:
            raise replaced_error(self.path.parent)
        self._uid = found

    def _connect(self) -> Connection:
        uri = self.path.absolute().as_uri()
        if not self.read_only:
            return connect(f"{uri}?mode=rw")
        try:
            return connect(f"{uri}?mode=ro")
        except sqlite3.OperationalError:
            if not self.path.is_file():
                raise
            # In a folder that cannot be written, SQLite cannot make its shared-memory file.
            log = self.path.with_name(f"{self.path.name}-wal")
            if not (log.exists() and log.stat().st_size):
                connection = connect(f"{uri}?mode=ro&immutable=1")
            elif os.name != "nt":
                connection = connect(f"{uri}?mode=ro&vfs=unix-none", alone=True)
            else:
                raise
            connection.single_use = True
            return connection


ConnectionPool: TypeAlias = "MemoryPool | FilePool"


def _close_all(connections: list[Connection]) -> None:
    if not connections:
        return
    with suppress(IndexError), forks.using():  # IndexError: another thread took the last one
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
    if connection.in_transaction and not connection.inherited:
        connection.execute("ROLLBACK")


def _check_open(closed: bool, where: str) -> None:
    if closed:
        raise closed_error(where)


@contextmanager
def _one_writer(lock: forks.Lock, where: str) -> Iterator[None]:
    """Let one thread of this process write at a time; SQLite does the same for processes."""
    held = lock.current
    if not held.acquire(timeout=sqlite.WAIT_SECONDS):
        raise sqlite.busy_error(where)
    try:
        yield
    finally:
        held.release()
