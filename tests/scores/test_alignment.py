"""Alignment: the terms of one score, against a naive loop."""

import numpy as np
import pytest
import torch

from latelier.errors import EmbeddingsError
from latelier.scores.topk import align
from naive import naive_maxsim, ragged

pytestmark = pytest.mark.processor


@pytest.mark.parametrize(("queries", "tokens"), [(1, 1), (4, 7), (32, 3)])
def test_positions_and_similarities_are_those_of_a_loop(queries, tokens):
    query, document = ragged([queries, tokens], seed=queries)
    positions, similarities, matrix = align(query, document)
    for i in range(queries):
        row = [float(query[i] @ token) for token in document]
        assert matrix[i].tolist() == pytest.approx(row, abs=1e-5)
        assert positions[i] == row.index(max(row))
        assert similarities[i] == pytest.approx(max(row), abs=1e-5)
    assert similarities.sum() == pytest.approx(naive_maxsim(query, document), abs=1e-4)


def test_of_equal_tokens_the_first_is_taken():
    assert align(np.ones((1, 2)), np.ones((3, 2))).positions.tolist() == [0]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_views_and_matrices_of_numpy_are_aligned_by_their_numbers():
    query, document = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[-0.5, -1.0], [0.5, 0.25]])
    for made in (torch._neg_view(-torch.from_numpy(query)), np.matrix(query)):
        alignment = align(made, np.matrix(document))
        assert (alignment.positions.tolist(), alignment.similarities.tolist()) == ([1, 1], [0.5, 0.25])


def test_kinds_and_dtypes_mix():
    query = torch.eye(2, dtype=torch.bfloat16, requires_grad=True)
    alignment = align(query, np.array([[0.0, 2.0], [1.0, 0.0]], dtype="float16"))
    assert alignment.positions.tolist() == [1, 0]
    assert alignment.similarities.tolist() == [1.0, 2.0]
    assert (alignment.positions.dtype, alignment.similarities.dtype) == (np.int64, np.float32)


def test_a_query_without_tokens_has_nothing_to_align():
    alignment = align(np.zeros((0, 2)), np.ones((3, 2)))
    assert (alignment.positions.tolist(), alignment.similarities.tolist()) == ([], [])


@pytest.mark.parametrize(
    ("query", "document", "message"),
    [
        (np.ones((1, 2)), np.ones((1, 3)), "the query has dim 2, the document 3"),
        (np.ones((1, 2)), np.ones((0, 2)), "the document has no token"),
        (np.ones(2), np.ones((1, 2)), r"a query of type ndarray and shape \(2,\)"),
        (np.ones((1, 2)), [[1.0, 2.0]], "a document of type list and shape None"),
    ],
)
def test_matrices_that_cannot_be_aligned(query, document, message):
    with pytest.raises(EmbeddingsError, match=message):
        align(query, document)
