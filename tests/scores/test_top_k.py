"""top_k against sorting the whole matrix."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.scores import colbert_scores, top_k
from naive import naive_matrix, ragged

pytestmark = pytest.mark.processor


@pytest.mark.parametrize("k", [1, 3, 50])
@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_the_best_of_all_scores_in_blocks_of_any_size(k, block, monkeypatch):
    monkeypatch.setattr("latelier.scores.colbert._BLOCK_SCORES", block)
    queries, documents = ragged([3, 1]), ragged([2, 5, 1, 4, 3, 2, 7, 1, 1, 2], seed=1)
    scores, positions = top_k(queries, documents, k)
    expected = torch.from_numpy(naive_matrix(queries, documents)).sort(dim=1, descending=True)
    assert positions.tolist() == expected.indices[:, :k].tolist()
    torch.testing.assert_close(scores.double(), expected.values[:, :k], rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_scores_that_are_not_a_number_come_last(k):
    documents = [[[0.5]], [[np.nan]], [[-2.0]], [[np.nan]], [[1.0]]]
    scores, positions = top_k([[[1.0]], [[0.25]]], documents, k, backend="torch")
    assert positions.tolist() == [[4, 0, 2, 1, 3][:k]] * 2
    assert not scores.isnan().any()
    [row] = top_k([[[np.nan]]], documents, k)[1].tolist()
    assert row == [0, 1, 2, 3, 4][:k]


@settings(max_examples=50)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 4))
def test_equal_scores_in_blocks_are_one_stable_sort(scores, k, block):
    documents = [[[float(score)]] for score in scores]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latelier.scores.colbert._BLOCK_SCORES", block)
        found, positions = top_k([[[1.0]]], documents, k)
    order = np.argsort(-np.array(scores), kind="stable")[:k]
    assert positions[0].tolist() == order.tolist()
    assert found[0].tolist() == [scores[i] for i in order]
