"""Forks with an index open: the child works on by itself or says why it cannot; nothing is lost and nothing hangs."""

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numba
import numpy as np
import pytest
import torch
from fork_rounds import KINDS, fork, fork_round
from index_helpers import in_child, start_child

from latelier import indexes
from latelier.errors import StorageError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork")

ONE = np.ones((1, 4))


def message(call):
    """Return what a call refuses to do."""
    try:
        call()
    except StorageError as error:
        return str(error)
    return "worked"


# `make soak` forks a thousand times.
@pytest.mark.parametrize("kind", KINDS)
def test_forks_at_random_moments_lose_nothing_and_hang_nowhere(kind, tmp_path):
    outcomes = [fork_round(kind, tmp_path / str(seed), seed) for seed in range(4)]
    assert [outcome.failures for outcome in outcomes if outcome.failures] == []


def test_what_a_child_commits_survives_the_parent_s_close(disk_index):
    """The child holds locks of its own, so the parent, which closes first, must leave the log to it."""
    disk_index.add("parent", ONE)

    def write_slowly():
        disk_index.add("first", ONE)
        time.sleep(0.8)
        disk_index.add("second", ONE)
        return disk_index.ids()

    child = start_child(write_slowly)
    time.sleep(0.4)
    disk_index.close()
    assert child() == ["parent", "first", "second"]
    with indexes.open(disk_index.path) as index:
        assert index.ids() == ["parent", "first", "second"]
        assert index.verify().is_whole
        assert len(index.search(ONE)[0]) == 3


def test_workers_forked_from_an_open_index_search_the_latest_commit(disk_index):
    """As under gunicorn's preload_app or in a pool of workers: another process writes after the fork."""
    disk_index.add(["a", "b"], [ONE, ONE])
    fork_context = multiprocessing.get_context("fork")
    go = fork_context.Event()

    def found(_):
        assert go.wait(30)
        return sorted(hit.id for hit in disk_index.search(ONE)[0])

    global _job
    _job = found
    with fork_context.Pool(2) as pool:
        answers = pool.map_async(_run, range(4))
        with indexes.open(disk_index.path) as other:
            other.remove("a")
            other.add("c", ONE)
        disk_index.close()
        go.set()
        assert answers.get(timeout=60) == [["b", "c"]] * 4


_job = None


def _run(argument):
    return _job(argument)


def test_an_index_in_memory_is_a_copy_of_its_own_in_the_child():
    index = indexes.IVF()
    index.add("a", ONE)

    def change():
        index.add("child", ONE)
        index.remove("a")
        return [index.ids(), [hit.id for hit in index.search(ONE)[0]]]

    child = start_child(change)
    index.add("parent", ONE)
    assert child() == [["child"], ["child"]]
    assert index.ids() == ["a", "parent"]


def test_a_child_forked_beside_a_long_write_is_told_so(tmp_path):
    index, memory = indexes.Flat(tmp_path / "index"), indexes.Flat()
    index.add("a", ONE)
    begun, go = threading.Event(), threading.Event()

    def stream():
        yield ONE
        begun.set()
        assert go.wait(30)
        yield ONE

    thread = threading.Thread(target=lambda: index.add(["b", "c"], stream()))
    thread.start()
    assert begun.wait(30)

    def use():
        calls = (index.ids, lambda: index.add("d", ONE), index.compact, lambda: indexes.open(index.path), memory.ids)
        refused = [*(message(call) for call in calls), in_child(lambda: message(index.ids))]
        index.close()
        memory.close()
        return refused

    child = fork(lambda: {"answer": use()})  # does not wait for the stream, which goes on after the answer
    answer = child()
    go.set()
    thread.join()
    assert all("it cannot use any index" in text for text in answer["answer"])
    assert index.ids() == ["a", "b", "c"]
    index.close()
    check_whole(tmp_path / "index", ["a", "b", "c"])


def check_whole(folder, ids):
    with indexes.open(folder) as index:
        assert sorted(index.ids()) == sorted(hit.id for hit in index.search(ONE)[0]) == ids
        assert index.verify().is_whole


_FORK_WITHIN = """
import os, sys
import numpy as np
from latelier import indexes

one, parent = np.ones((1, 4)), os.getpid()

def stream(leave):
    yield one
    child = os.fork()
    if child == 0:
        if leave == "raise":
            raise ValueError("the child gives up")
        if leave == "exit":
            sys.exit(3)
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    yield one

for folder, leave in zip(sys.argv[1::2], sys.argv[2::2]):
    index = indexes.Flat(folder)
    index._segment_bytes = 1  # a segment per document, so that some are written
    index.add("a", one)
    index.add(["b", "c"], stream(leave))
    if os.getpid() == parent:
        print(index.ids(), flush=True)
        print(f"end of {leave}", file=sys.stderr)
"""


def test_a_fork_within_a_write_s_own_iterable_cannot_spoil_the_write(tmp_path):
    """The child unwinds the parent's call and ends as Python does, finalizers and all: it touches nothing."""
    status = {"return": 1, "raise": 1, "exit": 3}
    folders = [str(text) for leave in status for text in (tmp_path / leave, leave)]
    command = [sys.executable, "-c", _FORK_WITHIN, *folders]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == [line for code in status.values() for line in (str(code), "['a', 'b', 'c']")]
    said = "only the process that began the call can continue it"
    assert ran.stderr.count(said) == 1
    assert ran.stderr.index(said) < ran.stderr.index("end of return")
    for leave in status:
        check_whole(tmp_path / leave, ["a", "b", "c"])


def test_threads_that_fork_at_once_and_children_that_fork(tmp_path):
    """Neither waits for the other for long, and grandchildren work as children do."""
    index = indexes.Flat(tmp_path / "index")
    index.add("a", ONE)

    def search(generations):
        ids = [hit.id for hit in index.search(ONE)[0]]
        return {"answer": ids if generations == 0 else fork(lambda: search(generations - 1))()["answer"]}

    answers = []
    threads = [threading.Thread(target=lambda: answers.append(fork(lambda: search(2))())) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        index.search(ONE)
    assert [answer.get("answer") for answer in answers] == [["a"]] * 3


def test_a_fork_that_python_does_not_see_is_noticed(tmp_path):
    """Servers written in C fork without Python's hooks: the connections are not closed before."""
    index = indexes.Flat(tmp_path / "index")
    index.add("a", ONE)
    reader, writer = os.pipe()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        os.write(writer, message(index.ids).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"was in use when this process was forked" in os.read(reader, 1000)
    index.add("b", ONE)
    assert index.ids() == ["a", "b"]


def test_a_child_searches_with_threads_of_its_own(tmp_path):
    """Enough documents for two threads, which the parent has used before."""
    index = indexes.Flat(tmp_path / "index")
    rng = np.random.default_rng(0)
    index.add(range(400), [rng.standard_normal((200, 64), dtype="float32") for _ in range(400)])
    query, threads = rng.standard_normal((64, 64), dtype="float32"), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = index.search([query] * 4)
        child = fork(lambda: {"answer": index.search([query] * 4)})
        assert child()["answer"] == [[list(hit) for hit in row] for row in expected]
    finally:
        torch.set_num_threads(threads)


def test_a_child_forked_while_a_thread_compiles_a_kernel_can_compile():
    """Numba compiles under a lock, which a child would inherit held."""

    def compile_one(number):
        @numba.njit
        def add(values):
            return values.sum() + number

        return int(add(np.arange(3)))

    forked = threading.Event()

    def compile_until_forked():
        while not forked.is_set():
            compile_one(4)

    thread = threading.Thread(target=compile_until_forked)
    thread.start()
    time.sleep(0.2)
    child = fork(lambda: {"answer": compile_one(7)})
    forked.set()
    assert child()["answer"] == 10
    thread.join()


def test_a_snapshot_that_another_thread_ends_leaves_forks_alone(tmp_path):
    """Web servers take what a generator yields in threads of a pool, and an iterable may read a snapshot meanwhile."""
    with indexes.Flat(tmp_path / "old") as old, indexes.Flat(tmp_path / "new") as new:
        old.add(range(9), [ONE] * 9)

        def stored():
            with old.snapshot():
                for id in old.ids():
                    yield old.get_embeddings([id])[0]

        new.add(range(9), stored())
        generator = stored()
        next(generator)
        thread = threading.Thread(target=generator.close)
        thread.start()
        thread.join()
        old.add("later", ONE)
        children = []
        thread = threading.Thread(target=lambda: children.append(start_child(new.ids)))
        thread.start()
        thread.join()
        assert children[0]() == list(range(9))
