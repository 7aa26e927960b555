"""The writer and a process of a shard, killed at steps of a write: the write is done or not, and the next one works."""

import importlib
import itertools
import sys

import pytest
from commit_writer import write_and_die
from kill_rounds import apply, carry_out, stored
from shard_kills import QUERY, kill, process_server, shard_pids

from latelier import indexes
from latelier.errors import StorageError
from latelier.utils.ray_session import require_ray

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shard_processes")]
FIRST = [str(i) for i in range(12)]
# Documents that replace others, and new ones; and a write that changes no document.
UPDATE, COMPACT = ("update", [str(i) for i in range(8, 16)], 2), ("compact", [], 0)
# Of the more than forty steps of a shard some are tried, since its process takes seconds to start again: the fourth,
# which is in the staging, and every seventh from there on. Seven is odd, so that the two replicas take turns.
FIRST_STEP, STRIDE = 3, 7


def in_shard(replica, function, *arguments):
    """Call a function of `commit_steps` in the process of a replica."""
    folders = [path for path in sys.path if path not in ("", ".")]

    def call(_):
        sys.path.extend(folders)
        getattr(importlib.import_module("commit_steps"), function)(*arguments)

    require_ray("Testing").get(replica._actor.__ray_call__.remote(call))


def staged(folder):
    return [path for path in folder.rglob("staged/*") if path.is_dir()]


def check_after(folder, index, reader, states, number):
    """Check an index after a kill, write once more, and return what it holds."""
    state = stored(index)
    assert state in states
    assert stored(reader) == state
    effort = {"effort": "exact"} if index.nbits else {}
    assert {hit.id for hit in index.search(QUERY, k=100, **effort)[0]} == set(state)
    last = ("update", [str(50 + number % 3)], number)
    carry_out(index, *last)
    state = apply(state, *last)
    assert stored(index) == stored(reader) == state
    assert staged(folder) == []
    assert index.verify().is_whole
    return state


@pytest.mark.parametrize("operation", [UPDATE, COMPACT], ids=["update", "compact"])
def test_the_process_of_a_shard_killed_at_steps(tmp_path, operation):
    folder, outcomes = tmp_path / "index", []
    with indexes.Sharded(folder, shards=2, replicas=2) as index, indexes.open(folder) as reader:
        for each in index._generations.latest:
            in_shard(each, "grow_early")
        carry_out(index, "add", FIRST, 1)
        state = apply({}, "add", FIRST, 1)
        for number in itertools.count(FIRST_STEP, STRIDE):
            carry_out(index, "update", FIRST, number)  # the same documents each time
            carry_out(index, "remove", FIRST[-5:], 0)  # for compact to drop
            state = apply(apply(state, "update", FIRST, number), "remove", FIRST[-5:], 0)
            place = 2 + number % 2  # a replica of the second shard
            pid = shard_pids(index)[place]
            in_shard(list(index._generations.latest)[place], "die_at", number)
            after, is_done = apply(state, *operation), True
            try:
                carry_out(index, *operation)
            except StorageError as error:
                is_done, message = False, str(error)
            assert is_done or "nothing was changed" in message
            outcomes.append(is_done)
            has_died = shard_pids(index)[place] != pid
            if not has_died:
                kill(pid)
            state = check_after(folder, index, reader, [after if is_done else state], number)
            if not has_died:
                break
    assert len(outcomes) > 1
    assert outcomes[-1]
    assert set(outcomes) == ({True} if operation == COMPACT else {True, False})


def test_a_change_of_the_keyword_index_that_is_interrupted(tmp_path):
    """Vectors are searched as before, searches by keywords say what to do, and the same call completes it."""
    folder = tmp_path / "index"
    with indexes.Sharded(folder, shards=2, replicas=2, index="flat", tokenizer="porter") as index:
        carry_out(index, "add", FIRST, 1)
        before = index.search(QUERY)
        for changed in range(3):
            replica = list(index._generations.latest)[changed]
            replica.result(replica.write("compact", True, "unicode61"))
            with indexes.open(folder) as opened:
                assert opened.search(QUERY) == before
                differ = r"the keyword indexes of the shards differ \(porter, unicode61\)"
                with pytest.raises(StorageError, match=differ):
                    opened.search(mode="keywords", texts="3 1")
                with pytest.raises(StorageError, match=differ):
                    opened.reshard(3)
        index.compact(keywords=True, tokenizer="unicode61")
        assert index.tokenizer == "unicode61"
        assert index.search(mode="keywords", texts="10", k=1)[0][0].id == "10"


def test_the_writer_killed_at_each_step(tmp_path):
    folder, outcomes = tmp_path / "index", []
    address = require_ray("Testing").get_runtime_context().gcs_address
    processes = process_server()
    with indexes.Sharded(folder, shards=2, index="flat") as index:
        carry_out(index, "add", FIRST, 1)
    state = apply({}, "add", FIRST, 1)
    with indexes.open(folder, read_only=True) as reader:
        for number in itertools.count():
            before = state
            child = processes.Process(target=write_and_die, args=(str(folder), address, number, UPDATE))
            child.start()
            child.join()
            after = apply(before, *UPDATE)
            assert stored(reader) in (before, after)
            with indexes.open(folder) as index:
                outcomes.append(stored(index) == after)
                state = check_after(folder, index, reader, (before, after), number)
                carry_out(index, "update", FIRST, 1)
                state = apply(state, "update", FIRST, 1)
            if child.exitcode == 0:
                break
            assert child.exitcode == -9
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {True, False}
