"""Limits on evaluating a filter: its running time, and the length of its values."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import short

__all__ = ["MOST_BYTES", "check_limits", "deadline", "limit_lengths"]

# Maximum length of one value, in bytes.
MOST_BYTES = 64 << 20
# Patterns are limited further, since LIKE and GLOB may take time proportional to len(pattern) * len(text).
_LIMITS = {"SQLITE_LIMIT_LENGTH": MOST_BYTES, "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1000}
# Steps of SQLite's virtual machine between two checks of the clock: about 20 microseconds.
_STEPS = 1000


def check_limits(filter: object, parameters: object, timeout: object) -> float | None:
    """Return the argument ``filter_timeout`` of a search as a float, or None.

    Raises
    ------
    InvalidArgumentError
        If it is neither None nor a number above 0, or there are parameters without a filter.
    """
    if filter is None and not (parameters is None or (isinstance(parameters, Sized) and not len(parameters))):
        raise InvalidArgumentError(f"received parameters={short(parameters)} without a filter; give both, or neither.")
    if timeout is None:
        return None
    if isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool) and timeout > 0:
        return float(min(timeout, 1e9))  # an integer may be larger than any float
    raise InvalidArgumentError(
        f"received filter_timeout={short(timeout)}; give a number of seconds above 0, or None for no limit."
    )


@contextmanager
def limit_lengths(connection: sqlite3.Connection) -> Iterator[None]:
    """Limit the lengths of values and patterns within a ``with`` block; before Python 3.11, do nothing."""
    if not hasattr(connection, "setlimit"):  # new in Python 3.11
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
    """Interrupt the statements of a ``with`` block after a deadline, or when a signal handler raises an exception.

    The clock is checked between steps of SQLite's virtual machine, and one step calls at most one function.

    Parameters
    ----------
    connection
        A connection that no other thread is using.
    end
        The deadline as a value of `time.monotonic`; ``None`` for none.
    late
        Returns the error to raise after the deadline.
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
    """Yield whether to interrupt the statement, and append the reason to `errors`.

    Python runs signal handlers when SQLite calls the progress handler, and `sqlite3` discards an exception that leaves
    this callback. Here a ``try`` catches it. This is a generator, since it resumes inside of its ``try``; a function
    could be interrupted before it enters one.
    """
    try:
        # Python also runs signal handlers when a loop jumps back: the whole loop is inside of the ``try``.
        while not errors:
            yield False
            if end is not None and time.monotonic() > end:
                raise late()
    except GeneratorExit:
        return
    except BaseException as error:  # noqa: BLE001 (`deadline` raises it when SQLite has stopped)
        errors.append(error)
    while True:
        yield True
