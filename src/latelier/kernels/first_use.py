"""The first searches of a process, which numpy answers while the kernels are compiled or loaded.

Importing numba and loading compiled kernels from disk takes half a second, and compiling them takes several. A process
that searches a small index once, such as a command, needs neither; one that searches again gets its answers from numpy
until a thread has made the kernels ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

import numpy as np

__all__ = ["FirstUse", "wait_for_preparations"]

_threads: WeakSet[threading.Thread] = WeakSet()


def wait_for_preparations(seconds: float) -> None:
    """Wait for the threads that prepare kernels, which a fork has to do.

    A child that is forked meanwhile inherits the locks that they hold, of imports and of numba's compiler, and no
    thread of it releases them.

    Parameters
    ----------
    seconds
        How long to wait at most.
    """
    end = time.monotonic() + seconds
    for thread in list(_threads):
        if thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))


class FirstUse:
    """Decides between numpy and the kernels for each search of one kind of index.

    Parameters
    ----------
    most_work
        Searches with more work than this use the kernels at once.

    Examples
    --------
    >>> first_use = FirstUse(most_work=100)
    >>> def prepare():
    ...     print("compiling")
    >>> first_use.is_over(50, prepare), first_use.is_over(101, prepare)
    (False, True)
    """

    def __init__(self, most_work: int) -> None:
        self._most_work = most_work
        self._searches = 0
        self._is_over = not hasattr(np, "bitwise_count")  # numpy 1 would take too long
        self._thread: threading.Thread | None = None

    def is_over(self, work: int, prepare: Callable[[], object]) -> bool:
        """Return whether a search uses the kernels; from the second search on, a thread prepares them.

        Parameters
        ----------
        work
            The work of the search, in the unit of `most_work`.
        prepare
            Compiles or loads the kernels, for example by the same search. It runs in a thread that the process waits
            for when it ends, so that the compiled kernels are on disk for the next one. Its errors are dropped: the
            next search uses the kernels, and raises them again.
        """
        if self._is_over or work > self._most_work:
            self._is_over = True
            return True
        self._searches += 1
        # The thread of a process is not alive in its forked children. Two threads at once would only do the same work.
        if self._searches > 1 and (self._thread is None or not self._thread.is_alive()):
            thread = threading.Thread(target=self._prepare, args=(prepare,), name="latelier-kernels")
            with suppress(RuntimeError):  # while the interpreter exits, or at a limit of the system
                thread.start()
                _threads.add(thread)
                self._thread = thread
        return False

    def wait(self) -> None:
        """Wait until the thread that prepares the kernels has ended, if there is one."""
        if self._thread is not None:
            self._thread.join()

    def _prepare(self, prepare: Callable[[], object]) -> None:
        with suppress(Exception):
            prepare()
        self._is_over = True
