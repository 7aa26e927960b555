"""Processes that have lost Ray, by a fork or because it was shut down, are told so; nothing waits forever."""

import os
import subprocess
import sys

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


PROGRAM = """
import ctypes

for fork in (os.fork, ctypes.PyDLL(None).fork):  # Python's hooks do not see the second
    child = fork()
    if child == 0:
        print(all("forked" in text for text in uses(lambda: indexes.open(folder))), flush=True)
        index.close()
        os._exit(0)  # as multiprocessing does
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(index.ids(), [hit.id for hit in index.search(ONE)[0]], flush=True)
ray.shutdown()
print(set(uses()))
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
print(set(uses()))
index.close()
with indexes.open(folder) as again:
    print(again.ids(), [hit.id for hit in again.search(ONE)[0]])
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_and_whoever_has_shut_ray_down_are_told_so(tmp_path):
    """In one program, since Ray takes seconds to start; after each loss the index can be used or opened again."""
    command = [sys.executable, "-c", START + PROGRAM, str(tmp_path / "index")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    refused = (
        "{'A sharded index has lost its processes: this process has disconnected from Ray, as ray.shutdown() does. "
        "What was stored is kept; open it again.'}"
    )
    forked = ["True", "0", "['a', 'b'] ['a', 'b']"]
    assert ran.stdout.splitlines() == [*forked, *forked, refused, refused, "['a', 'b'] ['a', 'b']"]
