"""Scores by the kernels on each instruction set that this processor supports, against the double loop."""

import numpy as np
import pytest
import torch

from instructions import forced
from latelier.embeddings import TokenEmbeddings
from latelier.scores import colbert_kd_scores, colbert_scores
from naive import naive_matrix, ragged

pytestmark = pytest.mark.processor

LENGTHS = [0, 1, 2, 7, 8, 9, 16, 33, 0, 5]
NUMBERS = ["float32", "float16", "bfloat16"]


def sides(dim, query_lengths=(5, 0, 1, 17, 32), seed=0, shift=0.0):
    queries = TokenEmbeddings.from_list(ragged(query_lengths, dim, seed, shift=shift))
    return queries, TokenEmbeddings.from_list(ragged(LENGTHS, dim, seed + 1, shift=-shift))


def naive(queries, documents):
    return naive_matrix(list(queries), list(documents))


def score(queries, documents, backend="packed"):
    return colbert_scores(queries, documents, backend=backend).numpy()


@pytest.mark.parametrize("dim", [1, 3, 8, 96, 130])
@pytest.mark.parametrize("shift", [0.0, 2.0], ids=["mixed", "negative"])
def test_kernels_equal_the_double_loop(kernel, dim, shift):
    queries, documents = sides(dim, shift=shift)
    np.testing.assert_allclose(score(queries, documents), naive(queries, documents), rtol=2e-5, atol=2e-5 * dim)
    queries, documents = queries.to("int8"), documents.to("int8")
    found = score(queries, documents, "int8")
    np.testing.assert_allclose(found, naive(queries, documents), rtol=2e-6, atol=2e-6 * dim)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_do_not_change_the_scores(kernel, threads):
    queries = TokenEmbeddings.from_list(ragged([64], 128))
    documents = TokenEmbeddings.from_list(ragged([200, 0, 1, 300] * 80, 128, seed=1))
    before = torch.get_num_threads()
    alone = score(queries, documents), score(queries, documents, "int8")
    torch.set_num_threads(threads)
    try:
        np.testing.assert_allclose(score(queries, documents), alone[0], rtol=1e-5)
        assert np.array_equal(score(queries, documents, "int8"), alone[1])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dim", [1, 16, 50, 130])
@pytest.mark.parametrize("documents_type", NUMBERS)
@pytest.mark.parametrize("queries_type", NUMBERS)
def test_every_pair_of_number_types_scores_the_stored_numbers(kernel, queries_type, documents_type, dim):
    queries, documents = sides(dim, query_lengths=(33, 2))  # three registers of query tokens
    queries, documents = queries.to(queries_type), documents.to(documents_type)
    expected = naive(queries, documents)
    np.testing.assert_allclose(score(queries, documents), expected, rtol=2e-5, atol=2e-5 * dim)
    np.testing.assert_allclose(score(list(queries), list(documents)), expected, rtol=2e-5, atol=2e-5 * dim)


def test_every_float16_keeps_its_value(kernel):
    halves = np.arange(1 << 16, dtype="uint16").view("float16")
    halves = halves[np.isfinite(halves)]
    documents = TokenEmbeddings(halves[:, None], np.arange(len(halves) + 1))
    assert np.array_equal(score([[[1.0]]], documents)[0], halves.astype("float32"))


def test_long_lists_of_a_type_that_is_copied(kernel):
    documents = [m.double() for m in ragged([9000, 9000, 0, 5], 4)]
    queries = TokenEmbeddings.from_list(ragged([3, 2], 4, seed=1))
    at_once = score(queries, TokenEmbeddings.from_list(documents).to("float32"))
    np.testing.assert_allclose(score(queries, documents), at_once, rtol=1e-5)
    assert at_once[:, 2].tolist() == [-np.inf, -np.inf]


def test_int8_scores_agree_to_the_last_bit(kernel):
    queries, documents = sides(128)
    found = score(queries, documents, "int8")
    with forced("numpy"):
        assert np.array_equal(found, score(queries, documents, "int8"))


def test_auto_takes_integers_for_int8_documents_only():
    queries, documents = sides(128)
    small = documents.to("int8")
    whole = score(queries, small, "int8")
    assert np.array_equal(score(queries, small, "auto"), whole)
    assert np.array_equal(score(queries, documents, "auto"), score(queries, documents))
    assert np.array_equal(score(queries, documents, "int8"), whole)
    grouped = colbert_kd_scores(queries, small, backend="int8")
    assert grouped.tolist() == [whole[i, 2 * i : 2 * i + 2].tolist() for i in range(5)]


def test_scales_may_require_a_gradient():
    queries, documents = sides(128)
    small = documents.to("int8")
    tracked = TokenEmbeddings(small.vectors, small.offsets, small.scales.clone().requires_grad_())
    assert np.array_equal(score(queries, tracked, "int8"), score(queries, small, "int8"))
