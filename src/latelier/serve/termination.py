"""`exits_on_signals`: end the process after a server has stopped so that what is open is closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["exits_on_signals"]


@contextmanager
def exits_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, with the exit status of shells, 128 + 15; by default, SIGTERM closes nothing.

    uvicorn stops its server on a signal and sends the signal again when the server has stopped. SIGINT then raises
    KeyboardInterrupt, even where it was ignored, as in the background of a script. A handler that the program has set
    itself stays. Python handles signals in the main thread only; others change nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = (
        (signal.SIGTERM, signal.SIG_DFL, _exit),
        (signal.SIGINT, signal.SIG_IGN, signal.default_int_handler),
    )
    changed = [each for each in handlers if signal.getsignal(each[0]) is each[1]]
    for number, _, handler in changed:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before, _ in changed:
            signal.signal(number, before)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
