"""Reading files of strangers in a process of its own, so that no file can hang, fill or end this one.

The process is started once, with what reading needs: neither torch nor a model. It gets calls and sends values, as
lines of JSON. Who waits for it has the clock: a thread takes its answers, so that a call which takes too long ends
whatever the process does. It ends with the process that started it: at once on Linux, elsewhere by a watchdog at the
latest. Its memory is limited where the system can (not on macOS and Windows).
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from latelier import errors
from latelier.errors import InvalidArgumentError, LatelierError, MissingExtraError, StorageError
from latelier.utils.checks import cut

_SECONDS = 60  # of a call, until its next values
_SECONDS_ALONE = 30  # until the process ends itself after that, if the one that waits has not ended it
_SECONDS_TO_END = 5  # of a process that has closed its answers
_MEMORY = 4 << 30
_RETAINED = 1 << 30  # a process that once needed more memory is replaced
# Values and bytes in a line of an answer, up to which values are sent together, and the longest one that is taken.
_VALUES = 64
_BYTES = 1 << 20
_LONGEST_LINE = 1 << 29
_WAITING = 2  # lines that nobody has taken yet
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from latelier.reading.process import serve
serve(int(sys.argv[2]), int(sys.argv[3]))
"""


class ReadingTimeoutError(InvalidArgumentError):
    """Reading took longer than it may; it would the next time too, unless the file changes."""


def in_worker(function: Callable[..., Iterable[Any]], *arguments: Any) -> Iterator[Any]:
    """Yield the values that a function of a module yields in the process that reads; both are of JSON's types.

    Raises what the function raises: a `LatelierError` as it is, others as an `InvalidArgumentError`, as are a call that
    takes too long, needs too much memory, or ends the process.
    """
    process = _acquired()
    is_usable = False
    try:
        called = f"{function.__module__}:{function.__qualname__}"
        process.send([called, _SECONDS + _SECONDS_ALONE, *arguments])
        while True:
            values = process.receive()
            if isinstance(values, dict):
                break
            yield from values
        is_usable = values["is_usable"]
    finally:
        if is_usable:
            _idle.setdefault(os.getpid(), []).append(process)
        else:
            process.close()
    if values["error"] is not None:
        raise _error(*values["error"])


# The processes without a call, by the process that started them: one that is forked starts its own.
_idle: dict[int, list[_Process]] = {}


def _acquired() -> _Process:
    _ended[:] = [each for each in _ended if each.poll() is None]
    idle = _idle.get(os.getpid(), [])
    while idle:
        process = idle.pop()
        if process.is_alive():
            return process
        process.close()
    return _Process()


@atexit.register
def _close_idle() -> None:
    for process in _idle.pop(os.getpid(), []):
        process.close()


class _Process:
    """The process, as the one that started it sees it."""

    def __init__(self) -> None:
        self._answers: queue.Queue[Any] = queue.Queue(_WAITING)
        self._is_closed = False
        # The thread that starts it takes its answers: on Linux the process ends when that thread does.
        threading.Thread(target=self._run, daemon=True).start()
        started = self._answers.get()
        if isinstance(started, OSError):
            raise StorageError(f"cannot start a process to read files in: {started}.") from started
        self._process: subprocess.Popen[bytes] = started
        self._calls: Any = started.stdin

    def _run(self) -> None:
        try:
            process = _started()
        except OSError as error:
            self._answers.put(error)
            return
        self._answers.put(process)
        answers: Any = process.stdout
        with suppress(OSError, ValueError):  # it was closed meanwhile
            line = answers.readline(_LONGEST_LINE)
            while line.endswith(b"\n") and self._put(line):
                line = answers.readline(_LONGEST_LINE)
            self._put(line)
        answers.close()

    def _put(self, line: bytes) -> bool:
        """Hand over a line once there is room for it; False if nobody takes it any more."""
        while not self._is_closed:
            with suppress(queue.Full):
                self._answers.put(line, timeout=1)
                return True
        return False

    def is_alive(self) -> bool:
        """Whether it can take a call."""
        return self._process.poll() is None

    def send(self, call: list[Any]) -> None:
        """Begin a call; after its last values, another one can be sent."""
        with suppress(OSError):  # it ended: `receive` says so
            self._calls.write(_as_json(call) + b"\n")
            self._calls.flush()

    def receive(self) -> Any:
        """Return the next values of the call; at its end a dict: the error, and whether it can be called again."""
        try:
            line = self._answers.get(timeout=_SECONDS)
        except queue.Empty:
            reason = f"reading it took longer than {_SECONDS} seconds."
            return {"error": [ReadingTimeoutError.__name__, reason, None], "is_usable": False}
        if line.endswith(b"\n"):
            return json.loads(line.decode("utf-8", "surrogatepass"))
        if len(line) == _LONGEST_LINE:
            reason = "it holds more than can be read at once; split it."
        else:
            reason = f"reading it ended the process that reads it (exit code {self._exit_code()})."
        return {"error": ["InvalidArgumentError", reason, None], "is_usable": False}

    def close(self) -> None:
        """End it, whatever it does."""
        self._is_closed = True
        self._process.kill()
        with suppress(OSError):  # what was not sent yet
            self._calls.close()
        _ended.append(self._process)

    def _exit_code(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_SECONDS_TO_END)
        return None


# Processes that were killed: nobody waits for them, since one that waits for a dead drive ends when that answers.
_ended: list[subprocess.Popen[bytes]] = []


def _started() -> subprocess.Popen[bytes]:
    # A folder that is read may hold modules, so what the interpreter imports is stated, and nothing of it relative.
    root = str(Path(__file__).parents[2])
    folders = [*dict.fromkeys(str(Path(folder).absolute()) for folder in [*filter(None, sys.path), root])]
    command = [sys.executable, "-I", f"-Xutf8={sys.flags.utf8_mode}", "-c", _START]
    command += [json.dumps(folders), str(_MEMORY), str(os.getpid())]
    # Not interrupted with this process, without a window, and in no folder that could then not be removed.
    flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | getattr(subprocess, "CREATE_NO_WINDOW", 0)
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(root).anchor,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
        creationflags=flags,
    )


def _error(name: str, fact: str, detail: Any) -> LatelierError:
    """Return the error that was raised in the other process."""
    if name == "MissingExtraError":
        return MissingExtraError(fact, detail)
    if name == ReadingTimeoutError.__name__:
        return ReadingTimeoutError(fact)
    kind: type[LatelierError] = getattr(errors, name)
    return kind(fact, advice=detail)


def _as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def serve(memory: int, parent: int) -> None:
    """Answer the calls of the process that started this one, until it ends."""
    _end_with(parent)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    _limit_memory(memory)
    with Path(os.devnull).open("w") as nowhere:
        for line in sys.stdin.buffer:
            called, seconds, *arguments = json.loads(line.decode("utf-8", "surrogatepass"))
            for answer in _answers(called, seconds, arguments, nowhere):
                answers.write(answer + b"\n")
                answers.flush()


def _answers(called: str, seconds: float, arguments: list[Any], nowhere: Any) -> Iterator[bytes]:
    """Yield the lines of an answer; the time that this process waits for the other one is not counted."""
    error: list[str | None] | None = None
    is_usable = True
    faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
    try:
        module, _, name = called.partition(":")
        for line in _lines(getattr(importlib.import_module(module), name)(*arguments)):
            faulthandler.cancel_dump_traceback_later()
            yield line
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
    except MissingExtraError as raised:
        error = ["MissingExtraError", raised.fact.partition(" needs the extra")[0], raised.extra]
    except LatelierError as raised:
        error = [type(raised).__name__, raised.fact, raised.advice]
    except MemoryError:
        error = ["InvalidArgumentError", "reading it needs more memory than it may have.", None]
        is_usable = False
    except Exception as raised:  # noqa: BLE001 (whatever a reader of formats raises)
        reason = cut(f"{type(raised).__name__}: {raised}", 200)
        error = ["InvalidArgumentError", f"it cannot be read: {reason}.", None]
    faulthandler.cancel_dump_traceback_later()
    yield _as_json({"error": error, "is_usable": is_usable and _peak_memory() < _RETAINED})


def _lines(values: Iterable[Any]) -> Iterator[bytes]:
    """Yield values as lists of JSON, those before an error too."""
    batch: list[bytes] = []
    try:
        for value in values:
            batch.append(_as_json(value))
            if len(batch) == _VALUES or sum(map(len, batch)) > _BYTES:
                yield b"[" + b",".join(batch) + b"]"
                batch = []
    except Exception:
        if batch:
            yield b"[" + b",".join(batch) + b"]"
        raise
    if batch:
        yield b"[" + b",".join(batch) + b"]"


def _end_with(parent: int) -> None:
    """Let the system end this process with the one that started it, even if a call holds the interpreter's lock."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_WHEN_PARENT_ENDS, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(1)


_SIGNAL_WHEN_PARENT_ENDS = 1  # PR_SET_PDEATHSIG


def _limit_memory(memory: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    # Of Linux, what is written to, as allocators reserve much more address space.
    if sys.platform == "linux":
        limit = resource.RLIMIT_DATA
    else:
        limit = resource.RLIMIT_AS
    with suppress(OSError, ValueError):  # a lower limit is set already, or the system has none
        resource.setrlimit(limit, (memory, resource.getrlimit(limit)[1]))


def _peak_memory() -> int:
    """Return the largest memory that this process has had, in bytes; 0 where the system does not say."""
    if sys.platform == "win32":
        return 0
    if sys.platform == "linux":  # whose ru_maxrss begins with the memory of the process that started this one
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        found = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
        if found:
            return 1024 * int(found[1])
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak
    return 1024 * peak
