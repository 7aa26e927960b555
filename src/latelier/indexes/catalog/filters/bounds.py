"""Bounds of a filter's evaluation: how long it may run, and how large its values may become."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import short

__all__ = ["MOST_BYTES", "check_timeout", "deadline", "limit_lengths"]

# Bytes of one value.
MOST_BYTES = 64 << 20
# Comparing with a pattern may take as long as the length of the pattern times that of the text.
_LIMITS = {"SQLITE_LIMIT_LENGTH": MOST_BYTES, "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1000}
# Steps of SQLite's virtual machine between two looks at the clock: about 20 microseconds.
_STEPS = 1000


def check_timeout(timeout: object) -> float | None:
    """Return the argument ``filter_timeout`` as a float, or None.

    Raises
    ------
    InvalidArgumentError
        If it is neither None nor a number above 0.
    """
    if timeout is None:
        return None
    if isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool) and timeout > 0:
        return float(min(timeout, 1e9))  # an integer may be larger than any float
    raise InvalidArgumentError(
        f"received filter_timeout={short(timeout)}; give a number of seconds above 0, or None for no limit."
    )


@contextmanager
def limit_lengths(connection: sqlite3.Connection) -> Iterator[None]:
    """Bound the lengths of values and patterns within a ``with`` block, where Python can: from 3.11 on."""
    if not hasattr(connection, "setlimit"):
        yield
        return
    limits = {getattr(sqlite3, name): most for name, most in _LIMITS.items()}
    before = {code: connection.setlimit(code, most) for code, most in limits.items()}
    try:
        yield
    finally:
        for code, most in before.items():
            connection.setlimit(code, most)


@contextmanager
def deadline(connection: sqlite3.Connection, end: float | None, late: Callable[[], Exception]) -> Iterator[None]:
    """Interrupt the statements of a ``with`` block at some time, and when a signal handler raises an exception.

    SQLite looks at the clock between the steps of its virtual machine; one step is at most one call of a function.

    Parameters
    ----------
    connection
        Used by this thread alone.
    end
        On the clock of `time.monotonic`; ``None`` for no end.
    late
        Makes the error to raise at the end.
    """
    errors: list[BaseException] = []
    watch = _watch(end, late, errors)
    next(watch)
    try:
        try:
            connection.set_progress_handler(watch.__next__, _STEPS)
            yield
        finally:
            connection.set_progress_handler(None, 0)
    except sqlite3.OperationalError:
        if not errors:
            raise
    if errors:
        raise errors[0]


def _watch(end: float | None, late: Callable[[], Exception], errors: list[BaseException]) -> Iterator[bool]:
    """Yield whether to interrupt; `errors` then holds the reason.

    Python runs signal handlers as soon as SQLite calls back, and `sqlite3` discards what they raise in a callback. The
    body of a generator is resumed inside of its ``try``, while a function can be interrupted before it enters one.
    """
    try:
        while not errors:  # the jump back is inside of the ``try`` too, since Python runs signal handlers there
            yield False
            if end is not None and time.monotonic() > end:
                raise late()
    except GeneratorExit:
        return
    except BaseException as error:  # noqa: BLE001 (`deadline` raises it when SQLite has stopped)
        errors.append(error)
    while True:
        yield True
