"""Sharing documents out among threads, for kernels that release the interpreter lock.

As many threads as torch was told to use (`torch.set_num_threads`), so one setting rules all. Threads take small
ranges from one list rather than one large share each: on a busy machine nobody waits for a thread that lost its core.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch

__all__ = ["for_ranges"]

# Work of one range, in multiplications; about half a millisecond, far more than handing it over takes.
_RANGE_WORK = 1 << 27
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
    pieces = max(1, tokens * work_per_token // _RANGE_WORK, tokens // _RANGE_TOKENS)
    cuts = np.searchsorted(offsets, np.linspace(offsets[0], offsets[-1], pieces + 1)[1:-1])
    edges = np.unique([0, *cuts, documents])
    threads = torch.get_num_threads()
    ranges = (edges[:-1].tolist(), edges[1:].tolist())
    if threads < 2 or len(edges) < 3:
        list(map(function, *ranges))
    else:
        list(_pool(threads).map(function, *ranges))  # list(): raise here what a thread raised


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="latelier-scores")
