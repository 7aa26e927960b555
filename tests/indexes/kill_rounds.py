"""Rounds of killing a writer: random operations in a child process, killed, and what must be stored afterwards."""

import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace

import numpy as np
from index_helpers import check_stored

from latelier import indexes

KINDS = {"flat": indexes.Flat, "ivf": indexes.IVF}
# ANN data is made, and made again, while writers are killed.
EARLY = replace(indexes.IVF._thresholds, train_tokens=100, train_documents=1, small=0, append_tokens=50)


def vectors(id, version):
    rng = np.random.default_rng([int(id), version])
    return rng.integers(-8, 9, size=(int(rng.integers(1, 40)), 8)).astype("float32")


def plan(rng, state):
    present, absent = sorted(state), sorted({str(i) for i in range(60)} - set(state))
    name = rng.choice(["add", "add", "update", "update", "remove", "compact"])
    pool = {"add": absent, "update": present + absent, "remove": present, "compact": []}[name]
    ids = rng.sample(pool, min(len(pool), rng.randint(1, 12)))
    return name, ids, rng.randrange(10**6)


def apply(state, name, ids, version):
    if name == "remove":
        return {id: kept for id, kept in state.items() if id not in ids}
    return state | dict.fromkeys(ids, version) if name != "compact" else dict(state)


def carry_out(index, name, ids, version):
    if name == "compact":
        index.compact()
    elif name == "remove":
        index.remove(ids)
    else:
        write = index.add if name == "add" else index.update
        write(ids, (vectors(id, version) for id in ids), [f"{id} {version}" for id in ids], [{"v": version}] * len(ids))


def work(folder, seed, state, begun, done):
    """In the child: announce each operation, carry it out, report it; until killed."""
    rng = random.Random(seed)
    with indexes.open(folder) as index:
        while True:
            operation = plan(rng, state)
            os.write(begun, b".")
            carry_out(index, *operation)
            os.write(done, b".")
            state = apply(state, *operation)


def killed_run(folder, seed, state, delay):
    begun, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(folder, seed, state, begun[1], done[1])
        finally:
            os._exit(1)
    os.close(begun[1])
    os.close(done[1])
    os.read(begun[0], 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL  # not an error of its own
    finished, started = read_all(done[0]), 1 + read_all(begun[0])
    rng, before = random.Random(seed), state
    for _ in range(finished):
        before = apply(before, *plan(rng, before))
    after = apply(before, *plan(rng, before)) if started > finished else before
    return before, after


def read_all(pipe):
    with os.fdopen(pipe, "rb") as file:
        return len(file.read())


def stored(index):
    """Return ``{id: version}`` of an index, having compared every vector and text with what it must be."""
    ids = index.ids()
    versions = {record.id: record.metadata["v"] for record in index.get(ids)}
    assert [record.text for record in index.get(ids)] == [f"{id} {versions[id]}" for id in ids]
    for id, matrix in zip(ids, index.get_embeddings(ids), strict=True):
        check_stored(index, matrix, vectors(id, versions[id]))
    return versions


def grow_early():
    indexes.IVF._thresholds = EARLY


def kill_round(folder, seed, state, delay, read_only=False):
    before, after = killed_run(folder, seed, state, delay)
    with indexes.open(folder, read_only=read_only) as index:
        state = stored(index)
        assert len(index.search(np.ones((1, 8)), k=100)[0]) == len(state)
        assert index.verify().is_whole
    assert state in (before, after)
    outcome = "unchanged" if before == after else "committed" if state == after else "rolled back"
    return outcome, state


def kill_rounds(folder, seed, rounds):
    rng = random.Random(seed)
    state, outcomes = {}, Counter()
    for number in range(rounds):
        delay = rng.random() * 0.08
        outcome, state = kill_round(folder, rng.randrange(2**32), state, delay, read_only=number % 3 == 0)
        outcomes[outcome] += 1
    with indexes.open(folder) as index:
        index.compact()
        assert stored(index) == state
        assert len(list((folder / "segments").iterdir())) <= (2 if isinstance(index, indexes.Flat) else 3)
        assert index.check(k=3).recall == 1.0
    return outcomes
