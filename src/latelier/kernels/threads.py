"""Sharing documents out among threads, for kernels that release the interpreter lock.

As many threads as torch was told to use (`torch.set_num_threads`), so one setting rules all; the calling thread is one
of them. They take small ranges from one list rather than one large share each: on a busy machine nobody waits for a
thread that lost its core.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

__all__ = ["for_ranges"]

# Work of one range, in multiplications; about half a millisecond, far more than handing it over takes.
_RANGE_WORK = 1 << 25
# Most tokens of one range: what a kernel copies or converts for it stays small.
_RANGE_TOKENS = 1 << 15


def for_ranges(function: Callable[[int, int], None], offsets: np.ndarray, work_per_token: int) -> None:
    """Call ``function(first, last)`` for ranges that cover all documents, in several threads where that pays.

    Parameters
    ----------
    function
        Does the work for documents ``first`` to ``last - 1``; must release the interpreter lock to gain anything.
    offsets
        ``(documents + 1,)``: tokens, by which documents are shared out.
    work_per_token
        Multiplications that one token costs.

    Examples
    --------
    >>> seen = []
    >>> for_ranges(lambda first, last: seen.append((first, last)), np.array([0, 4, 4, 9]), 128)
    >>> seen
    [(0, 3)]
    """
    documents = len(offsets) - 1
    tokens = int(offsets[-1] - offsets[0])
    threads = torch.get_num_threads()
    pieces = max(tokens * work_per_token // _RANGE_WORK, tokens // _RANGE_TOKENS)
    pieces = -(-pieces // threads) * threads if pieces > 1 else 1  # as many for each thread
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
        ranges.clear()  # nothing is left, unless something was raised
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    for helper in started:
        helper.result()  # raise here what a thread raised


def _work(function: Callable[[int, int], None], ranges: deque[tuple[int, int]]) -> None:
    while True:
        try:
            first, last = ranges.popleft()
        except IndexError:
            return
        function(first, last)


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="latelier-scores")


def _after_fork_in_child() -> None:
    _pool.cache_clear()  # the child has the pool but none of its threads
    # The same goes for the pool of torch's OpenMP, for whose threads its next product would wait forever. torch's own
    # data loader does likewise in its workers.
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
