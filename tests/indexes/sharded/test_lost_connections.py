"""Processes that have lost Ray, by a fork or because it was shut down, are told so; nothing waits forever."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("ray")

START = """
import os, sys
import numpy as np
import ray
from latelier import indexes
from latelier.errors import StorageError

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ONE, folder = np.ones((1, 4)), sys.argv[1]
index = indexes.Sharded(folder, shards=2, index="flat")
index.add(["a", "b"], [ONE, ONE])

def said(call):
    try:
        return f"worked: {call()}"
    except StorageError as error:
        return str(error)

def uses(*more):
    calls = [lambda: index.search(ONE), lambda: index.add("c", ONE), index.compact, *more]
    return [said(call) for call in calls]

"""


def run(program, folder):
    """Return the lines that a program of its own prints after `START`."""
    command = [sys.executable, "-c", START + textwrap.dedent(program), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("fork", ["os.fork", "ctypes.PyDLL(None).fork"])
def test_a_forked_child_is_told_so(tmp_path, fork):
    """Also one that Python's hooks do not see."""
    program = f"""
    import ctypes
    child = {fork}()
    if child == 0:
        print(all("forked" in text for text in uses(lambda: indexes.open(folder))), flush=True)
        index.close()
        os._exit(0)  # as multiprocessing does
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(index.ids(), [hit.id for hit in index.search(ONE)[0]])
    index.close()
    """
    assert run(program, tmp_path / "index") == ["True", "0", "['a', 'b'] ['a', 'b']"]


@pytest.mark.slow
def test_after_a_shutdown_the_index_says_so_and_can_be_opened_again(tmp_path):
    program = """
    ray.shutdown()
    print(set(uses()))
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    print(set(uses()))
    index.close()
    with indexes.open(folder) as again:
        print(again.ids(), [hit.id for hit in again.search(ONE)[0]])
    """
    refused = (
        "{'A sharded index has lost its processes: this process has disconnected from Ray, as ray.shutdown() does. "
        "What was stored is kept; open it again.'}"
    )
    assert run(program, tmp_path / "index") == [refused, refused, "['a', 'b'] ['a', 'b']"]
