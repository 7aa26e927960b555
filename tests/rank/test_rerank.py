"""Reranking against a naive loop, and the cases in which padding or lengths used to go wrong elsewhere."""

import numpy as np
import pandas
import pytest
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.indexes import Hit
from latelier.rank import rerank
from naive import naive_maxsim, ragged

IDS = [["a", "b", "c"], ["c", 7], []]


def candidates(seed):
    return [ragged([3, 1, 5], seed=seed), ragged([2, 4], seed=seed + 1), []]


def test_scores_and_order_are_those_of_a_naive_loop():
    queries, documents = ragged([4, 2, 3], seed=1), candidates(2)
    ranked = rerank(IDS, queries, documents)
    for query, ids, matrices, hits in zip(queries, IDS, documents, ranked, strict=True):
        expected = {id_: naive_maxsim(query, matrix) for id_, matrix in zip(ids, matrices, strict=True)}
        assert [hit.id for hit in hits] == sorted(expected, key=lambda id_: -expected[id_])
        assert [hit.score for hit in hits] == pytest.approx([expected[hit.id] for hit in hits], abs=1e-5)
    assert ranked[2] == rerank([], [], []) == []
    [[hit]] = rerank([["a"]], [[[1.0, 0.0], [0.0, 1.0]]], [[[[0.5, 0.25], [0.0, 1.0]]]])  # nested lists
    assert (hit, type(hit.score)) == (("a", 1.5), float)
    with pytest.raises(InvalidArgumentError, match="'cuda:99' was asked for"):
        rerank([["a"]], ragged([2]), [ragged([1])], device="cuda:99")


@pytest.mark.parametrize("form", ["list", "packed", "numpy", "padded"])
def test_all_forms_of_embeddings_give_the_same(form):
    queries, documents = ragged([4, 2], seed=1), candidates(2)[:2]
    expected = rerank(IDS[:2], queries, documents)
    if form == "packed":
        queries, documents = TokenEmbeddings.from_list(queries), [TokenEmbeddings.from_list(d) for d in documents]
    elif form == "numpy":
        queries, documents = [q.numpy() for q in queries], [[m.numpy() for m in d] for d in documents]
    elif form == "padded":
        queries = TokenEmbeddings.from_list(queries).pad()[0]
        documents = [TokenEmbeddings.from_list(d).pad()[0] for d in documents]
    # As PyLate is called, and as its results are read.
    ranked = rerank(
        documents_ids=IDS[:2], queries_embeddings=queries, documents_embeddings=documents, device=torch.device("cpu")
    )
    assert [[hit["id"] for hit in hits] for hits in ranked] == [[hit.id for hit in hits] for hits in expected]
    for hits, wanted in zip(ranked, expected, strict=True):
        assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in wanted], abs=1e-5)
    alone = rerank(IDS[:1], queries[0], documents[:1])
    assert [hit.id for hit in alone[0]] == [hit.id for hit in ranked[0]]


def test_a_short_document_with_a_negative_score_is_not_lifted_by_padding():
    query = np.array([[1.0, 0.0]])
    short, long = np.array([[-2.0, 0.0]]), np.array([[-3.0, 0.0], [-3.0, 1.0], [-4.0, 0.0]])
    assert rerank([["long", "short"]], [query], [[long, short]]) == [[Hit("short", -2.0), Hit("long", -3.0)]]


def test_ties_keep_the_given_order_and_k_cuts():
    query, same = np.array([[1.0, 0.0]]), np.array([[0.5, 1.0]])
    better = np.array([[0.75, 0.0]])
    ids = [["z", "a", "best", "m"]]
    ranked = rerank(ids, [query], [[same, same, better, same]])
    assert [hit.id for hit in ranked[0]] == ["best", "z", "a", "m"]
    assert rerank(ids, [query], [[same, same, better, same]], k=2) == [[Hit("best", 0.75), Hit("z", 0.5)]]
    assert len(rerank(ids, [query], [[same, same, better, same]], k=9)[0]) == 4
    many = list(range(100, 0, -1))  # more than a sorting algorithm handles as a special case
    assert [hit.id for hit in rerank([many], [query], [[same, better] * 50])[0]] == many[1::2] + many[::2]


def test_dicts_and_data_frames_come_back_in_order():
    queries = [np.array([[1.0, 0.0]])] * 3
    documents = [[np.array([[0.25, 1.0]]), np.array([[0.5, 0.0]])]] * 3
    found = [{"docid": 7, "year": 1990}, {"docid": 8, "year": 2020}]
    frame = pandas.DataFrame(found, index=["x", "y"])
    ranked, ids, rows = rerank([found, [7, 8], frame], queries, documents)
    assert ranked == [{"docid": 8, "year": 2020, "score": 0.5}, {"docid": 7, "year": 1990, "score": 0.25}]
    assert ids == [(8, 0.5), (7, 0.25)]
    assert rows.to_dict() == {
        "docid": {"y": 8, "x": 7},
        "year": {"y": 2020, "x": 1990},
        "score": {"y": 0.5, "x": 0.25},
    }
    assert found[0] == {"docid": 7, "year": 1990}
    best = rerank([frame.assign(rank=[0, 1])], queries[:1], documents[:1], k=1)[0]
    assert best[["docid", "rank"]].values.tolist() == [[8, 0]]
    assert len(rerank([frame[:0]], queries[:1], [[]])[0]) == 0
    with pytest.raises(InvalidArgumentError, match="query 0 has 2 candidate ids and 1 document embeddings"):
        rerank([frame], queries[:1], [documents[0][:1]])


def test_documents_that_cannot_be_scored():
    with pytest.raises(EmbeddingsError, match="candidate 'empty' of query 0 has no token"):
        rerank([["a", "empty"]], ragged([2]), [ragged([1, 0])])
    with pytest.raises(EmbeddingsError, match="dim"):
        rerank([["a"]], ragged([2], dim=8), [ragged([1], dim=4)])


@pytest.mark.parametrize("form", ["list", "packed", "numpy", "padded"])
@pytest.mark.parametrize("number", [float("nan"), -float("inf")])
def test_numbers_that_are_not_finite_are_named(form, number):
    queries, documents = ragged([4, 2], seed=1), candidates(2)[:2]

    def ranked():
        own, theirs = queries, documents
        if form == "packed":
            own, theirs = TokenEmbeddings.from_list(own), [TokenEmbeddings.from_list(d) for d in theirs]
        elif form == "padded":
            theirs = [TokenEmbeddings.from_list(d).pad()[0] for d in theirs]
        elif form == "numpy":
            own, theirs = [q.numpy() for q in own], [[m.numpy() for m in d] for d in theirs]
        return rerank(IDS[:2], own, theirs)

    kept = documents[1][1].clone()
    documents[1][1][:] = number
    with pytest.raises(EmbeddingsError, match="candidate 7 of query 1 holds NaN"):
        ranked()
    documents[1][1][:] = kept
    assert [hit.id for hit in ranked()[1]] in (["c", 7], [7, "c"])
    queries[1][0, 3] = number
    with pytest.raises(EmbeddingsError, match="query 1 holds NaN"):
        ranked()


def test_scores_beyond_float32_are_named():
    with pytest.raises(EmbeddingsError, match="candidate 'b' of query 0 has no tokens, or a score beyond"):
        rerank([["a", "b"]], [np.full((2, 2), 1e30)], [[np.ones((1, 2)), np.full((1, 2), -1e30)]])
    with pytest.raises(EmbeddingsError, match="candidate 'b' of query 0 has no tokens"):
        rerank([["a", "b"]], ragged([2], dim=2), [np.array([[[1.0, 0.0]], [[0.0, 0.0]]])])
