"""What keeps SQLite usable around a fork of the process, and locks that are free in the child."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

from latelier.errors import StorageError

# How long a fork waits for the transactions of other threads: a search or a commit takes milliseconds.
FORK_SECONDS = 1.0


# SQLite records, per process, the locks on each open file. A forked child inherits these records, but not the locks: a
# new connection of the child to the same file would not be protected, and the parent would delete the log that the
# child uses. So idle connections are closed before a fork, and both processes open new ones. A connection that a
# transaction uses at the fork is inherited all the same. The child never uses it, and leaks it on purpose: closing it
# would roll back, in memory that both processes share, what the parent is writing. Its catalog is refused in the child.
# And what a thread of the parent has locked inside SQLite stays locked in the child: if a fork has waited in vain for
# the transactions of other threads to end, no index can be used there.


class _Process:
    """What a fork has to know of this process."""

    def __init__(self, unusable: str = "") -> None:
        self.id = os.getpid()
        self.unusable = unusable
        self.changed = threading.Condition()  # reentrant, since the garbage collector may close an index meanwhile
        self.inside: Counter[int] = Counter()  # number of `using` contexts that each thread is inside
        self.forking: int | None = None  # the thread that is about to fork

    def others(self) -> set[int]:
        """Return the other threads that may be inside SQLite."""
        return set(self.inside) - {threading.get_ident()}


_process = _Process()


class Pool(Protocol):
    """Connections that are closed before a fork, and never used in the child."""

    def close_idle(self) -> None:
        """Close the connections that no transaction is using."""

    def leave_to_parent(self) -> None:
        """Make sure that a forked child neither uses nor closes the connections."""


_pools: WeakSet[Pool] = WeakSet()


def close_at_forks(pool: Pool) -> None:
    """Call `close_idle` of a pool before each fork, and `leave_to_parent` in the child."""
    _pools.add(pool)


def is_forking() -> bool:
    """Whether a thread of this process is about to fork."""
    return _process.forking is not None


class Lock:
    """A lock that is free in a forked child, even if a thread of the parent holds it: ``with lock.current:``."""

    def __init__(self, make: Callable[[], Any] = threading.Lock) -> None:
        self._make = make
        self._by_process = {os.getpid(): make()}

    @property
    def current(self) -> Any:
        """The lock of this process."""
        return self._by_process.get(os.getpid()) or self._by_process.setdefault(os.getpid(), self._make())


@contextmanager
def using() -> Iterator[None]:
    """Surround a use of SQLite: it waits for a running fork to end, and forks wait for it.

    Raises `StorageError` in a forked child in which SQLite could hang.
    """
    if _process.id != os.getpid():
        _after_fork_in_child()  # C code has forked without calling Python's hooks
    # another thread may leave, which closes a generator
    process = _process
    thread = threading.get_ident()
    if process.unusable:
        raise StorageError(process.unusable)
    with process.changed:
        while process.forking not in (None, thread) and thread not in process.inside:
            process.changed.wait()
        process.inside[thread] += 1
    try:
        yield
    finally:
        if process.id == os.getpid():  # in a child that was forked meanwhile, nobody would release the lock
            with process.changed:
                process.inside -= Counter([thread])
                process.changed.notify_all()


def _before_fork() -> None:
    process = _process
    process.changed.acquire()  # held until the fork is over, so that no transaction begins meanwhile
    process.changed.wait_for(lambda: process.forking is None)
    process.forking = threading.get_ident()
    process.changed.wait_for(lambda: not process.others(), FORK_SECONDS)
    for pool in list(_pools):
        pool.close_idle()


def _after_fork_in_parent() -> None:
    _process.forking = None
    _process.changed.notify_all()
    _process.changed.release()


def _after_fork_in_child() -> None:
    global _process
    message = (
        "this process was forked while another thread of its parent was using an index, so it cannot use any index. "
        "Fork while no other thread adds or searches, or use multiprocessing.get_context('spawn')."
    )
    _process = _Process(_process.unusable or (message if _process.others() else ""))
    for pool in list(_pools):
        pool.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
