"""The stages of a search: documents in and outside of lists, filters, the sign stage, unusual queries."""

import threading

import numpy as np
import pytest
from ivf_helpers import DIM, collection, lists_of, recall

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf import search as ivf_search
from latelier.indexes.ivf.kernels.signs import product_variance
from latelier.indexes.ivf.search import SearchParameters, keep_near_best, tolerance, variance_rows

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


@pytest.mark.parametrize(("count", "filter", "probes"), [(40, None, 0), (41, None, 1), (100, "n", 0), (102, "n", 1)])
def test_lists_are_probed_from_a_number_of_documents_on(early, monkeypatch, count, filter, probes):
    """More than (3 + widening) / 2 * candidates: 40 without a filter, 50 with one that halves the documents."""
    documents, queries = collection(102)
    documents = [np.tile(document, (5, 1)) for document in documents[:count]]
    index = indexes.IVF()
    index.add(range(count), documents, metadata=[{"n": i % 2} for i in range(count)])
    assert len(lists_of(index).numbers) == count
    probed, probe = [], ivf_search.probe_for_candidates
    monkeypatch.setattr(ivf_search, "probe_for_candidates", lambda *given: probed.append(1) or probe(*given))
    index.search(queries[0], k=1, filter=filter, nprobe=50, candidates=20)
    assert len(probed) == probes


@pytest.mark.parametrize(("slack", "kept"), [(2.0, 12), (0.0, 10), (1e9, 100)])
def test_documents_with_much_worse_sign_codes_than_the_kth_are_not_reranked(slack, kept):
    # The tenth-best score is -9. The standard deviation is 0.7 * sqrt(4) = 1.4, and twice as much leaves out -12.
    scores = np.random.default_rng(0).permutation(-np.arange(100, dtype="float32"))
    documents, parameters = np.arange(1000, 1100), SearchParameters(40, 500, None, slack)
    most = tolerance(np.eye(4, DIM, dtype="float32"), 1, parameters)
    found = keep_near_best(documents, scores, 10, most)
    assert found.tolist() == documents[scores > -kept].tolist()


@pytest.mark.parametrize(("rows", "variance"), [([0, 0, 0, 0], 16), ([0, 1, 2, 3], 4), ([0], 1), ([0, 4], 2 + 2 / 16)])
def test_sign_scores_of_equal_tokens_deviate_together(rows, variance):
    """Four equal tokens have four times the standard deviation of one, four different ones twice as much."""
    vectors = np.eye(5, DIM, dtype="float32")
    vectors[4] = (vectors[0] + vectors[1]) / np.sqrt(2)  # a cosine of 2 ** -0.5, to the power of 8: 1 / 16
    assert product_variance(vectors[rows], DIM, variance_rows(len(rows))) == pytest.approx(variance)
    part = np.concatenate([vectors[rows], np.ones((len(rows), DIM))], axis=1).astype("float32")
    deviation = tolerance(part, 1, SearchParameters(40, 500, None, 1.0))
    assert deviation == pytest.approx(variance**0.5)  # of a part of the dims: 1 in place of 0.7


def test_variance_is_that_of_the_loop():
    vectors = np.random.default_rng(0).standard_normal((7, 40)).astype("float32")
    vectors[3], vectors[5] = vectors[2] * 2 + vectors[3] / 4, 0
    norms = np.sqrt((vectors[:, :32].astype("float64") ** 2).sum(axis=1))
    expected = 0.0
    for a, length in zip(vectors[:, :32].astype("float64"), norms, strict=True):
        for b, other in zip(vectors[:, :32].astype("float64"), norms, strict=True):
            expected += length * other * max(0.0, a @ b / max(length * other, 1e-30)) ** 8
    assert product_variance(vectors, 32, variance_rows(7)) == pytest.approx(expected, rel=1e-5)


def test_with_many_dims_most_documents_are_excluded_by_the_first_128(monkeypatch):
    documents, _ = collection(900, dim=384)
    queries = TokenEmbeddings.from_list([document[:5] for document in documents[::36]])
    index, scored, score = indexes.IVF(), [], ivf_search.sign_scores
    index.add(range(900), documents, metadata=[{"n": i % 2} for i in range(900)])
    index.remove([5, 7, 9])

    def noted(isa, documents, chosen, row_bytes, query, scores):
        scored.append((len(chosen), query[0].shape[1] // 8))
        score(isa, documents, chosen, row_bytes, query, scores)

    monkeypatch.setattr(ivf_search, "sign_scores", noted)
    assert recall(index, queries) >= 0.97
    assert {count for count, words in scored if words == 4} == {897}
    assert all(10 <= count < 450 for count, words in scored if words == 12)
    assert len(scored) == 2 * len(queries)
    assert recall(index, queries, filter="n = 1") >= 0.97
    assert recall(index, queries, rerank=30) >= 0.9


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


def test_snapshots_and_writes_of_several_threads_do_not_wait_for_each_other_forever():
    """The catalog in memory has one lock, which a snapshot holds; loading documents has another."""
    index, finished = indexes.IVF(), []
    index.add(["a", "b"], [np.eye(4)] * 2)

    def call(function):
        for _ in range(60):
            function()
        finished.append(function)

    def read():
        with index.snapshot():
            index.search(np.eye(4), effort="exact")

    works = [read, lambda: index.check(k=1), lambda: index.update("a", np.eye(4)), lambda: index.search(np.eye(4))]
    threads = [threading.Thread(target=call, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sorted(map(id, finished)) == sorted(map(id, works))
