"""A process that takes one core, to measure how threads share what is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["one_busy_core"]

_SPIN = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
print("ready", flush=True)
while True:
    pass
"""


@contextmanager
def one_busy_core() -> Iterator[None]:
    """Keep one core busy by another process; on Linux always the same core."""
    with subprocess.Popen([sys.executable, "-c", _SPIN], stdout=subprocess.PIPE) as process:
        try:
            next(process.stdout or iter(()))  # it has started
            yield
        finally:
            process.kill()
