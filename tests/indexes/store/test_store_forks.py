"""Forks with an index open: the child works on by itself or says why it cannot; nothing is lost and nothing hangs."""

import ctypes
import os
import threading
import time

import numpy as np
import pytest
from fork_rounds import KINDS, fork_round
from index_helpers import in_child, start_child

from latelier import indexes
from latelier.errors import StorageError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork")

ONE = np.ones((1, 4))


def message(call):
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
    """As under gunicorn's preload_app. The parent, which closes first, must leave the log to the child."""
    disk_index.add("parent", ONE)

    def write_slowly():
        disk_index.add("first", ONE)
        time.sleep(0.8)
        disk_index.add("second", ONE)
        return [disk_index.ids(), len(disk_index.search(ONE)[0])]

    child = start_child(write_slowly)
    time.sleep(0.4)
    with indexes.open(disk_index.path) as other:
        other.remove("parent")
        other.add("late", ONE)
    disk_index.close()
    assert child() == [["first", "late", "second"], 3]
    with indexes.open(disk_index.path) as index:
        assert index.ids() == ["first", "late", "second"]
        assert index.verify().is_whole
        assert len(index.search(ONE)[0]) == 3


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

    child = start_child(use)  # does not wait for the stream, which goes on after the answer
    refused = child()
    go.set()
    thread.join()
    assert all("it cannot use any index" in text for text in refused)
    assert index.ids() == ["a", "b", "c"]
    index.close()
    check_whole(tmp_path / "index", ["a", "b", "c"])


def check_whole(folder, ids):
    with indexes.open(folder) as index:
        assert sorted(index.ids()) == sorted(hit.id for hit in index.search(ONE)[0]) == ids
        assert index.verify().is_whole


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
