"""The number of threads for short inputs of a transformer: one or all, whichever has been faster lately.

One pass over a query wakes torch's other threads some 40 times. On idle cores that saves a quarter of its time. Where
another process has taken a core, each operation waits for the thread that has lost it, and the pass takes three times
as long as with one thread. The vectors are the same, up to rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

from latelier.models.cpu.held_threads import held_threads

__all__ = ["Pace"]

Result = TypeVar("Result")

_MOST_TOKENS = 64
# Number of calls before the other number of threads is tried again: few at first and after each change, and twice as
# many each time that the choice stays the same.
_FEWEST_CALLS, _MOST_CALLS = 4, 64
# Times are compared by the median of the latest ones: a single slow call changes nothing.
_LATEST = 3
# Reading the weights of MiniLM takes as long as computing so many tokens.
_WEIGHT_TOKENS = 20


class Pace:
    """Runs a function with the number of threads that has been faster lately."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._single = False
        self._remaining = self._interval = _FEWEST_CALLS

    def run(self, tokens: int, function: Callable[[], Result]) -> Result:
        """Return what the function returns for so many tokens."""
        threads = torch.get_num_threads()
        if threads == 1 or tokens > _MOST_TOKENS:
            return function()
        chosen = self._choose(threads)
        begin = perf_counter()
        if chosen == 1:
            with held_threads(1):
                result = function()
        else:
            result = function()
        self._times[chosen].append((perf_counter() - begin) / (tokens + _WEIGHT_TOKENS))
        return result

    def _choose(self, threads: int) -> int:
        for count in (1, threads):
            if len(self._times.setdefault(count, deque(maxlen=_LATEST))) < _LATEST:
                return count
        is_single_faster = median(self._times[1]) < median(self._times[threads])
        if is_single_faster != self._single:
            self._single = is_single_faster
            self._remaining = self._interval = _FEWEST_CALLS
        self._remaining -= 1
        if self._remaining:
            return 1 if self._single else threads
        self._interval = min(_MOST_CALLS, 2 * self._interval)
        self._remaining = self._interval
        return threads if self._single else 1
