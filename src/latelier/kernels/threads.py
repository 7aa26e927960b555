"""Loops over ranges in threads, within what the process may use.

The number of threads is torch's (`torch.set_num_threads`), the calling thread included; if torch is not imported, it is
``OMP_NUM_THREADS`` or the number of cores; a thread that shares the cores with others may be allowed fewer. The threads
take small ranges from one queue instead of one large share each, so a thread that loses its core on a busy machine
delays the call by at most one small range.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

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
