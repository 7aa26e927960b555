"""Inverted lists over the life of an index: trained, appended to, trained anew, stored and checked."""

import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
from index_helpers import contents
from ivf_helpers import DIM, EARLY, check_lists, collection, lists_of, recall

from latelier import indexes
from latelier.errors import StorageError
from latelier.indexes.ivf import training
from latelier.indexes.ivf.codec import Codec, DocumentTable
from latelier.indexes.store.storage import Storage
from latelier.indexes.store.transaction import Transaction

pytestmark = pytest.mark.processor


def dots_with(codes, packed, start):
    """Dot products of ``(tokens, centroids)`` as the kernels compute them."""
    rows = packed.transpose(0, 2, 1, 3).reshape(start.size, -1)
    return codes.astype("int64") @ rows.T.astype("int64") + start.reshape(-1)


def test_tokens_are_assigned_to_the_best_centroid_under_their_best_coarse_centroid(early):
    index = indexes.IVF()
    index.add(range(500), collection(500)[0])
    snapshot = index._storage.snapshot()
    lists = lists_of(index)
    table, centroids = DocumentTable(snapshot.parts(), Codec(8, DIM), lists.numbers), lists.centroids
    codes = table.unpack(np.arange(500)).codes
    coarse = dots_with(codes, centroids.coarse, centroids.coarse_start).argmax(axis=1)
    dots, first = dots_with(codes, centroids.fine, centroids.fine_start), 16 * centroids.fine_offsets
    expected = [set() for _ in range(centroids.lists)]
    for document, c, row in zip(np.repeat(np.arange(500), table.documents.lengths), coarse, dots, strict=True):
        expected[first[c] + row[first[c] : first[c + 1]].argmax()].add(int(document))
    found = [lists.documents[a:b].tolist() for a, b in zip(lists.offsets[:-1], lists.offsets[1:], strict=True)]
    assert found == [sorted(documents) for documents in expected]


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
    narrow = {"candidates": 20, "rerank": 20}
    assert index.search(documents[0], k=1, **narrow)[0][0].id == 1
    assert {hit.id for hit in index.search(documents[1], k=300, **narrow)[0]} <= set(index.ids())
    assert recall(index, queries, candidates=100, rerank=100) > 0.95
    before = contents(index)
    index.compact()
    check_lists(index)
    assert len(lists_of(index).numbers) == len(index)
    assert contents(index) == before
    assert recall(index, queries, candidates=100, rerank=100) > 0.95


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


def test_few_documents_have_no_lists_however_many_tokens_they_have(monkeypatch):
    monkeypatch.setattr(indexes.IVF, "_thresholds", replace(EARLY, train_documents=101))
    documents, _ = collection(101)
    index = indexes.IVF()
    index.add(range(100), documents[:100])
    assert sum(map(len, documents[:100])) > EARLY.train_tokens
    assert lists_of(index) is None
    index.remove(0)
    index.add(100, documents[100])
    assert lists_of(index) is None
    index.add(0, documents[0])
    assert len(lists_of(index).numbers) == 101


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_a_small_index_trains_anew_without_compaction_as_other_documents_are_added(monkeypatch, small):
    monkeypatch.setattr(indexes.IVF, "_thresholds", replace(EARLY, small=small))
    documents, _ = collection(250)
    others = [np.roll(document, 5, axis=1) for document in collection(100, seed=1)[0]]
    index = indexes.IVF()
    index.add(range(250), documents)
    index.add(range(250, 350), others)  # appended, which shows that they are less similar to the centroids
    index.add(350, documents[0])
    statistics = lists_of(index).centroids.statistics
    trained_on = [*documents, *others, documents[0]] if small else documents
    assert statistics.tokens == sum(map(len, trained_on))
    assert (statistics.latest_similarity < 0.9 * statistics.trained_similarity) is not bool(small)


def test_another_dim_after_everything_was_removed(early):
    documents, _ = collection(100)
    index = indexes.IVF()
    index.add(range(100), documents)
    index.remove(range(100))
    wide, queries = collection(40, dim=64)
    index.add(range(40), wide)
    assert index.dim == 64
    assert recall(index, queries, k=3) == 1.0


def test_ann_data_is_stored_verified_and_made_anew_where_it_is_damaged(early, tmp_path):
    documents, queries = collection(300)
    with indexes.IVF(tmp_path / "index", nbits=4) as index:
        index.add(range(300), documents)
        wanted = index.search(queries)
        name = next(path for path in (tmp_path / "index" / "segments").iterdir() if (path / "offsets.npy").exists())
        files = index.verify().files
    with indexes.open(tmp_path / "index", read_only=True) as index:
        assert (type(index), index.nbits) == (indexes.IVF, 4)
        assert lists_of(index) is not None
        assert index.search(queries) == wanted
        assert index.verify().is_whole
    content = bytearray((name / "documents.npy").read_bytes())
    content[-1] ^= 1
    (name / "documents.npy").write_bytes(content)
    with indexes.open(tmp_path / "index") as index:
        report = index.verify()
        assert [damage.file for damage in report.damages] == [f"segments/{name.name}/documents.npy"]
        assert (report.files, report.ids) == (files, [])
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
    train = training.train_lists

    def slowly(table, **options):
        thread = threading.Thread(target=lambda: found.append(index.search(documents[7], k=1)[0][0].id))
        thread.start()
        thread.join(timeout=10)
        return train(table, **options)

    monkeypatch.setattr(training, "train_lists", slowly)
    index.add(range(200), documents)
    assert found == [7]
    assert lists_of(index) is not None


def test_a_disk_too_full_for_ann_data_loses_nothing(early, tmp_path, monkeypatch):
    documents, queries = collection(200)

    def refuse(self, arrays):
        raise StorageError("the disk is full")

    with indexes.IVF(tmp_path / "index") as index:
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "write_ann_data", refuse)
            index.add(range(200), documents)
            assert lists_of(index) is None
            with pytest.raises(StorageError, match="the disk is full"):
                index.compact()
        assert recall(index, queries) > 0.97
        index.add("one more", documents[0])
        assert len(lists_of(index).numbers) == 201


@pytest.mark.parametrize("is_trained", [False, True])
def test_an_index_that_is_closed_after_the_commit_has_stored_the_documents(early, tmp_path, monkeypatch, is_trained):
    documents, _ = collection(200)
    index, count = indexes.IVF(tmp_path / "index"), 200 if is_trained else 20
    index.add("first", documents[0])
    train, load = training.train_lists, index._load

    def close_first(table, **options):
        index.close()
        return train(table, **options)

    def close_before_loading(snapshot):
        index.close()
        return load(snapshot)

    with monkeypatch.context() as patch:
        if is_trained:
            patch.setattr(training, "train_lists", close_first)
        else:
            patch.setattr(index, "_load", close_before_loading)
        with pytest.warns(RuntimeWarning, match=r"documents are stored, but .* is closed; open it again"):
            index.add(range(count), documents[:count])
    with indexes.open(tmp_path / "index") as again:
        assert len(again) == count + 1
        assert lists_of(again) is None
        again.compact()
        assert (lists_of(again) is not None) is is_trained
        assert again.verify().is_whole


def test_two_processes_may_train_at_once(early, tmp_path, monkeypatch):
    """The lists stored last count; documents that another process has added meanwhile are found all the same."""
    documents, _ = collection(260)
    train = training.train_lists

    with indexes.IVF(tmp_path / "index") as index, indexes.open(tmp_path / "index") as other:

        def interrupted(table, **options):
            monkeypatch.setattr(training, "train_lists", train)
            other.add(range(200, 250), documents[200:250])
            other.remove([0, 5])
            other.compact()
            return train(table, **options)

        monkeypatch.setattr(training, "train_lists", interrupted)
        index.add(range(200), documents[:200])
        assert len(lists_of(index).numbers) == 200
        for at in (index, other):
            assert len(at) == 248
            narrow = {"k": 1, "candidates": 30, "rerank": 30}
            assert [at.search(documents[i], **narrow)[0][0].id for i in (1, 199, 225)] == [1, 199, 225]
            assert 5 not in {hit.id for hit in at.search(documents[5], k=240)[0]}
        index.compact()
        check_lists(index)
        assert len(lists_of(index).numbers) == 250  # two of them removed, too few to train anew


def test_no_batch_of_documents_is_held_in_memory_during_maintenance(tmp_path, monkeypatch):
    """Training takes as much memory as the limit leaves."""
    inserted, held = [], []
    insert = Transaction.insert

    def note(transaction, batch, **options):
        inserted.extend(weakref.ref(array) for array in batch.arrays.values())
        insert(transaction, batch, **options)

    monkeypatch.setattr(Transaction, "insert", note)
    monkeypatch.setattr(indexes.IVF, "after_write", lambda _: held.extend(ref() for ref in inserted))
    with indexes.IVF(tmp_path / "index") as index:
        index.add(range(50), collection(50)[0])
        index.update(range(30), collection(30)[0])
    assert held
    assert all(array is None for array in held)
