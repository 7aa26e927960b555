"""A transaction step by step: what readers see, and which files there are, before and after its end."""

import numpy as np
import pytest
from index_helpers import contents, matrices

from latelier import indexes

KINDS = {"memory": lambda folder: indexes.Flat(), "disk": indexes.Flat}


@pytest.fixture(params=KINDS)
def storage(request, tmp_path):
    """The storage of an index of two documents."""
    with KINDS[request.param](tmp_path / "index") as index:
        index.add(["a", "b"], matrices([2, 1]))
        yield index._storage


def names(storage):
    return set(storage._store.names())


def test_changes_are_seen_when_the_block_ends(tmp_path):
    with indexes.Flat(tmp_path / "index") as index, indexes.open(tmp_path / "index") as reader:
        index.add(["a", "b"], matrices([2, 1]))
        before = contents(reader)
        with index._storage.transaction() as transaction:
            transaction.remove(["a"])
            transaction.set_ann_data({"numbers": np.arange(3)})
            assert contents(reader) == before
            assert reader._storage.snapshot().ann_data is None
        assert reader.ids() == ["b"]
        assert reader._storage.snapshot().ann_data["numbers"].tolist() == [0, 1, 2]


def test_an_error_undoes_all_changes_and_deletes_what_was_written(storage):
    kept = names(storage)

    def change():
        with storage.transaction() as transaction:
            transaction.remove(["a"])
            transaction.set_ann_data({"numbers": np.arange(3)})
            assert len(names(storage)) == 2
            raise KeyError("an error of the caller")

    with pytest.raises(KeyError, match="an error of the caller"):
        change()
    assert storage.ids() == ["a", "b"]
    assert storage.snapshot().ann_data is None
    assert names(storage) == kept


def test_what_was_dropped_is_deleted_after_the_commit(storage):
    storage.write_ann_data({"numbers": np.arange(3)})
    before = names(storage)
    with storage.transaction() as transaction:
        transaction.set_ann_data({"numbers": np.arange(4)})
        transaction.remove(["a", "b"])  # and with them their segment
        assert before < names(storage)
    assert len(before) == 2
    assert len(names(storage)) == 1
    assert not names(storage) & before


def test_a_transaction_that_changes_nothing_is_no_commit(storage):
    before = storage.snapshot()
    with storage.transaction() as transaction:
        transaction.remove([])
    assert storage.snapshot() is before


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_long_is_done_before_readers_of_an_index_in_memory_wait(kind, tmp_path):
    made = []

    def slow():
        for i in range(3):
            made.append(i)
            yield i

    with KINDS[kind](tmp_path / "index") as index, index._storage.transaction() as transaction:
        prepared = transaction.prepare(slow())
        assert next(prepared) == 0
        assert made == ([0, 1, 2] if kind == "memory" else [0])
        assert [*prepared] == [1, 2]
