"""Killed processes: of shards under writes and searches, of replicas under searches, and of the writer."""

import json
import random

import pytest
from kill_rounds import apply, carry_out, plan, stored
from shard_kills import QUERY, kill, kill_a_writer, kill_shards_under_writes, run_program, shard_pids

from latelier import indexes
from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.sharded.staging import StagedTransaction

pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("shard_processes")


def filled(folder, **options):
    """Return an index of twenty documents, and what it holds."""
    index, state = indexes.Sharded(folder, shards=2, index="flat", **options), {}
    carry_out(index, "add", [str(i) for i in range(20)], 1)
    return index, apply(state, "add", [str(i) for i in range(20)], 1)


def test_a_search_goes_on_when_the_process_of_its_shard_dies(tmp_path):
    index, state = filled(tmp_path / "index")
    with index:
        before = index.search(QUERY, k=30)
        for pid in shard_pids(index):
            kill(pid)
        assert index.search(QUERY, k=30) == before
        assert stored(index) == state
        carry_out(index, "update", ["3", "50"], 2)
        assert stored(index) == apply(state, "update", ["3", "50"], 2)


def test_a_snapshot_outlives_the_process_of_its_shard_as_long_as_nobody_writes(tmp_path):
    index, _ = filled(tmp_path / "index")
    with index, index.snapshot():
        before = index.search(QUERY, k=30)
        kill(shard_pids(index)[0])
        assert index.search(QUERY, k=30) == before


def test_replicas_of_each_shard_take_turns(tmp_path):
    index, _ = filled(tmp_path / "index", replicas=2)
    with index, index._views.open() as view:
        chosen = [[shard.begin("numbered_ids", (None,))[0] for shard in view.shards] for _ in range(4)]
    assert chosen == [[0, 0], [1, 1], [0, 0], [1, 1]]


def test_another_replica_answers_at_once(tmp_path):
    index, state = filled(tmp_path / "index", replicas=2)
    with index:
        before = index.search(QUERY, k=30)
        for round in range(2):
            pids = shard_pids(index)
            kill(pids[round])
            assert [index.search(QUERY, k=30) for _ in range(4)] == [before] * 4
        carry_out(index, "remove", ["0"], 0)
        assert stored(index) == apply(state, "remove", ["0"], 0)


def test_a_reader_in_another_driver_sees_whole_commits(tmp_path):
    """Two objects in one process, each with processes of its own, as two drivers have."""
    index, state = filled(tmp_path / "index")
    with index, indexes.open(tmp_path / "index") as reader:
        rng = random.Random(5)
        for number in range(12):
            writer = index if number % 2 else reader
            operation = plan(rng, state)
            with reader.snapshot():
                held = reader.ids()
                if writer is index:
                    carry_out(index, *operation)
                    assert reader.ids() == held
            if writer is reader:
                carry_out(reader, *operation)
            state = apply(state, *operation)
            assert stored(reader) == stored(index) == state


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_write_that_ends_between_its_steps_is_completed_or_dropped(tmp_path, monkeypatch, is_committed):
    """The next opening sees it if it was committed; the next write deletes what was staged otherwise."""
    index, state = filled(tmp_path / "index")

    def fail(*arguments, **options):
        raise KeyboardInterrupt("between two steps")

    name = "latelier.indexes.sharded.writing.persist" if is_committed else None
    with index, monkeypatch.context() as patch:
        view = index._views.refresh()
        if is_committed:
            from latelier.indexes.sharded import writing

            calls = []
            persist = writing.persist
            patch.setattr(name, lambda *a: fail() if calls else (calls.append(1), persist(*a))[1])
        else:
            patch.setattr("latelier.indexes.sharded.writing.Write.finish", fail)
            patch.setattr("latelier.indexes.sharded.writing.Write.drop", lambda write: None)
        with pytest.raises(KeyboardInterrupt, match="between two steps"):
            carry_out(index, "update", [str(i) for i in range(10, 30)], 2)
        assert index._views._current() is view  # readers stay with the commit before
        assert stored(index) == state
    assert list((tmp_path / "index").rglob("staged/*"))
    after = apply(state, "update", [str(i) for i in range(10, 30)], 2) if is_committed else state
    with indexes.open(tmp_path / "index") as index:
        assert stored(index) == after
        carry_out(index, "add", ["59"], 3)
        assert stored(index) == apply(after, "add", ["59"], 3)
        assert list((tmp_path / "index").rglob("staged/*")) == []


def test_a_staged_transaction_without_manifest_is_not_applied(tmp_path):
    staged = StagedTransaction(tmp_path, f"{1:012d}-{'0' * 16}")
    assert not staged.is_complete
    with pytest.raises(CorruptedIndexError, match=r"the staged transaction in .* is damaged"):
        staged.manifest()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_shards_killed_under_writes(tmp_path, kind):
    with indexes.Sharded(tmp_path / "index", shards=2, index=kind) as index:
        outcomes = kill_shards_under_writes(index, seed=1, kills=4)
        assert outcomes["written"] > 0
        assert outcomes["searches"] > 0
        assert index.verify().is_whole


@pytest.mark.slow
def test_shards_and_replicas_killed_many_times(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=2, index="flat", replicas=2) as index:
        outcomes = kill_shards_under_writes(index, seed=2, kills=12)
        assert outcomes["searches"] > 0
        assert index.verify().is_whole
        assert ids_of_second_replicas(index) == index.ids()


def ids_of_second_replicas(index):
    """Return the ids of the second replicas in the order of insertion."""
    found = [
        replicas[1].result(replicas[1].call("pin", version))
        for replicas, version in zip(index._generations.latest.shards, index._views.record().versions, strict=True)
    ]
    pairs = []
    for replicas, pinned in zip(index._generations.latest.shards, found, strict=True):
        ids, numbers = replicas[1].result(replicas[1].read(pinned.name, "numbered_ids", None))
        pairs += zip(numbers, ids, strict=True)
    return [id for _, id in sorted(pairs)]


@pytest.mark.slow
def test_a_node_that_dies_and_comes_back(tmp_path):
    printed = run_program("shard_nodes.py", tmp_path / "index")
    assert json.dumps([*range(3), *range(4, 30), 3, "new"]) in printed  # among what Ray prints


@pytest.mark.slow
def test_a_writer_killed_many_times(tmp_path):
    indexes.Sharded(tmp_path / "index", shards=2, index="flat").close()
    rng, state = random.Random(7), {}
    for _ in range(5):
        before, after = kill_a_writer(tmp_path / "index", rng.randrange(2**32), state, rng.random() * 0.7)
        with indexes.open(tmp_path / "index") as index:
            state = stored(index)
            assert state in (before, after)
            assert {hit.id for hit in index.search(QUERY, k=100)[0]} == set(state)
            assert index.verify().is_whole


def test_documents_that_a_shard_forgot_when_it_was_started_again_are_not_committed(tmp_path, monkeypatch):
    """A search has opened the shard again between two batches of the write."""
    monkeypatch.setattr("latelier.indexes.sharded.index._BATCH_BYTES", 1000)
    index, state = filled(tmp_path / "index")

    def vectors():
        for number in range(200):
            if number == 150:  # the batches before it are staged
                for pid in shard_pids(index):
                    kill(pid)
                index.search(QUERY)
            yield QUERY

    with index:
        with pytest.raises(StorageError, match=r"nothing was changed"):
            index.add([f"long {i}" for i in range(200)], vectors())
        assert stored(index) == state
