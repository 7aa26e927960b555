"""The process that reads files: what it yields and raises, and that no file hangs, fills or ends this one."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from latelier.errors import InvalidArgumentError, MissingExtraError, UnknownIdError
from latelier.reading import process as reading
from latelier.reading.process import in_worker


def squares(most):
    for number in range(most):
        yield [os.getpid(), number * number, "\udcff" * 20_000]


def unknown():
    yield 1
    raise UnknownIdError("no document has the id 7.", advice="known-ids")


def missing():
    raise MissingExtraError("Reading this", "files")


def hang():
    yield re.match("(a+)+b", "a" * 60)  # holds the interpreter's lock


def tell_and_hang():
    yield from [os.getpid()] * 64  # sent together
    yield from hang()


def fill():
    held = []
    while True:
        held.append(bytes(1 << 24))


def end():
    ctypes.string_at(0)


def recurse():
    return recurse()


def print_something():
    os.write(1, b"what a library prints\n")
    return [sorted({"torch", "transformers"} & set(sys.modules))]


def test_values_and_errors_are_those_of_the_function():
    values = list(in_worker(squares, 1000))
    assert [value[1] for value in values] == [number * number for number in range(1000)]
    assert {value[2] for value in values} == {"\udcff" * 20_000}
    taken = []
    with pytest.raises(UnknownIdError, match=r"id 7\..*ids\(\), lists"):
        taken.extend(in_worker(unknown))
    assert taken == [1]
    with pytest.raises(MissingExtraError, match=r"Reading this needs the extra .files.\..*latelier\[files\]"):
        list(in_worker(missing))
    assert list(in_worker(print_something)) == [[]]  # no heavy library is imported there
    [[process, *_]] = in_worker(squares, 1)
    assert {process} == {value[0] for value in values} != {os.getpid()}  # errors do not cost a process


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (hang, "took longer than 5 seconds"),
        (fill, "more memory"),
        (end, r"ended the process that reads it \(exit code"),
        (recurse, "RecursionError"),
    ],
)
def test_a_call_that_hangs_fills_or_ends_the_process_is_an_error(function, reason, monkeypatch):
    monkeypatch.setattr(reading, "_SECONDS", 5 if function is hang else 60)
    monkeypatch.setattr(reading, "_MEMORY", 1 << 29)
    monkeypatch.setattr(reading, "_idle", {})
    if function is fill and sys.platform != "linux":
        pytest.skip("this system limits no memory")
    with pytest.raises(InvalidArgumentError, match=reason):
        list(in_worker(function))
    monkeypatch.setattr(reading, "_SECONDS", 60)
    assert [value[1] for value in in_worker(squares, 3)] == [0, 1, 4]


def test_memory_of_this_process_costs_no_process(monkeypatch):
    monkeypatch.setattr(reading, "_idle", {})
    held = bytearray(b"1" * (reading._RETAINED + 1))
    processes = {value[0] for _ in range(2) for value in in_worker(squares, 1)}
    assert len(processes) == 1
    del held


def test_calls_within_a_call_and_calls_left_unfinished():
    outer = in_worker(squares, 300)
    first = next(outer)
    inner = list(in_worker(squares, 3))
    assert (first[1], inner[2][1]) == (0, 4)
    assert inner[0][0] != first[0]
    outer.close()
    assert [value[1] for value in in_worker(squares, 3)] == [0, 1, 4]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_process_that_is_stopped_is_waited_for_no_longer_than_others(monkeypatch):
    monkeypatch.setattr(reading, "_SECONDS", 2)
    monkeypatch.setattr(reading, "_idle", {})
    [[process, *_]] = in_worker(squares, 1)
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(reading.ReadingTimeoutError, match="took longer than 2 seconds"):
        list(in_worker(squares, 1))
    monkeypatch.setattr(reading, "_SECONDS", 60)
    [[another, *_]] = in_worker(squares, 1)
    assert another != process


PARENT = """
import os, sys
from test_reading_process import tell_and_hang
from latelier.reading.process import in_worker
print(next(in_worker(tell_and_hang)), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it takes a minute")
def test_the_process_ends_with_the_one_that_started_it():
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), *sys.path]))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", PARENT], env=environment, capture_output=True, text=True)
    child = int(done.stdout)
    is_alive = True
    end = time.monotonic() + 10
    while is_alive and time.monotonic() < end:
        try:
            os.kill(child, 0)
            time.sleep(0.1)
        except ProcessLookupError:
            is_alive = False
    assert not is_alive
