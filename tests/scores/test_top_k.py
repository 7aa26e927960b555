"""top_k against sorting the whole matrix."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.scores import colbert, colbert_scores, top_k
from latelier.scores.topk import TopK
from naive import naive_matrix, ragged

pytestmark = pytest.mark.processor


@pytest.mark.parametrize("k", [1, 3, 50])
@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_the_best_of_all_scores_in_blocks_of_any_size(k, block, monkeypatch):
    monkeypatch.setattr(colbert, "_BLOCK_SCORES", block)
    queries, documents = ragged([3, 1]), ragged([2, 5, 1, 4, 3, 2, 7, 1, 1, 2], seed=1)
    scores, positions = top_k(queries, documents, k)
    expected = torch.from_numpy(naive_matrix(queries, documents)).sort(dim=1, descending=True)
    assert positions.tolist() == expected.indices[:, :k].tolist()
    torch.testing.assert_close(scores.double(), expected.values[:, :k], rtol=1e-5, atol=1e-5)


def test_of_equal_scores_the_earlier_document_comes_first():
    document = torch.ones(1, 4)
    assert top_k([document], [document] * 5, 3)[1].tolist() == [[0, 1, 2]]


def test_masks_int8_and_gradients_are_handled_as_in_colbert_scores():
    queries, documents = torch.randn(2, 3, 8, requires_grad=True), torch.randn(5, 4, 8)
    mask = torch.rand(5, 4) > 0.4
    scores, positions = top_k(queries, documents, 2, documents_mask=mask)
    everything = colbert_scores(queries.detach(), documents, documents_mask=mask)
    assert positions.tolist() == everything.topk(2).indices.tolist()
    assert not scores.requires_grad
    small = TokenEmbeddings.from_list(list(documents)).to("int8")
    scores, _ = top_k(queries.detach(), small, 1)
    assert scores[:, 0].tolist() == colbert_scores(queries.detach(), small).amax(1).tolist()


def test_no_documents_and_no_queries():
    some, none = ragged([2]), TokenEmbeddings.from_list([], dim=8)
    assert [tuple(t.shape) for t in top_k(some, none, 3)] == [(1, 0), (1, 0)]
    assert [tuple(t.shape) for t in top_k(none, some, 3)] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_k_has_to_be_a_positive_integer(k):
    with pytest.raises(InvalidArgumentError, match=f"received k={k}; expected an integer of at least 1"):
        top_k(ragged([2]), ragged([2]), k)


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_scores_that_are_not_a_number_come_last(k):
    documents = [[[0.5]], [[np.nan]], [[-2.0]], [[np.nan]], [[1.0]]]
    scores, positions = top_k([[[1.0]], [[0.25]]], documents, k, backend="torch")
    assert positions.tolist() == [[4, 0, 2, 1, 3][:k]] * 2
    assert not scores.isnan().any()
    [row] = top_k([[[np.nan]]], documents, k)[1].tolist()
    assert row == [0, 1, 2, 3, 4][:k]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(-3, 3), max_size=6), max_size=6),
    st.integers(1, 5),
)
def test_the_running_top_k_equals_one_stable_sort(blocks, k):
    best = TopK(1, k)
    start = 0
    for block in blocks:
        best.add(np.array([block], dtype="float32"), np.arange(start, start + len(block)))
        start += len(block)
    scores = np.array([*itertools.chain(*blocks)], dtype="float32")
    order = np.argsort(-scores, kind="stable")[:k]
    assert best.numbers[0].tolist() == order.tolist()
    assert best.scores[0].tolist() == scores[order].tolist()
