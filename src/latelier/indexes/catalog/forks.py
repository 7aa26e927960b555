"""What a fork does to open indexes: the child works on connections and locks of its own, or says that it cannot.

SQLite keeps track, per process, of the locks on each open file. A child that is forked while a connection is open
inherits these records but not the locks: a new connection of the child to the same file would run unprotected, and a
parent that closes would delete the log from under it. So:

1. Before a fork new transactions wait, those of other threads are given `FORK_SECONDS` to end, and idle connections
   are closed. Each side opens new ones at its next call.
2. In the child all locks are new, whoever held them in the parent.
3. What could not be ended in time is refused there: the index whose transaction was open, or every index if another
   thread may have been inside SQLite, whose locks nobody will release.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from latelier.errors import StorageError

__all__ = ["Lock", "Pool", "is_fork_near", "iterate_outside", "refuse_unusable", "register", "using"]

T = TypeVar("T")

# How long a fork waits for the transactions of other threads: searches take milliseconds, a commit a few more. For
# those that wait for a user's iterable, which may go on for hours, it waits only as long as a short list takes.
FORK_SECONDS, STREAM_SECONDS = 1.0, 0.25
# How long a fork waits for a kernel that another thread is compiling, which happens once per installation.
COMPILE_SECONDS = 15.0
# How long a transaction waits for a fork. It goes on then: should the fork still happen, the child will notice.
_PATIENCE = 10.0


class Pool(Protocol):
    """Connections to one catalog."""

    def close_idle(self) -> None:
        """Close the connections that no transaction uses."""

    def leave_to_parent(self, *, all_of_them: bool) -> None:
        """In a forked child: give up connections that belong to the parent; with `all_of_them`, those in memory too."""


class Lock:
    """A lock that is free in a forked child.

    Take it by ``with lock.current:``, which releases what it has taken, also across a fork.

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
        """Put a free lock in the place of one that may be held."""
        self.current = self._make()


class _State:
    """What this process knows of its open indexes."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # Reentrant, because the garbage collector may close a connection while it is held.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        # Per thread: how many times it is inside `using`. Below 0, and not inside, where a user's iterable has left a
        # `using` that it entered when it was last asked, see `iterate_outside`.
        self.used: dict[int, int] = {}
        self.outside: set[int] = set()  # threads in a transaction that waits for a user's iterable
        self.forking: dict[int, bool] = {}  # threads that are about to fork: whether they still wait for others
        self.pools: WeakSet[Pool] = WeakSet()
        self.locks: WeakSet[Lock] = WeakSet()
        self.compiler: Any = None  # numba's lock, while we hold it
        self.compiling = False  # we did not get it in time
        self.unusable = ""  # in a forked child: why no index can be used


_state = _State()


class _Using:
    """See `using`."""

    __slots__ = ("_thread",)

    def __enter__(self) -> None:
        if _state.unusable or os.getpid() != _state.process:
            refuse_unusable()
        self._thread = threading.get_ident()  # a generator may be closed by another one
        _enter(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _state.lock:
            _count(self._thread, -1)
            if _state.forking:
                _state.changed.notify_all()


def using() -> _Using:
    """Return a context within which a thread may be inside SQLite: a fork waits for its end, it waits for a fork.

    Raises
    ------
    StorageError
        In a forked child in which SQLite cannot be used.
    """
    return _Using()


def refuse_unusable() -> None:
    """Refuse to use any index in a forked child in which that might hang.

    Raises
    ------
    StorageError
        If this is one.
    """
    if os.getpid() != _state.process:
        _after_fork_in_child()  # forked by C code that did not call Python's hooks
    if _state.unusable:
        raise StorageError(_state.unusable)


def iterate_outside(source: Iterable[T]) -> Iterator[T]:
    """Yield what a user's iterable gives; a fork does not wait long for a thread that is in there."""
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
    """Whether a fork is waiting, so that a connection had better be closed than kept."""
    return bool(_state.forking)


def register(pool: Pool) -> None:
    """Have a pool told of forks, for as long as it lives."""
    with _state.lock:
        _state.pools.add(pool)


def _enter(times: int) -> None:
    me = threading.get_ident()
    with _state.lock:
        if _state.forking and me not in _inside():
            _state.changed.wait_for(lambda: not _is_kept_out(me), _PATIENCE)
        _count(me, times)


def _count(thread: int, times: int) -> None:
    count = _state.used.pop(thread, 0) + times
    if count:
        _state.used[thread] = count


def _inside() -> set[int]:
    """Return the threads that may be inside SQLite."""
    return {thread for thread, count in _state.used.items() if count > 0}


def _is_kept_out(me: int) -> bool:
    # A thread with a transaction may go on while the fork still waits for its end.
    return any(me != thread and not (waits and me in _state.outside) for thread, waits in _state.forking.items())


def _before_fork() -> None:
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
    # What this thread was in the middle of, it still has to leave.
    _state.used = {me: _state.used[me]} if me in _state.used else {}
    _state.outside, _state.forking = set(), {}
    if (others or _state.compiling) and not _state.unusable:
        _state.unusable = (
            "this process was forked while another thread of its parent was at work in an index, so it cannot use any "
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
        with suppress(RuntimeError):  # another thread of the parent had it
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
