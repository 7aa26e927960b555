"""Statements that end when their time is over, or when somebody presses Ctrl-C."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["deadline"]

_STEPS = 1000  # of SQLite's virtual machine from one look at the clock to the next: some 20 microseconds


@contextmanager
def deadline(connection: sqlite3.Connection, end: float | None, late: Callable[[], Exception]) -> Iterator[None]:
    """Stop the statements of a ``with`` block at some time.

    SQLite looks at the clock between its steps, not within a step, which is at most one call of a function.

    Parameters
    ----------
    connection
        Used by this thread alone.
    end
        On the clock of `time.monotonic`; ``None`` for no end. Signals are heard in either case.
    late
        Makes the error to raise.
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
    """Yield whether to stop; then `errors` says why.

    Python runs the handlers of signals as soon as SQLite calls back, and `sqlite3` drops what they raise in a callback.
    The body of a generator is resumed within its ``try``, whereas a function can be left before it has entered one.
    """
    try:
        while not errors:  # the jump back, where Python also runs handlers, has to be within the ``try``
            yield False
            if end is not None and time.monotonic() > end:
                raise late()
    except GeneratorExit:
        return
    except BaseException as error:  # noqa: BLE001 (raised again when SQLite has stopped)
        errors.append(error)
    while True:
        yield True
