"""Within snapshot() everything read is of one commit."""

import threading

import numpy as np
import pytest
from index_helpers import contents, matrices
from index_tampering import IDS, KINDS, make

from latelier import indexes
from latelier.errors import (
    LatelierError,
)
from latelier.indexes.store import connections


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_shows_one_commit(tmp_path, kind):
    folder = make(tmp_path / "index", kind)
    with indexes.open(folder) as index, indexes.open(folder) as other:
        with index.snapshot():
            before = contents(index)
            other.remove(IDS)
            other.add("new", np.ones((1, 4)))
            other.compact()
            assert contents(index) == before
            assert len(index) == 5
            assert "a" in index
            assert "new" not in index
            assert index.dim == 4
            with index.snapshot():
                assert [hit.id for hit in index.search(matrices([2]), filter="n < 9")[0] if hit.id not in IDS] == []
            assert index.check(k=3).documents == 5
            with pytest.raises(LatelierError, match=r"cannot write within snapshot\(\)"):
                index.add("no", matrices([1])[0])
        assert index.ids() == ["x", "new"]


def test_settings_are_of_the_snapshot(tmp_path):
    with indexes.Flat(tmp_path / "index") as index, indexes.open(tmp_path / "index") as other:
        index.settings["model"] = "first"
        with index.snapshot():
            assert len(index.settings) == 1
            other.settings.update(model="second", more=1)
            assert dict(index.settings) == {"model": "first"}
            for change in (lambda: index.settings.update(more=2), lambda: index.settings.pop("model")):
                with pytest.raises(LatelierError, match=r"cannot write within snapshot\(\)"):
                    change()
        assert dict(index.settings) == {"model": "second", "more": 1}


def test_a_snapshot_ends_also_where_another_thread_closes_its_generator(tmp_path):
    """As web servers do that take what a generator yields in threads of a pool."""
    with indexes.Flat(tmp_path / "index") as index:

        def lengths():
            with index.snapshot():
                yield len(index)

        generator = lengths()
        assert next(generator) == 0
        thread = threading.Thread(target=generator.close)
        thread.start()
        thread.join()
        index.add("a", np.eye(4))
        assert index.ids() == ["a"]
        assert not connections._process.inside


@pytest.mark.parametrize("dim", [1, 16, 4096])
def test_vectors_are_decoded_with_the_dim_they_were_coded_with(tmp_path, dim):
    with indexes.IVF(tmp_path / "index", nbits=4) as index, indexes.open(tmp_path / "index") as other:
        index.add("a", matrices([40], dim=8)[0])
        expected = index.get_embeddings("a").vectors.copy()
        find = index._storage.find

        def between(ids):
            found = find(ids)
            other.remove("a")
            other.add("b", np.ones((1, dim)))
            return found

        index._storage.find = between
        np.testing.assert_array_equal(index.get_embeddings("a").vectors, expected)
