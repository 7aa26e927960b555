"""Documents divided among another number of shards: nothing else changes, and others go on reading and writing."""

import threading
import time

import numpy as np
import pytest
from index_helpers import matrices
from shard_kills import kill, process_server, shard_pids
from test_sharded import TEXTS, documents

from latelier import indexes
from latelier.errors import CorruptedIndexError, InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.sharded.handover import divide
from latelier.indexes.sharded.placement import shard_of
from latelier.indexes.sharded.resharding import Resharding
from latelier.utils.ray_session import require_ray

pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("shard_processes")


def contents(index, **options):
    """Return everything that must stay: ids, records, vectors as bytes, and hits of every mode."""
    ids, queries = index.ids(), documents(4, seed=3)[0]
    found = [ids, len(index), index.dim, index.fields, index.tokenizer, index.get(ids)]
    found.append([each.tobytes() for each in index.get_embeddings(ids)])
    for mode in ("vectors", "keywords", "hybrid"):
        given = {"k": 20, "mode": mode, **({} if mode == "vectors" else {"texts": TEXTS}), **options}
        found.append(index.search(queries, **given))
        found.append(index.search(queries, filter="parity = ? AND n > 20", parameters=("odd",), **given))
    return found


def generations(index):
    return sorted(path.name for path in (index.path / "shards").iterdir())


@pytest.mark.parametrize("given", [{"index": "flat"}, {"nbits": 4}, {"index": "flat", "replicas": 2}])
def test_nothing_but_the_number_of_shards_changes(tmp_path, given):
    effort = {} if "index" in given else {"effort": "exact"}
    with indexes.Sharded(tmp_path / "index", shards=2, tokenizer="porter", **given) as index:
        index.add([i if i % 3 else str(i) for i in range(90)], *documents(90))
        index.update([1, 2, "new"], *documents(3, seed=1))
        index.remove([4, 5])
        before = contents(index, **effort)
        for count in (3, 1, 1):
            index.reshard(count)
            assert index.shards == count
            assert contents(index, **effort) == before
            assert index.verify().is_whole
        assert generations(index) == ["2", "3"]
        index.compact()
        assert generations(index) == ["3"]
        index.add(["after"], *documents(1, seed=5))
        assert index.ids() == [*before[0], "after"]
    with indexes.open(tmp_path / "index") as index:
        assert index.shards == 1
        assert index.ids() == [*before[0], "after"]
        with pytest.raises(InvalidArgumentError, match=r"received shards=2, but the index in .* has 1"):
            indexes.Sharded(tmp_path / "index", shards=2)


def test_what_others_write_and_read_meanwhile(tmp_path, monkeypatch):
    """Another object on the folder writes between the copies, and keeps reading the commit that it holds."""
    index = indexes.Sharded(tmp_path / "index", shards=2, index="flat")
    index.add(list(range(40)), matrices([2] * 40))
    steps = iter(
        [
            lambda other: other.update([3, "a"], matrices([1, 5], seed=1)),
            lambda other: other.remove([7, "a"]),
            lambda other: other.add(["b", 7], matrices([1, 1], seed=2)),
        ]
    )
    copy = Resharding._copy

    def write_and_copy(resharding, *arguments, **options):
        count = copy(resharding, *arguments, **options)
        if step := next(steps, None):
            worker = threading.Thread(target=step, args=(other,))
            worker.start()
            worker.join()
        return count

    with index, indexes.open(tmp_path / "index") as other:
        monkeypatch.setattr("latelier.indexes.sharded.resharding._SMALL_DIFFERENCE", -1)
        monkeypatch.setattr("latelier.indexes.sharded.resharding._MOST_ROUNDS", 2)
        monkeypatch.setattr(Resharding, "_copy", write_and_copy)
        index.reshard(3)
        expected = [i for i in range(40) if i not in (3, 7)] + [3, "b", 7]
        assert index.ids() == other.ids() == expected
        assert (index.shards, other.shards) == (3, 3)
        np.testing.assert_array_equal(other.get_embeddings([3])[0], matrices([1, 5], seed=1)[0])
        with other.snapshot():
            query = np.ones((1, 4), "float32")
            held = other.search(query, k=50)
            index.reshard(1)
            assert other.search(query, k=50) == held
        assert other.search(query, k=50) == held
        other.remove(expected[1:])
        assert index.ids() == other.ids() == [0]
        assert generations(index) == ["1", "2"]


def test_reads_go_over_to_the_new_shards_when_the_old_ones_are_gone(tmp_path):
    query, held = np.ones((1, 4), "float32"), threading.Event()
    index = indexes.Sharded(tmp_path / "index", shards=1, index="flat")

    def hold():
        with index._views._refreshing:  # so that the reads below begin with the old shard
            held.set()
            time.sleep(3)

    with index, indexes.open(tmp_path / "index") as other:
        index.add(list(range(20)), matrices([2] * 20))
        found = index.search(query)
        [old] = shard_pids(index)
        other.reshard(2)
        other.compact()  # deletes the folder of the old shard
        threading.Thread(target=hold).start()
        held.wait()
        assert index.statistics().documents == 20
        assert index.memory.kept == other.memory.kept
        kill(old)
        assert index.search(query) == found
        assert index.shards == 2


def test_a_thread_keeps_the_commit_that_it_holds(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=2, index="flat") as index:
        index.add(list(range(20)), matrices([2] * 20))
        with index.snapshot():
            worker = threading.Thread(target=index.reshard, args=(3,))
            worker.start()
            worker.join()
            assert len(index._generations._running) == 2
            assert index.ids() == list(range(20))
        assert len(index._generations._running) == 1
        assert index.ids() == list(range(20))


def test_errors_leave_the_index_as_it_is(tmp_path, monkeypatch):
    with indexes.Sharded(tmp_path / "index", shards=2, index="flat") as index:
        index.add(list(range(20)), matrices([2] * 20))
        with pytest.raises(InvalidArgumentError, match="received shards=0"):
            index.reshard(0)
        copy = Resharding._copy_differences

        def copy_beside_another(resharding, running):
            monkeypatch.setattr(Resharding, "_copy_differences", copy)
            index.reshard(1)
            copy(resharding, running)

        monkeypatch.setattr(Resharding, "_copy_differences", copy_beside_another)
        with pytest.raises(StorageError, match="another reshard"):
            index.reshard(3)
        assert (index.shards, generations(index), index.ids()) == (1, ["0", "2"], list(range(20)))
    [file] = (tmp_path / "index/shards/2/0").rglob("vectors.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with indexes.open(tmp_path / "index") as index:
        with pytest.raises(CorruptedIndexError, match="checksum"):
            index.reshard(2)
        assert (index.shards, generations(index), index.ids()) == (1, ["2"], list(range(20)))
    with indexes.open(tmp_path / "index", read_only=True) as index, pytest.raises(LatelierError, match="read"):
        index.reshard(2)


def test_codes_are_handed_over_by_number(tmp_path):
    with indexes.IVF(nbits=2) as index:
        index.add(list("abcdef"), matrices([1, 2, 3, 1, 2, 3]))
        index.remove(["b"])
        stored = index.storage.snapshot().parts()[0]
        found = divide(index, (1, 5), 2)
    assert {id: shard for shard, own in found.items() for id in [each.id for each in own.batch.documents]} == {
        id: shard_of(id, 2) for id in "cde"
    }
    for own in found.values():
        for name, array in own.batch.arrays.items():
            positions = np.flatnonzero(np.isin(stored.segment.numbers, own.numbers))
            expected = [stored.segment.arrays[name][slice(*stored.segment.offsets[p : p + 2])] for p in positions]
            np.testing.assert_array_equal(array, np.concatenate(expected))


@pytest.mark.slow
def test_a_killed_division_leaves_the_index_as_it_is(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=2, index="flat") as index:
        index.add(list(range(20)), matrices([2] * 20))
        address = require_ray("Testing").get_runtime_context().gcs_address
        child = process_server().Process(target=die, args=(str(tmp_path / "index"), address))
        child.start()
        child.join()
        assert child.exitcode == -9
        assert (index.shards, index.ids(), generations(index)) == (2, list(range(20)), ["0", "1"])
        index.add("more", matrices([1])[0])
        index.reshard(3)
        assert (index.shards, index.ids(), generations(index)) == (3, [*range(20), "more"], ["0", "2"])


def die(folder, address):
    """In the process that is killed: copy everything, and end before the commit."""
    import os
    import signal

    require_ray("Testing").init(address=address, log_to_driver=False, logging_level="ERROR")
    Resharding._commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    indexes.open(folder).reshard(3)
