"""Loops over ranges in threads, within what the process may use.

The number of threads is torch's (`torch.set_num_threads`), the calling thread included; if torch is not imported, it is
``OMP_NUM_THREADS`` or the number of cores; a thread that shares the cores with others may be allowed fewer. The threads
take small ranges from one queue instead of one large share each, so a thread that loses its core on a busy machine
delays the call by at most one small range.

Importing numba and loading compiled kernels from disk takes half a second, and compiling them takes several. A process
that searches a small index once, such as a command, needs neither; one that searches again gets its answers from
numpy until a thread has made the kernels ready.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")

# Multiplications of one range: about half a millisecond, far more than taking it from the queue.
_RANGE_WORK = 1 << 25
# Maximum number of tokens of one range, which bounds what a kernel copies or converts for it.
_RANGE_TOKENS = 1 << 15
_LIMIT = threading.local()


def for_ranges(function: Callable[[int, int], None], offsets: np.ndarray, work_per_token: int) -> None:
    """Call ``function(first, last)``, which releases the interpreter lock, for ranges of documents, in several threads.

    `work_per_token`: multiplications of float32; four of bytes count as one, as they take one instruction.
    """
    documents = len(offsets) - 1
    tokens = int(offsets[-1] - offsets[0])
    pieces = max(tokens * work_per_token // _RANGE_WORK, tokens // _RANGE_TOKENS)
    if pieces < 2:
        if documents:
            function(0, documents)
        return
    pieces += -pieces % allowed_threads()  # the same number for each thread
    cuts = np.searchsorted(offsets, offsets[0] + np.arange(1, pieces) * tokens // pieces)
    edges = sorted({0, *cuts.tolist(), documents})
    for_each(lambda edge: function(*edge), pairwise(edges))


def for_each(function: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Call a function once for each item, in several threads if there are several items.

    `function`: threads gain time only if it releases the interpreter lock. Where several threads call it, each call may
    use one thread.
    """
    left = deque(items)
    threads = min(allowed_threads(), len(left))
    if threads < 2:
        _work(function, left)
        return
    helpers = [_pool(thread_count() - 1).submit(_work_alone, function, left) for _ in range(threads - 1)]
    try:
        _work_alone(function, left)
    finally:
        left.clear()  # not empty only if the function raised
        started = [helper for helper in helpers if not helper.cancel()]
        for helper in started:
            helper.exception()  # waits, and less expensively than concurrent.futures.wait
    for helper in started:
        helper.result()  # raises what the function raised in a helper


@contextmanager
def limited_threads(most: int) -> Iterator[None]:
    """Let the calling thread compute with at most `most` threads inside the block, itself included.

    It limits what takes its number of threads from this module: kernels, and exported encoders.
    """
    before = getattr(_LIMIT, "most", sys.maxsize)
    _LIMIT.most = max(1, min(most, before))
    try:
        yield
    finally:
        _LIMIT.most = before


def allowed_threads() -> int:
    """Return the number of threads that the calling thread may compute with, see `limited_threads`."""
    return min(thread_count(), getattr(_LIMIT, "most", sys.maxsize))


def thread_count() -> int:
    """Return the number of threads to compute with."""
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)  # None while another thread imports torch
    if count is not None:
        return int(count())
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdecimal():
        return max(1, int(chosen))
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _work(function: Callable[[Item], object], left: deque[Item]) -> None:
    while True:
        try:
            item = left.popleft()
        except IndexError:
            return
        function(item)


def _work_alone(function: Callable[[Item], object], left: deque[Item]) -> None:
    with limited_threads(1):
        _work(function, left)


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="latelier")


def _after_fork_in_child() -> None:
    _pool.cache_clear()  # a forked child has the pool object but none of its threads
    # The same holds for torch's OpenMP threads: the child's next matrix product would wait for them forever. torch's
    # data loader sets its workers to one thread for the same reason.
    if hasattr(torch := sys.modules.get("torch"), "set_num_threads"):
        torch.set_num_threads(1)  # type: ignore[union-attr]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# A command that searches once may ask an index several times within so many seconds, such as for more passages.
_ONE_SEARCH = 2.0
_threads: WeakSet[threading.Thread] = WeakSet()
# How long a fork waits for the threads that prepare kernels.
_PREPARE_SECONDS = 60.0
_compiler: list[Any] = []  # numba's compiler lock, while a fork holds it


def pause_compilation() -> None:
    """Before a fork, wait until no thread compiles kernels, and let none begin.

    A child inherits the locks that such a thread holds, of imports and of numba's compiler, and nobody releases them.
    """
    end = time.monotonic() + _PREPARE_SECONDS
    for thread in list(_threads):
        if thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))
    compiler = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    if lock := getattr(compiler, "_lock", None):
        lock.acquire()
        _compiler.append(lock)


def resume_compilation() -> None:
    """After a fork, in both processes, let threads compile kernels again."""
    while _compiler:
        _compiler.pop().release()


# Kernels of a search take some eight seconds to compile, and one to load from numba's cache.
_COMPILING = 8


class KernelWarmUp:
    """Decides between numpy and the kernels for each search; one with more than `most_work` takes the kernels.

    While `are_compiled` is false, it is `_COMPILING` times as much: to compile them would take as long.
    """

    def __init__(self, most_work: int, are_compiled: Callable[[], bool] = lambda: True) -> None:
        self._most_work = most_work
        self._are_compiled = are_compiled
        self._first: float | None = None  # when the first search began
        self._is_over = False
        self._thread: threading.Thread | None = None

    def is_over(self, work: int, prepare: Callable[[], object]) -> bool:
        """Return whether a search uses the kernels; once the process goes on searching, a thread calls `prepare`.

        The process waits for it when it ends. Its errors are dropped: the next search with kernels raises them again.
        """
        if self._is_over or (work > self._most_work and (work > _COMPILING * self._most_work or self._are_compiled())):
            self._is_over = True
            return True
        now = time.monotonic()
        self._first = self._first or now
        # The thread of a process is not alive in its forked children. Two threads at once would only do the same work.
        if now - self._first > _ONE_SEARCH and (self._thread is None or not self._thread.is_alive()):
            thread = threading.Thread(target=self._prepare, args=(prepare,), name="latelier-kernels")
            with suppress(RuntimeError):  # while the interpreter exits, or at a limit of the system
                thread.start()
                _threads.add(thread)
                self._thread = thread
        return False

    @property
    def has_kernels(self) -> bool:
        """Whether the kernels are ready."""
        return self._is_over

    def wait(self) -> None:
        """Wait until the thread that prepares the kernels has ended, if there is one."""
        if self._thread is not None:
            self._thread.join()

    def _prepare(self, prepare: Callable[[], object]) -> None:
        with suppress(Exception):
            prepare()
        self._is_over = True
