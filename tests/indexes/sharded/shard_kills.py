"""Rounds of killing the processes of a sharded index: of shards, and of the one that writes, at random moments."""

import contextlib
import multiprocessing.forkserver
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kill_rounds import apply, carry_out, plan, stored

from latelier import indexes
from latelier.errors import StorageError
from latelier.indexes.sharded.replicas import persist
from latelier.utils.ray_session import require_ray

QUERY = np.ones((1, 8), dtype="float32")


def shard_pids(index):
    """Return the process of each replica."""
    return persist(list(index._generations.latest), lambda replica: replica.call("process"))


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_shards_under_writes(index, seed, kills):
    """Write and search while shards are killed; return how often, and how the writes ended.

    Another thread searches all the time, and must see one of the states that the index had meanwhile, whole: a search
    that waits for a shard to be opened again may outlast several writes.
    """
    rng, outcomes = random.Random(seed), Counter()
    state, states = {}, [set()]  # the ids after each write, also of one that has begun
    current = 0  # the place in it of the last write that has ended
    stop, errors = threading.Event(), []

    def search():
        while not stop.is_set():
            try:
                first = current
                found = {hit.id for hit in index.search(QUERY, k=100)[0]}
                assert found in states[first:], (found, states[first:])
                outcomes["searches"] += 1
            except BaseException as error:  # noqa: BLE001 (the test shows it)
                errors.append(error)
                return

    def strike():
        while not stop.is_set() and outcomes["kills"] < kills:
            time.sleep(rng.random() * 0.4)
            kill(random.Random(rng.random()).choice(shard_pids(index)))
            outcomes["kills"] += 1

    threads = [threading.Thread(target=search), threading.Thread(target=strike)]
    for thread in threads:
        thread.start()
    try:
        while not errors and (outcomes["kills"] < kills or not outcomes["written"] or not outcomes["searches"]):
            operation = plan(rng, state)
            after = apply(state, *operation)
            states.append(set(after))
            try:
                carry_out(index, *operation)
                outcomes["written"] += 1
            except StorageError:
                outcomes["refused"] += 1
                after = stored(index)
                assert after in (state, apply(state, *operation))
                states.append(set(after))
            state, current = after, len(states) - 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    assert stored(index) == state
    return outcomes


def work(folder, seed, state, address, sender):
    """In the process that will be killed: announce each operation, carry it out, report it."""
    announce = sender.send
    rng = random.Random(seed)
    require_ray("Testing").init(address=address, log_to_driver=False, logging_level="ERROR")
    with indexes.open(folder) as index:
        announce("opened")
        while True:
            operation = plan(rng, state)
            announce("begun")
            carry_out(index, *operation)
            announce("done")
            state = apply(state, *operation)


def own_environment():
    """Return the environment of a process that imports the modules of this folder."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parent.parent), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def run_program(name, *arguments):
    """Run a module of this folder as a program, which must succeed; return what it prints."""
    command = [sys.executable, str(Path(__file__).parent / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=own_environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def process_server():
    """Return a context of multiprocessing whose processes are forked from one that has imported what they need."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["commit_writer"])
    with pytest.MonkeyPatch.context() as patch:  # before Python 3.12.8, it finds modules in this variable only
        patch.setenv("PYTHONPATH", own_environment()["PYTHONPATH"])
        multiprocessing.forkserver.ensure_running()
    return processes


def kill_a_writer(folder, seed, state, delay):
    """Start a process that writes, kill it, and return the states of before and after its last operation."""
    address = require_ray("Testing").get_runtime_context().gcs_address
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = process_server().Process(target=work, args=(str(folder), seed, state, address, sender))
    child.start()
    sender.close()
    assert receiver.recv() == "opened"
    time.sleep(delay)
    child.kill()
    lines = []
    with contextlib.suppress(EOFError):
        while True:
            lines.append(receiver.recv())
    child.join()
    rng, before = random.Random(seed), state
    for _ in range(lines.count("done")):
        before = apply(before, *plan(rng, before))
    after = apply(before, *plan(rng, before)) if lines.count("begun") > lines.count("done") else before
    return before, after
