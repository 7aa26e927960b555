"""The stages of a search: documents in and outside of lists, filters, the Hamming stage, unusual queries."""

import numpy as np
import pytest
from ivf_helpers import DIM, collection, lists_of, recall

from latelier import indexes
from latelier.indexes.ivf import search as ivf_search
from latelier.indexes.ivf.kernels.queries import quantise_query
from latelier.indexes.ivf.search import keep_likely
from latelier.indexes.ivf.sign_tolerance import distance_variance

pytestmark = pytest.mark.processor


def test_documents_in_no_list_yet_are_found(early):
    documents, _ = collection(402)
    index = indexes.IVF()
    index.add(range(400), documents[:400])
    index.add([400, 401], documents[400:402])
    assert len(lists_of(index).numbers) == 400
    for id in (400, 401, 7):
        assert index.search(documents[id], k=1, candidates=20, rerank=20)[0][0].id == id


@pytest.mark.parametrize("share", [2, 10, 100, 1000])
def test_recall_under_filters(early, share):
    documents, queries = collection(3000)
    index = indexes.IVF()
    index.add(range(3000), documents, metadata=[{"n": i % share} for i in range(3000)])
    options = {"candidates": 400, "rerank": 300}  # few enough for half of the documents to be probed for
    assert recall(index, queries, filter="n = 0", **options) >= 0.97
    for row in index.search(queries, 10, filter="n = ?", parameters=(1,), **options):
        assert all(hit.id % share == 1 for hit in row)
        assert len(row) == min(10, 3000 // share)


def test_more_lists_are_probed_as_filters_exclude_more(early, monkeypatch):
    documents, queries = collection(1000)
    index = indexes.IVF()
    index.add(range(1000), documents, metadata=[{"n": i % 4} for i in range(1000)])
    probed, probe_lists = [], ivf_search.probe_lists

    def noted(centroids, query, nprobe):
        probed.append(nprobe)
        return probe_lists(centroids, query, nprobe)

    monkeypatch.setattr(ivf_search, "probe_lists", noted)
    narrow = {"nprobe": 3, "candidates": 20, "rerank": 15}
    for filter in (None, "n != 0", "n > 1", "n = 0", "n = 9"):
        index.search(queries[:1], k=1, filter=filter, **narrow)
    assert probed == [3, 3, 6, 12]  # and none for the filter that excludes everything


@pytest.mark.parametrize(("slack", "kept"), [(2.0, 19), (0.0, 10), (1e9, 100)])
def test_documents_with_much_worse_sign_codes_than_the_kth_are_not_reranked(slack, kept):
    query = quantise_query(np.eye(4, DIM, dtype="float32"))
    # The tenth-best Hamming distance is 9. The standard deviation is 0.4 * sqrt(32) * sqrt(4) = 4.53.
    scores = np.random.default_rng(0).permutation(-np.arange(100, dtype="float32"))
    documents = np.arange(1000, 1100)
    assert keep_likely(documents, scores, query, 10, slack).tolist() == documents[scores > -kept].tolist()


def test_hamming_distances_of_equal_tokens_deviate_together():
    """Four equal tokens have four times the standard deviation of one, four different ones twice as much."""
    scores, documents = -np.arange(100, dtype="float32"), np.arange(100)
    for rows, kept in (([0, 0, 0, 0], 28), ([0, 1, 2, 3], 19), ([0], 14)):
        query = quantise_query(np.eye(DIM, dtype="float32")[rows])
        assert len(keep_likely(documents, scores, query, 10, 2.0)) == kept


def test_variance_of_a_very_long_query_is_added_up_in_parts():
    """Of 1,500 tokens half are equal, and the others are equal too, orthogonal to the first and of norm 3."""
    rows = np.concatenate([np.eye(2, DIM, dtype="float32") * [[1], [3]]] * 750).astype("float32")
    query = quantise_query(rows)
    assert distance_variance(query.vectors, query.norms) == pytest.approx(750**2 * (1 + 9), rel=1e-5)


def test_all_documents_are_likely_for_a_query_of_zeros():
    query = quantise_query(np.zeros((3, DIM), dtype="float32"))
    documents, scores = np.arange(20), np.zeros(20, dtype="float32")
    for k in (10, 50):
        assert keep_likely(documents, scores, query, k, 2.0).tolist() == list(range(20))


def test_a_query_of_zeros_finds_documents(early):
    index = indexes.IVF()
    index.add(range(1500), collection(1500)[0])
    for options in ({}, {"rerank": 20}):
        [hits] = index.search(np.zeros((2, DIM)), k=5, **options)
        assert [hit.score for hit in hits] == [0.0] * 5


def test_more_hits_than_the_probed_lists_hold_are_found(early):
    documents, _ = collection(600)
    index = indexes.IVF()
    index.add(range(600), documents)
    hits = index.search(documents[0][:1], k=600, nprobe=1, candidates=10, rerank=10)[0]
    assert len(hits) == 600
    assert sorted(hit.id for hit in hits) == list(range(600))


@pytest.mark.parametrize("tokens", [1, 16, 33, 500])
def test_queries_of_any_length(early, tokens):
    documents, _ = collection(400)
    index = indexes.IVF()
    index.add(range(400), documents)
    query = np.concatenate(documents[:40])[:tokens]
    assert len(query) == tokens
    assert recall(index, [query]) >= 0.9


def test_identical_documents_come_in_the_order_of_insertion(early):
    index = indexes.IVF()
    index.add(range(2000), [np.eye(4)[[0]]] * 2000)
    assert lists_of(index) is not None
    assert [hit.id for hit in index.search(np.eye(4)[:1], k=5, effort="exact")[0]] == [0, 1, 2, 3, 4]
    assert len(index.search(np.eye(4)[:1], k=5)[0]) == 5
