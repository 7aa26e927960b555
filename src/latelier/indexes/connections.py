"""Connections to the catalog: who may read and write when, in threads, forked processes and read-only folders.

On disk each transaction takes a connection from a pool. SQLite's write-ahead log gives every reading transaction the
latest commit, without waiting for a writer, and lets one writer in at a time. In memory there is one connection and
a lock, which a writer takes only for the moment in which it applies what it has prepared.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from latelier.errors import InvalidArgumentError, ReadOnlyIndexError
from latelier.indexes import sqlite
from latelier.indexes.sqlite import Connection, connect, translated

__all__ = ["Connections", "FileConnections", "MemoryConnections"]

# Connections that a forked child has inherited. SQLite forbids using them there, and closing them as well.
_inherited: list[list[Connection]] = []


class MemoryConnections:
    """The one connection of a catalog in memory."""

    where = "in memory"

    def __init__(self) -> None:
        self._connection = connect(":memory:")
        self._lock = threading.RLock()
        self._writer = threading.Lock()
        self._closed = False
        self._close = weakref.finalize(self, self._connection.close)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Hold the connection for some questions that see the same state."""
        with self._lock, translated(self.where):
            _refuse_closed(self._closed, self.where)
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[Callable[[], Connection]]:
        """Be the only writer; the transaction begins, and readers wait, when the connection is asked for."""
        _refuse_closed(self._closed, self.where)
        held: list[bool] = []

        def begin() -> Connection:
            if not held:
                held.append(self._lock.acquire())
                self._connection.execute("BEGIN IMMEDIATE")
            return self._connection

        with _one_writer(self._writer, self.where), translated(self.where):
            try:
                yield begin
                _commit(self._connection)
            except BaseException:
                _rollback(self._connection)
                raise
            finally:
                if held:
                    self._lock.release()

    def close(self) -> None:
        """Drop the catalog."""
        with self._lock:
            self._closed = True
            self._close()


class FileConnections:
    """A pool of connections to a catalog on disk.

    Parameters
    ----------
    path
        The catalog's file.
    read_only
        Never write, not even SQLite's own side files where the folder forbids it.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.where = str(path.parent)
        self.read_only = read_only
        self._idle: list[Connection] = []
        self._owner = os.getpid()
        self._writer = threading.Lock()
        self._closed = False
        self._close = weakref.finalize(self, _close_all, self._idle)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a reading transaction: all its questions see the latest commit, and nothing newer."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Callable[[], Connection]]:
        """Begin the only writing transaction; it commits at the end, or leaves no trace if an error passes."""
        _refuse_closed(self._closed, self.where)
        if self.read_only:
            raise ReadOnlyIndexError(
                f"the index in {self.where} is open for reading only; to change it, open it without read_only=True in "
                "a folder that you may write."
            )
        with _one_writer(self._writer, self.where), self._transaction("BEGIN IMMEDIATE") as connection:
            yield lambda: connection

    def close(self) -> None:
        """Close all connections; the last one of all processes folds SQLite's log into the catalog."""
        self._closed = True
        _close_all(self._idle)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        _refuse_closed(self._closed, self.where)
        with translated(self.where):
            connection = self._take()
            try:
                connection.execute(begin)
                yield connection
                _commit(connection)
            except BaseException:
                _rollback(connection)
                raise
            finally:
                self._give_back(connection)

    def _take(self) -> Connection:
        if self._owner != os.getpid():
            self._leave_inherited()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def _give_back(self, connection: Connection) -> None:
        # Without SQLite's shared files a connection cannot notice that another user writes: it serves once.
        if self._closed or connection.immutable:
            connection.close()
        else:
            self._idle.append(connection)

    def _leave_inherited(self) -> None:
        self._close.detach()
        _inherited.append(self._idle)
        self._idle, self._owner, self._writer = [], os.getpid(), threading.Lock()
        self._close = weakref.finalize(self, _close_all, self._idle)

    def _open(self) -> Connection:
        uri = self.path.absolute().as_uri()
        if not self.read_only:
            return connect(f"{uri}?mode=rw")
        try:
            return connect(f"{uri}?mode=ro")
        except sqlite3.OperationalError:
            log = self.path.with_name(f"{self.path.name}-wal")
            if not self.path.is_file() or (log.exists() and log.stat().st_size):
                raise
            # A folder that nobody can write: SQLite cannot make the files that processes share.
            connection = connect(f"{uri}?mode=ro&immutable=1")
            connection.immutable = True
            return connection


Connections: TypeAlias = "MemoryConnections | FileConnections"


def _close_all(connections: list[Connection]) -> None:
    while connections:
        connections.pop().close()


def _commit(connection: Connection) -> None:
    if connection.in_transaction:
        connection.execute("COMMIT")


def _rollback(connection: Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _refuse_closed(closed: bool, where: str) -> None:
    if closed:
        place = where if where == "in memory" else f"in {where}"
        raise InvalidArgumentError(f"the index {place} is closed; open it again with indexes.open(path).")


@contextmanager
def _one_writer(lock: threading.Lock, where: str) -> Iterator[None]:
    """Let one thread of this process write at a time."""
    if not lock.acquire(timeout=sqlite.WAIT_SECONDS):
        raise sqlite.busy(where)
    try:
        yield
    finally:
        lock.release()
