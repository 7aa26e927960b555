"""Connections to the catalog: pool, forks, replaced folders, authorizer.

SQLite records, per process, the locks on each open file. A child that is forked while a connection is open inherits
these records but not the locks: a new connection of the child to the same file would not be protected, and the parent
would delete the log that the child uses when it closes its last connection. So:

1. Before a fork, threads that compile kernels get `COMPILE_SECONDS` to end, new transactions wait, transactions of
   other threads get `FORK_SECONDS` to end, and idle connections are closed. Parent and child open new ones at their
   next call.
2. In the child every lock is replaced by a new one, whether or not it was held in the parent.
3. If a transaction did not end in time, the child gets an error: from the index that the forking thread was using, or
   from every index if another thread may have been inside SQLite, since no thread of the child can release its locks.

It is a second line of defence behind the grammar of filters, which produces only what the authorizer allows. SQLite
calls it when a statement is compiled, but not when `sqlite3` runs a compiled statement from its cache.

On disk, each transaction takes a connection from the pool. Thanks to SQLite's write-ahead log, reading transactions see
the latest commit without waiting for a writer; there is one writer at a time. In memory, there is one connection with a
lock; a writer first prepares its changes, and takes the lock only to apply them.
"""

from __future__ import annotations

# Imported for their own hooks: those of a fork run in the reverse order, so that these two take their locks, which
# threads that compile kernels need, after the hook of this module has waited for such threads.
import concurrent.futures.thread  # noqa: F401
import ctypes
import logging  # noqa: F401
import os
import sqlite3
import stat
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from latelier.errors import (
    CommitError,
    CorruptedIndexError,
    IndexFormatError,
    InvalidArgumentError,
    LatelierError,
    ReadOnlyIndexError,
    StorageError,
)
from latelier.indexes.store.checks import CATALOG, damaged
from latelier.kernels.threads import wait_for_preparations
from latelier.utils.checks import describe

__all__ = [
    "WAIT_SECONDS",
    "Authorizer",
    "Connection",
    "ConnectionPool",
    "FileId",
    "FilePool",
    "Lock",
    "MemoryPool",
    "OpenedFolder",
    "Pool",
    "as_folder",
    "busy_error",
    "check_index_folder",
    "check_usable",
    "closed_error",
    "connect",
    "is_fork_near",
    "iterate_outside",
    "leave",
    "looking_into",
    "make_catalog",
    "no_index",
    "read_uid",
    "register",
    "replaced_error",
    "sync_folder",
    "translate_errors",
    "using",
]

T = TypeVar("T")

# How long a fork waits for the transactions of other threads: a search or a commit takes milliseconds.
FORK_SECONDS = 1.0
# How long a fork waits for a transaction that reads a user's iterable: enough for a short list. Others may take hours.
STREAM_SECONDS = 0.25
# How long a fork waits while another thread compiles kernels, which happens once per installation. It takes several
# seconds, and several times as long beside busy processes.
COMPILE_SECONDS = 60.0
# How long a transaction waits for a fork to end before it begins anyway. If the fork then happens within the
# transaction, the child gets an error.
_PATIENCE_SECONDS = 10.0


class Pool(Protocol):
    """Connections to one catalog."""

    def close_idle(self) -> None:
        """Close the connections that no transaction is using."""

    def leave_to_parent(self, *, all_of_them: bool) -> None:
        """In a forked child, give up the inherited connections to files; with `all_of_them`, those to memory too."""


class Lock:
    """A lock that is free in a forked child, even if another thread of the parent holds it.

    Use it as ``with lock.current:``. If a fork replaces `current` within the block, the block still releases the lock
    that it acquired.
    """

    def __init__(self, make: Callable[[], Any] = threading.Lock) -> None:
        self._make = make
        self.current = make()
        with _state.lock:
            _state.locks.add(self)

    def renew(self) -> None:
        """Replace the lock, which may be held, with a free one."""
        self.current = self._make()


class _State:
    """The open indexes of this process, and what its threads do with them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # Reentrant, since the garbage collector may close a connection while this thread holds the lock.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        # Number of `using` contexts that each thread is inside. `iterate_outside` sets it to 0 while a user's iterable
        # computes an item; it is then negative if the iterable leaves a context that it entered at an earlier item.
        self.used: dict[int, int] = {}
        self.outside: set[int] = set()  # threads in a transaction that waits for a user's iterable
        self.forking: dict[int, bool] = {}  # threads about to fork, and whether they still wait for others
        self.pools: WeakSet[Pool] = WeakSet()
        self.locks: WeakSet[Lock] = WeakSet()
        self.compiler: Any = None  # numba's compiler lock, while a fork holds it
        self.compiling = False  # whether a fork did not get numba's compiler lock in time
        self.unusable = ""  # in a forked child: why no index can be used


_state = _State()


class _Using:
    """See `using`."""

    __slots__ = ("_thread",)

    def __enter__(self) -> None:
        if _state.unusable or os.getpid() != _state.process:
            check_usable()
        self._thread = threading.get_ident()  # __exit__ may run in another thread, which closes a generator
        _enter(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _state.lock:
            _count(self._thread, -1)
            if _state.forking:
                _state.changed.notify_all()


def using() -> _Using:
    """Return a context for every use of SQLite: entering it waits for a running fork, and forks wait until it is left.

    Raises `StorageError` in a forked child in which SQLite cannot be used.
    """
    return _Using()


def check_usable() -> None:
    """Raise an error in a forked child in which using an index could hang.

    Raises `StorageError` if this process is such a child.
    """
    if os.getpid() != _state.process:
        _after_fork_in_child()  # C code has forked without calling Python's hooks
    if _state.unusable:
        raise StorageError(_state.unusable)


def iterate_outside(source: Iterable[T]) -> Iterator[T]:
    """Yield the items of a user's iterable; a fork waits only `STREAM_SECONDS` while it computes an item."""
    iterator, me = iter(source), threading.get_ident()
    while True:
        with _state.lock:
            held = _state.used.pop(me, 0)
            if held:
                _state.outside.add(me)
                _state.changed.notify_all()
        try:
            item = next(iterator)
        except StopIteration:
            return
        finally:
            if held:
                _enter(held)
                _state.outside.discard(me)
        yield item


def is_fork_near() -> bool:
    """Whether a thread is about to fork, so that a connection should be closed rather than kept."""
    return bool(_state.forking)


def register(pool: Pool) -> None:
    """Register a pool, of which forks call the methods; only a weak reference is kept."""
    with _state.lock:
        _state.pools.add(pool)


def _enter(times: int) -> None:
    me = threading.get_ident()
    with _state.lock:
        if _state.forking and me not in _inside():
            _state.changed.wait_for(lambda: not _must_wait(me), _PATIENCE_SECONDS)
        _count(me, times)


def _count(thread: int, times: int) -> None:
    count = _state.used.pop(thread, 0) + times
    if count:
        _state.used[thread] = count


def _inside() -> set[int]:
    """Return the threads that may be inside SQLite."""
    return {thread for thread, count in _state.used.items() if count > 0}


def _must_wait(me: int) -> bool:
    """Whether a thread has to wait for the fork of another one before it may use SQLite."""
    # A thread in a transaction may continue while the fork still waits for the transaction to end.
    return any(me != thread and not (waits and me in _state.outside) for thread, waits in _state.forking.items())


def _before_fork() -> None:
    wait_for_preparations(COMPILE_SECONDS)
    me = threading.get_ident()
    with _state.lock:
        _state.forking[me] = True
        _state.changed.wait_for(lambda: not (_inside() | _state.outside) - {me}, STREAM_SECONDS)
        _state.changed.wait_for(lambda: not _inside() - {me}, FORK_SECONDS)
        _state.forking[me] = False
        pools = list(_state.pools)
    for pool in pools:
        pool.close_idle()
    compiler = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    lock = getattr(compiler, "_lock", None)
    if lock is not None:
        _state.compiling = not lock.acquire(timeout=COMPILE_SECONDS)
        _state.compiler = None if _state.compiling else lock


def _after_fork_in_parent() -> None:
    _release_compiler()
    with _state.lock:
        _state.forking.pop(threading.get_ident(), None)
        _state.changed.notify_all()


def _after_fork_in_child() -> None:
    me = threading.get_ident()
    others = _inside() - {me}
    _release_compiler()
    _state.process = os.getpid()
    _state.lock = threading.RLock()
    _state.changed = threading.Condition(_state.lock)
    # This thread will still leave the contexts that it is inside of.
    _state.used = {me: _state.used[me]} if me in _state.used else {}
    _state.outside, _state.forking = set(), {}
    if (others or _state.compiling) and not _state.unusable:
        _state.unusable = (
            "this process was forked while another thread of its parent was using an index, so it cannot use any "
            "index. Fork while no other thread adds or searches, or start processes with "
            "multiprocessing.get_context('spawn')."
        )
    for lock in list(_state.locks):
        lock.renew()
    for pool in list(_state.pools):
        pool.leave_to_parent(all_of_them=bool(_state.unusable))


def _release_compiler() -> None:
    lock, _state.compiler = _state.compiler, None
    if lock is not None:
        with suppress(RuntimeError):  # another thread of the parent holds it
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


# Device and inode of a file, which are the same for every path to it.
FileId: TypeAlias = "tuple[int, int]"
# The last bytes of a journal that names a super-journal: https://www.sqlite.org/fileformat.html#the_rollback_journal
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")


def as_folder(path: object) -> Path:
    """Return a user's path as an absolute one.

    Raises `StorageError` if the operating system cannot look up the path.
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

    Raises `IndexFormatError` if it does not, or cannot; raises `CorruptedIndexError` if opening the catalog could make
    SQLite touch other files; raises `StorageError` if the system denies to look into the folder.
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
    """Detects that the catalog, or the folder of segments, was replaced after an index was opened."""

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


_TABLE_FUNCTIONS = ("json_each", "json_tree")
_TABLES = {"document", "content", *_TABLE_FUNCTIONS}
# SQLite reports these operators as functions.
_OPERATORS = ("->", "->>")


class Authorizer:
    """A callback for `sqlite3.Connection.set_authorizer`."""

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
        allowed = (
            self._functions is None
            or action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and first in _TABLES)
            or (
                action == sqlite3.SQLITE_FUNCTION
                and str(second).lower() in (*self._functions, *_OPERATORS, *_TABLE_FUNCTIONS)
            )
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


# How long a writer waits for another writer before it raises an error.
WAIT_SECONDS = 5.0
# What SQLite's errors say of a damaged catalog.
_SIGNS_OF_DAMAGE = ("malformed", "not a database", "Could not decode", "unsupported file format")


class Connection(sqlite3.Connection):
    """A connection to the catalog.

    `authorizer`: restricts statements to reading documents while a filter is evaluated; `single_use`: whether this
    connection cannot see later commits of others, so that each transaction needs a new connection; `inherited`: whether
    this process inherited the connection from its parent by a fork, and so must not use it.
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

    Raises `StorageError` if the folder cannot be made, or its file system cannot hold SQLite's write-ahead log.
    """
    if path.is_file() and path.stat().st_size:
        return
    try:
        # Each folder that is made is an entry of the one above it, which has to be synced.
        made = [folder for folder in path.parent.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"could not make the folder {path.parent}: {error.strerror or error}.") from error
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

    `uri`: ``":memory:"`` or a ``file:`` URI; `alone`: lock the file for this connection alone, so that SQLite needs no
    shared-memory file (``-shm``); returns: with an authorizer that allows everything until it is restricted.
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


# Catalogs to which this process, a forked child, has inherited connections: SQLite's locks do not work on them here.
_inherited: set[FileId] = set()


class MemoryPool:
    """The one connection to a catalog in memory."""

    where = "memory"

    def __init__(self) -> None:
        with using():
            self._connection = connect(":memory:")
        self._lock = Lock(threading.RLock)
        self._writer = Lock()
        self._closed = False
        self._close = weakref.finalize(self, _close_all, [self._connection])
        register(self)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Take the connection, so that nothing changes while it is used."""
        with using(), self._lock.current, translate_errors(self.where):
            _check_open(self._closed, self.where)
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[Callable[[], Connection]]:
        """Become the only writer, and yield a function that returns the connection.

        Its first call begins the transaction; from then on readers wait. The transaction commits at the end of the
        context, or is rolled back if an error is raised.
        """
        _check_open(self._closed, self.where)
        check_usable()
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
        with suppress(StorageError), using(), self._lock.current:  # raised where no index can be used
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

    `read_only`: never write, not even SQLite's side files if the folder cannot be written.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.where = str(path.parent)
        self.read_only = read_only
        self._folder = OpenedFolder(path)
        self._uid: str | None = None
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._writer = Lock()
        self._closed = False
        self._close = weakref.finalize(self, _close_all, self._idle)
        register(self)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a reading transaction, which sees the latest commit and nothing newer."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Callable[[], Connection]]:
        """Begin the only writing transaction, and yield a function that returns its connection.

        The transaction commits at the end of the context, or is rolled back if an error is raised. Raises
        `ReadOnlyIndexError` if the index is open for reading only; raises `StorageError` if another writer does not
        finish in time, or if the files were moved or replaced.
        """
        _check_open(self._closed, self.where)
        if self.read_only:
            raise ReadOnlyIndexError(
                f"the index in {self.where} is open for reading only; to change it, open it without read_only=True in "
                "a folder that you may write."
            )
        check_usable()
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
        with using(), translate_errors(self.where):
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
        if self._closed or connection.single_use or is_fork_near():
            connection.close()
        else:
            self._idle.append(connection)
        self._busy.discard(connection)
        if self._closed:  # another thread may have closed the pool since the check above
            _close_all(self._idle)

    def _open(self) -> Connection:
        """Open a connection to the catalog that was opened first.

        Raises `StorageError` if the catalog was replaced, or a connection to it was inherited from the parent process.
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
        found = read_uid(connection)
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
    with suppress(IndexError), using():  # IndexError: another thread took the last one
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
def _one_writer(lock: Lock, where: str) -> Iterator[None]:
    """Let one thread of this process write at a time; SQLite does the same for processes."""
    held = lock.current
    if not held.acquire(timeout=WAIT_SECONDS):
        raise busy_error(where)
    try:
        yield
    finally:
        held.release()
