"""Inverted lists over the life of an index: trained, appended to, trained anew, stored and checked."""

import threading

import numpy as np
import pytest
import torch
from index_helpers import contents
from ivf_helpers import DIM, check_lists, collection, lists_of, recall

from latelier import indexes
from latelier.indexes.ivf import index as index_module

pytestmark = pytest.mark.processor


def test_lists_are_trained_appended_to_and_trained_anew_as_documents_are_added(early):
    documents, queries = collection(1200)
    index = indexes.IVF()
    index.add(range(30), documents[:30])
    assert lists_of(index) is None
    index.add(range(30, 300), documents[30:300])
    first = lists_of(index)
    assert len(first.numbers) == 300
    index.add(300, documents[300])
    assert len(lists_of(index).numbers) == 300
    index.add(range(301, 340), documents[301:340])
    appended = lists_of(index)
    assert len(appended.numbers) == 340
    assert np.array_equal(appended.centroids.fine, first.centroids.fine)
    check_lists(index)
    assert recall(index, queries) > 0.97
    index.add(range(340, 1200), documents[340:1200])
    grown = lists_of(index)
    assert (len(grown.numbers), grown.centroids.lists > first.centroids.lists) == (1200, True)
    assert recall(index, queries) > 0.97


def test_removed_documents_are_not_found_and_updated_ones_are(early):
    documents, queries = collection(500)
    index = indexes.IVF()
    index.add(range(500), documents)
    index.remove(range(0, 500, 3))
    index.update([1, 2], [documents[0], documents[3]])
    narrow = {"candidates": 20}
    assert index.search(documents[0], k=1, **narrow)[0][0].id == 1
    assert {hit.id for hit in index.search(documents[1], k=300, **narrow)[0]} <= set(index.ids())
    assert recall(index, queries, candidates=100) > 0.95
    before = contents(index)
    index.compact()
    check_lists(index)
    assert len(lists_of(index).numbers) == len(index)
    assert contents(index) == before
    assert recall(index, queries, candidates=100) > 0.95


def test_centroids_that_have_drifted_are_trained_anew_by_compaction(early):
    documents, _ = collection(300)
    index = indexes.IVF()
    index.add(range(300), documents)
    kept = lists_of(index).centroids
    rng = np.random.default_rng(5)
    others = [rng.standard_normal((10, DIM)).astype("float32") for _ in range(200)]
    index.add(range(300, 500), [m / np.linalg.norm(m, axis=1, keepdims=True) for m in others])
    drifted = lists_of(index).centroids
    assert np.array_equal(kept.fine, drifted.fine)
    assert drifted.statistics.latest_similarity < 0.9 * drifted.statistics.trained_similarity
    index.compact()
    trained = lists_of(index).centroids
    assert not np.array_equal(kept.fine, trained.fine[: len(kept.fine)])
    assert trained.statistics.latest_similarity == trained.statistics.trained_similarity


def test_ann_data_is_stored_verified_and_made_anew_where_it_is_damaged(early, tmp_path):
    documents, queries = collection(300)
    with indexes.IVF(tmp_path / "index", nbits=4) as index:
        index.add(range(300), documents)
        wanted = index.search(queries)
        name = next(path for path in (tmp_path / "index" / "segments").iterdir() if (path / "offsets.npy").exists())
    with indexes.open(tmp_path / "index", read_only=True) as index:
        assert (type(index), index.nbits) == (indexes.IVF, 4)
        assert lists_of(index) is not None
        assert index.search(queries) == wanted
        assert index.verify().is_whole
    (name / "documents.npy").unlink()
    with indexes.open(tmp_path / "index") as index:
        assert lists_of(index) is None
        assert recall(index, queries) > 0.97
        index.compact()
        assert index.verify().is_whole
        check_lists(index)


def test_searches_go_on_while_centroids_are_trained(early, monkeypatch):
    """Training waits here until a search in another thread has been answered, from the documents just committed."""
    documents, _ = collection(200)
    index = indexes.IVF()
    found = []
    train = index_module.train_lists

    def slowly(table, **options):
        thread = threading.Thread(target=lambda: found.append(index.search(documents[7], k=1)[0][0].id))
        thread.start()
        thread.join(timeout=10)
        return train(table, **options)

    monkeypatch.setattr(index_module, "train_lists", slowly)
    index.add(range(200), documents)
    assert found == [7]
    assert lists_of(index) is not None


def test_two_processes_may_train_at_once(early, tmp_path, monkeypatch):
    """The lists stored last count; documents that another process has added meanwhile are found all the same."""
    documents, _ = collection(260)
    train = index_module.train_lists

    with indexes.IVF(tmp_path / "index") as index, indexes.open(tmp_path / "index") as other:

        def interrupted(table, **options):
            monkeypatch.setattr(index_module, "train_lists", train)
            other.add(range(200, 250), documents[200:250])
            other.remove([0, 5])
            other.compact()
            return train(table, **options)

        monkeypatch.setattr(index_module, "train_lists", interrupted)
        index.add(range(200), documents[:200])
        assert len(lists_of(index).numbers) == 200
        for at in (index, other):
            assert len(at) == 248
            narrow = {"k": 1, "candidates": 30}
            assert [at.search(documents[i], **narrow)[0][0].id for i in (1, 199, 225)] == [1, 199, 225]
            assert 5 not in {hit.id for hit in at.search(documents[5], k=240)[0]}
        index.compact()
        check_lists(index)
        assert len(lists_of(index).numbers) == 250  # two of them removed, too few to train anew


def test_threads_that_share_the_documents_make_the_same_lists(early, monkeypatch):
    monkeypatch.setattr("latelier.indexes.ivf.lists._SHARE_TOKENS", 1000)
    documents, _ = collection(600)

    def made(threads):
        torch.set_num_threads(threads)
        index = indexes.IVF()
        index.add(range(500), documents[:500])
        index.add(range(500, 600), documents[500:])  # appended to the lists
        return lists_of(index)

    one, three = made(1), made(3)
    assert len(one.numbers) == 600
    for name, array in one.arrays().items():
        if name != "centroids_fit":  # means of floats, whose last digits depend on the order of a sum
            np.testing.assert_array_equal(array, three.arrays()[name])
