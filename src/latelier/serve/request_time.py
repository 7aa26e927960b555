"""The time that a request may take: it begins with the request's head, so that receiving the body is part of it."""

from __future__ import annotations

import time
from contextvars import ContextVar

__all__ = ["begin_request", "seconds_left"]

_END: ContextVar[float | None] = ContextVar("end of the request", default=None)


def begin_request(seconds: float) -> None:
    """Begin the time of the request that the current task handles."""
    _END.set(time.monotonic() + seconds)


def seconds_left(seconds: float) -> float:
    """Return how much of its time the current request has left; `seconds` where none has begun.

    Examples
    --------
    >>> seconds_left(60)
    60
    >>> begin_request(60)
    >>> 59 < seconds_left(60) <= 60
    True
    """
    end = _END.get()
    return seconds if end is None else max(0.0, end - time.monotonic())
