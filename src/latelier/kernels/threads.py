"""Work on ranges of documents in several threads, for kernels that release the interpreter lock.

The number of threads is torch's (`torch.set_num_threads`), the calling thread included; if torch is not imported, it is
``OMP_NUM_THREADS`` or the number of cores. The threads take small ranges from one queue instead of one large share
each, so a thread that loses its core on a busy machine delays the call by at most one small range.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise

import numpy as np

__all__ = ["for_ranges", "thread_count"]

# Multiplications of one range: about half a millisecond, far more than taking it from the queue.
_RANGE_WORK = 1 << 25
# Maximum number of tokens of one range, which bounds what a kernel copies or converts for it.
_RANGE_TOKENS = 1 << 15


def for_ranges(function: Callable[[int, int], None], offsets: np.ndarray, work_per_token: int) -> None:
    """Call ``function(first, last)`` for ranges that cover all documents, in several threads if there is enough work.

    Parameters
    ----------
    function
        Works on documents ``first`` to ``last - 1``. Threads gain time only if it releases the interpreter lock.
    offsets
        ``(documents + 1,)``: ranges have about the same number of tokens.
    work_per_token
        Multiplications per token.

    Examples
    --------
    >>> seen = []
    >>> offsets = np.array([0, 4, 4, 9])
    >>> for_ranges(lambda first, last: seen.append((first, last)), offsets, 128)
    >>> seen
    [(0, 3)]
    """
    documents = len(offsets) - 1
    tokens = int(offsets[-1] - offsets[0])
    threads = thread_count()
    pieces = max(tokens * work_per_token // _RANGE_WORK, tokens // _RANGE_TOKENS)
    pieces = -(-pieces // threads) * threads if pieces > 1 else 1  # the same number for each thread
    cuts = np.searchsorted(offsets, np.linspace(offsets[0], offsets[-1], pieces + 1)[1:-1])
    edges = np.unique([0, *cuts, documents]).tolist()
    ranges = deque(pairwise(edges))
    if threads < 2 or len(ranges) < 2:
        _work(function, ranges)
        return
    helpers = [_pool(threads - 1).submit(_work, function, ranges) for _ in range(threads - 1)]
    try:
        _work(function, ranges)
    finally:
        ranges.clear()  # not empty only if the function raised
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    for helper in started:
        helper.result()  # raises what the function raised in a helper


def thread_count() -> int:
    """Return the number of threads to compute with.

    Examples
    --------
    >>> thread_count() >= 1
    True
    """
    count = getattr(sys.modules.get("torch"), "get_num_threads", None)  # None while another thread imports torch
    if count is not None:
        return int(count())
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdecimal():
        return max(1, int(chosen))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(function: Callable[[int, int], None], ranges: deque[tuple[int, int]]) -> None:
    while True:
        try:
            first, last = ranges.popleft()
        except IndexError:
            return
        function(first, last)


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
