"""Forks of a process with open indexes: the child gets its own connections and locks, or an error.

SQLite records, per process, the locks on each open file. A child that is forked while a connection is open inherits
these records but not the locks: a new connection of the child to the same file would not be protected, and the parent
would delete the log that the child uses when it closes its last connection. So:

1. Before a fork, threads that compile kernels get `COMPILE_SECONDS` to end, new transactions wait, transactions of
   other threads get `FORK_SECONDS` to end, and idle connections are closed. Parent and child open new ones at their
   next call.
2. In the child every lock is replaced by a new one, whether or not it was held in the parent.
3. If a transaction did not end in time, the child gets an error: from the index that the forking thread was using, or
   from every index if another thread may have been inside SQLite, since no thread of the child can release its locks.
"""

from __future__ import annotations

# Imported for their own hooks: those of a fork run in the reverse order, so that these two take their locks, which
# threads that compile kernels need, after the hook of this module has waited for such threads.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from latelier.errors import StorageError
from latelier.kernels.threads import wait_for_preparations

__all__ = ["Lock", "Pool", "check_usable", "is_fork_near", "iterate_outside", "register", "using"]

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

    Parameters
    ----------
    make
        ``threading.Lock`` or ``threading.RLock``.
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

    Raises
    ------
    StorageError
        In a forked child in which SQLite cannot be used.
    """
    return _Using()


def check_usable() -> None:
    """Raise an error in a forked child in which using an index could hang.

    Raises
    ------
    StorageError
        If this process is such a child.
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
