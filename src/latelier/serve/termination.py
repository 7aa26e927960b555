"""`exits_on_sigterm`: end the process after a server has stopped so that what is open is closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["exits_on_sigterm"]


@contextmanager
def exits_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, with the exit status of shells, 128 + 15; by default, SIGTERM closes nothing.

    uvicorn stops its server on a signal and sends the signal again when the server has stopped. A handler that the
    program has set itself stays. Python handles signals in the main thread only; others change nothing.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
