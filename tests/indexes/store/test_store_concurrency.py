"""Several threads, index objects and processes at once: everyone sees whole commits, nobody waits for a writer."""

import os
import threading
import time

import numpy as np
import pytest
from index_helpers import about, start_child
from kill_rounds import EARLY, KINDS, kill_rounds

from latelier import indexes
from latelier.errors import InvalidArgumentError, StorageError

ONE = np.ones((1, 2))
posix = pytest.mark.skipif(os.name == "nt", reason="needs fork")


def run_threads(*functions):
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001 (raised again below)
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def wait_for(seen, count):
    """Wait until other threads have seen so much; after a minute go on, so that the test fails by its assertions."""
    end = time.monotonic() + 60
    while len(seen) < count and time.monotonic() < end:
        time.sleep(0.001)


def test_searching_threads_see_whole_commits(index):
    """Each commit moves all documents to one version; a search that mixed two of them would show two scores."""
    ids = list(range(12))

    def version(number):
        index.update(ids, [np.full((1, 2), float(number))] * 12, metadata=[{"version": number}] * 12)

    version(1)
    done = threading.Event()
    seen = set()

    def search():
        while not done.is_set():
            for filter in (None, "version > 0"):
                hits = index.search(ONE, k=20, filter=filter)[0]
                assert [hit.id for hit in hits] == ids
                assert len({hit.score for hit in hits}) == 1
                seen.add(hits[0].score)
                assert len({record.metadata["version"] for record in index.get(ids)}) == 1

    def write():
        try:
            for number in range(2, 16):
                version(number)
                if number % 5 == 0:
                    index.compact()
                if number in (8, 15):  # on a busy machine, searches may not have had a turn yet
                    wait_for(seen, 1 if number == 8 else 2)
        finally:
            done.set()

    run_threads(write, search, search, search)
    assert len(seen) > 1
    assert index.search(ONE, k=1)[0][0].score == about(index, 30.0)


def test_writing_threads_take_turns(index):
    def writer(name):
        return lambda: [index.add(f"{name}{i}", ONE) for i in range(8)]

    run_threads(*(writer(name) for name in "abcd"))
    assert sorted(index.ids()) == sorted(f"{name}{i}" for name in "abcd" for i in range(8))
    assert index.check().recall == 1.0


def test_searching_never_waits_for_a_writer(index):
    """While a stream is being added, its consumer searches, and so does another thread: both see the old state."""
    index.add("old", ONE)
    found = []

    def stream():
        for i in range(3):
            thread = threading.Thread(target=lambda: found.append(index.search(ONE)[0]))
            thread.start()
            thread.join(timeout=60)
            found.append(index.search(ONE)[0])
            yield np.full((1, 2), i + 1.0)

    index.add([0, 1, 2], stream())
    assert found == [[("old", about(index, 2.0))]] * 6
    assert index.ids() == ["old", 0, 1, 2]


def test_closing_lets_calls_of_other_threads_finish_or_says_that_it_is_closed(index):
    index.add(range(50), [ONE] * 50)
    begun = threading.Barrier(4)

    def repeat(call):
        begun.wait()
        with pytest.raises(InvalidArgumentError, match=r"is closed; (open it again|its documents are gone)"):
            list(iter(call, "never"))

    def close():
        begun.wait()
        time.sleep(0.01)
        index.close()

    run_threads(
        lambda: repeat(lambda: index.search(ONE)),
        lambda: repeat(index.ids),
        lambda: repeat(lambda: index.update("a", ONE)),
        close,
    )


def test_a_second_writer_waits_and_then_says_so(disk_index, monkeypatch):
    monkeypatch.setattr("latelier.indexes.store.connections.WAIT_SECONDS", 0.4)
    disk_index.add("there", ONE)  # the first documents of all are read before the transaction begins
    with indexes.open(disk_index.path) as other:
        times = []

        def stream():
            for write in (lambda: disk_index.add("x", ONE), lambda: other.add("x", ONE), lambda: other.remove([])):
                begun = time.monotonic()
                with pytest.raises(StorageError, match="another write to the index"):
                    write()
                times.append(time.monotonic() - begun)
            yield ONE

        disk_index.add("first", stream())
        assert min(times) > 0.3
        assert other.ids() == ["there", "first"]
        other.add("second", ONE)
        assert disk_index.ids() == ["there", "first", "second"]


def test_another_index_object_sees_each_commit_at_its_next_call(disk_index):
    with indexes.open(disk_index.path) as other:
        assert other.search(ONE) == [[]]
        disk_index.add(["a", "b"], [ONE, 2 * ONE], metadata=[{"n": 1}, {"n": 2}])
        assert other.search(ONE) == [[("b", about(other, 4.0)), ("a", about(other, 2.0))]]
        disk_index.remove("b")
        assert other.search(ONE, filter="n > 0") == [[("a", about(other, 2.0))]]
        disk_index.update("a", 3 * ONE)
        disk_index.compact()
        assert other.search(ONE) == [[("a", about(other, 6.0))]]
        assert (len(other), "b" in other) == (1, False)


@posix
def test_processes_see_whole_commits_while_another_one_writes_and_compacts(disk_index):
    """Opening anew each time, so that segments are often merged away between reading of them and opening them."""
    ids = [f"d{i}" for i in range(6)]
    disk_index.add(ids, [ONE / 2] * 6)
    path, stop = disk_index.path, disk_index.path.parent / "stop"
    disk_index.close()

    def write():
        number = 0
        with indexes.open(path) as index:
            while not stop.exists():
                number += 1
                index.update(ids, [np.full((1, 2), float(number))] * 6)
                index.add(f"passing {number}", -ONE)
                index.remove(f"passing {number}")
                index.compact()
        return number

    written = start_child(write)
    versions, opened = set(), 0
    try:
        while len(versions) < 5 or opened < 20:
            opened += 1
            with indexes.open(path, read_only=opened % 2 == 0) as index:
                scores = {hit.score for hit in index.search(ONE, k=6)[0]}
                assert len(scores) == 1
                versions |= scores
                assert index.get_embeddings(ids).num_tokens == 6
    finally:
        stop.touch()
        count = written()
    assert count >= len(versions) - 1  # the first version is from before
    with indexes.open(path) as index:
        assert index.search(ONE, k=1)[0][0].score == about(index, 2.0 * count)
        assert index.verify().is_whole


def test_reading_does_not_keep_the_log_from_shrinking(tmp_path):
    """Searches hold no transaction open while idle, so SQLite can fold its log into the catalog."""
    with indexes.Flat(tmp_path / "index") as index, indexes.open(tmp_path / "index") as reader:
        for i in range(30):
            index.add(i, ONE, texts="long text " * 10_000)
            assert len(reader.search(ONE)[0]) == min(i + 1, 10)
        assert (tmp_path / "index" / "catalog.sqlite-wal").stat().st_size < 6e6
        assert len(index) == 30


# `make soak` kills hundreds.
@posix
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_killed_writers_leave_the_last_commit(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(indexes.IVF, "_thresholds", EARLY)
    with indexes.IVF() as index:  # loads the kernels here: children would be killed while they do
        index.add(range(60), [np.eye(8)] * 60)
        index.search(np.eye(8))
    kind(tmp_path / "index").close()
    outcomes = kill_rounds(tmp_path / "index", seed=0, rounds=6)
    assert outcomes["committed"] + outcomes["rolled back"] > 1  # kills came in the middle of a change
