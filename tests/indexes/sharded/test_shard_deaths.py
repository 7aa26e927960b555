"""Processes of shards that are killed, before and within reads and writes; programs that have lost Ray."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kill_rounds import apply, carry_out, plan, stored
from ray_processes import use_new_processes

from latelier import indexes
from latelier.errors import StorageError

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
QUERY = np.ones((1, 8), "float32")


@pytest.fixture
def filled(tmp_path, shard_processes, monkeypatch):
    use_new_processes(monkeypatch)
    with indexes.Sharded(tmp_path / "index", shards=2, kind="flat") as index:
        carry_out(index, "add", [str(i) for i in range(20)], 1)
        yield index, apply({}, "add", [str(i) for i in range(20)], 1)


def kill(index, shard):
    try:
        pid = ray.get(index._workers[shard].__ray_call__.remote(lambda _: os.getpid()))
    except ray.exceptions.RayActorError:
        return
    os.kill(pid, signal.SIGKILL)
    status = Path(f"/proc/{pid}/stat")
    while status.exists() and " Z " not in status.read_text():
        time.sleep(0.01)


def test_a_read_waits_until_its_shard_runs_again(filled):
    index, state = filled
    before = index.search(QUERY, k=30)
    for shard in (0, 1):
        kill(index, shard)
    assert index.search(QUERY, k=30) == before
    assert stored(index) == state
    carry_out(index, "update", ["3", "50"], 2)
    assert stored(index) == apply(state, "update", ["3", "50"], 2)


def test_a_shard_that_dies_within_a_write_leaves_all_unchanged(filled, monkeypatch):
    monkeypatch.setattr("latelier.indexes.sharded._BATCH_BYTES", 1000)
    index, state = filled

    def vectors():
        for number in range(200):
            if number == 150:  # the batches before it are in open transactions
                kill(index, 0)
                index.search(QUERY)  # has opened the shard again
            yield QUERY

    with pytest.raises(StorageError, match="started again"):
        index.add([f"long {i}" for i in range(200)], vectors())
    assert stored(index) == state


def test_a_commit_that_fails_in_one_shard_names_it(filled, monkeypatch):
    index, state = filled
    gather = index._gather

    def killing(group, method, *arguments, **options):
        if method == "commit":
            kill(index, 1)
        return gather(group, method, *arguments, **options)

    monkeypatch.setattr(index, "_gather", killing)
    ids = [str(i) for i in range(20, 40)]
    with pytest.raises(StorageError, match="stored in shard 0, but perhaps not in shard 1"):
        carry_out(index, "add", ids, 2)
    monkeypatch.undo()
    assert 20 < len(index) < 40
    carry_out(index, "update", ids, 2)
    assert stored(index) == apply(state, "add", ids, 2)


def test_kills_under_writes_lose_nothing(filled, monkeypatch):
    """A document is as before or as after a write that failed, and calling it again completes it."""
    index, state = filled
    rng, gather, failed = random.Random(3), index._gather, 0
    # Before which calls of the shards one is killed. The transaction of a shard that has begun one is lost then.
    due = ["begin", "insert", "commit", "maintain", "remove", "compact"] * 2

    def killing(group, method, *arguments, **options):
        if due and method == due[0]:
            due.pop(0)
            kill(index, rng.randrange(2))
        return gather(group, method, *arguments, **options)

    monkeypatch.setattr(index, "_gather", killing)
    while due:
        name, ids, version = plan(rng, state)
        name = "update" if name == "add" else name
        while True:
            try:
                carry_out(index, name, [id for id in ids if name != "remove" or id in index], version)
                break
            except StorageError:
                failed += 1
                time.sleep(0.1)
        state = apply(state, name, ids, version)
        assert stored(index) == state
    assert failed >= 6  # inserts, commits and removals
    assert index.verify().is_whole


PROGRAM = """
import ctypes, os, sys
import numpy as np
import ray
from latelier import indexes
from latelier.errors import StorageError

def start():
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

def said(*calls):
    texts = set()
    for call in calls:
        try:
            texts.add(f"worked: {call()}")
        except StorageError as error:
            texts.add(next(word for word in ("forked", "ray.shutdown()") if word in str(error)))
    return texts

start()
ONE, folder = np.ones((1, 4)), sys.argv[1]
index = indexes.Sharded(folder, shards=2, kind="flat")
index.add(["a", "b"], [ONE, ONE])
uses = [lambda: index.search(ONE), lambda: index.add("c", ONE), index.compact]
for fork in (os.fork, ctypes.PyDLL(None).fork):  # Python's hooks do not see the second
    child = fork()
    if child == 0:
        print(said(*uses, lambda: indexes.open(folder).ids()), flush=True)
        index.close()
        os._exit(0)  # as multiprocessing does
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), index.ids(), flush=True)
ray.shutdown()
print(said(*uses))
start()
print(said(*uses))
index.close()
with indexes.open(folder) as again:
    print(again.ids())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_and_whoever_has_shut_ray_down_are_told_so(tmp_path):
    """In one program, since Ray takes seconds to start; nothing waits forever."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "index")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    forked, whole = ["{'forked'}", "0 ['a', 'b']"], "['a', 'b']"
    assert ran.stdout.splitlines() == [*forked, *forked, "{'ray.shutdown()'}", "{'ray.shutdown()'}", whole]
