"""What filters have selected from one commit, kept for searches that ask again: with a tenant's or a shelf's name.

A commit never changes, so neither does what a filter selects from it, unless the filter asks for the time: those that
call a function of dates, or have a comment that may hide it, are evaluated each time.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

__all__ = ["Selections", "as_question"]

# All that is kept for one commit, and what a selection takes beside its numbers.
_BYTES, _OVERHEAD = 1 << 24, 1 << 10
_PLAIN = (str, bytes, int, float, bool, type(None))
_TIME = re.compile(
    r"\b(?:date|datetime|julianday|strftime|time|timediff|unixepoch)\b[\"`\]]?\s*\(|--|/\*", re.IGNORECASE
)


def as_question(expression: Any, parameters: Any) -> Hashable | None:
    """Return what the selection of a filter depends on; ``None`` where it may depend on more, or is not valid.

    Parameters
    ----------
    expression, parameters
        As the user gave them.

    Examples
    --------
    >>> as_question("year > ?", [2020]) == as_question("year > ?", (2020,))
    True
    >>> as_question("date < date('now')", ()) is None
    True
    """
    if not isinstance(expression, str) or _TIME.search(expression):
        return None
    if not isinstance(parameters, (tuple, list, dict)):
        return None
    names, values = (parameters.keys(), parameters.values()) if isinstance(parameters, Mapping) else ((), parameters)
    kinds = tuple(type(value) for value in values)
    # 1, 1.0 and True are equal, but SQL can tell some of them apart.
    return (expression, tuple(names), kinds, tuple(values)) if all(kind in _PLAIN for kind in kinds) else None


class Selections:
    """Numbers of documents by the question that selected them; those asked for longest ago are forgotten first.

    Examples
    --------
    >>> selections = Selections()
    >>> selections.find("cheap", lambda: np.array([1, 2]))
    array([1, 2])
    >>> selections.find("cheap", lambda: np.array([3]))
    array([1, 2])
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, question: Hashable, select: Callable[[], np.ndarray]) -> np.ndarray:
        """Return what is kept for a question, or else select it.

        Parameters
        ----------
        question
            What the selection depends on.
        select
            Called without a lock, at the worst by several threads.
        """
        with self._lock:
            found = self._kept.get(question)
            if found is not None:
                self._kept.move_to_end(question)
                return found
        found = select()
        if found.nbytes + _OVERHEAD <= _BYTES:
            self._keep(question, found)
        return found

    def _keep(self, question: Hashable, found: np.ndarray) -> None:
        with self._lock:
            if question in self._kept:  # another thread was quicker
                return
            self._kept[question] = found
            self._bytes += found.nbytes + _OVERHEAD
            while self._bytes > _BYTES:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
