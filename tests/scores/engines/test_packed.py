"""Scores of packed embeddings on each instruction set, against the double loop."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_sides import expected_scores, sides

from latelier.embeddings import TokenEmbeddings
from latelier.scores import colbert_scores
from latelier.scores.engines import int8, one_pass, packed
from latelier.scores.engines.addressed import AddressedDocuments
from naive import ragged

pytestmark = pytest.mark.processor


NUMBERS = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("dim", [1, 3, 8, 96, 130])
@pytest.mark.parametrize("shift", [0.0, 2.0], ids=["mixed", "negative"])
def test_float_kernels_equal_the_double_loop(kernel, dim, shift):
    queries, documents = sides(dim, shift=shift)
    scores = one_pass.maxsim(queries, documents)
    np.testing.assert_allclose(scores, expected_scores(queries, documents), rtol=2e-5, atol=2e-5 * dim)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_the_scores(kernel, threads):
    queries = TokenEmbeddings.from_list(ragged([64], 128))
    documents = TokenEmbeddings.from_list(ragged([200, 0, 1, 300] * 80, 128, seed=1))
    before = torch.get_num_threads()
    alone = one_pass.maxsim(queries, documents), int8.maxsim(queries, documents)
    torch.set_num_threads(threads)
    try:
        np.testing.assert_allclose(one_pass.maxsim(queries, documents), alone[0], rtol=1e-5)
        assert np.array_equal(int8.maxsim(queries, documents), alone[1])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dim", [1, 7, 16, 50, 130])
@pytest.mark.parametrize("documents_type", NUMBERS)
@pytest.mark.parametrize("queries_type", NUMBERS)
def test_every_pair_of_number_types_scores_the_stored_numbers(kernel, queries_type, documents_type, dim):
    queries, documents = sides(dim, query_lengths=(33, 2))  # three registers of query tokens
    queries, documents = queries.to(queries_type), documents.to(documents_type)
    expected = expected_scores(queries, documents)
    np.testing.assert_allclose(one_pass.maxsim(queries, documents), expected, rtol=2e-5, atol=2e-5 * dim)
    listed = colbert_scores(list(queries), list(documents)).numpy()
    np.testing.assert_allclose(listed, expected, rtol=2e-5, atol=2e-5 * dim)


@settings(max_examples=25)
@given(st.integers(1, 70), st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_bfloat16_sums_are_as_exact_as_float32(half_dim, size, seed):
    queries, documents = sides(2 * half_dim, seed=seed)
    queries, documents = (
        TokenEmbeddings(queries.vectors * size, queries.offsets).to("bfloat16"),
        documents.to("bfloat16"),
    )
    real = documents.lengths > 0
    difference = one_pass.maxsim(queries, documents)[:, real] - expected_scores(queries, documents)[:, real]
    longest = max(d.float().norm(dim=1).max() for d in documents if len(d))
    bound = [float(q.float().norm(dim=1).sum() * longest) * 2 * half_dim * 2**-24 for q in queries]
    assert (np.abs(difference) <= np.array(bound)[:, None]).all()


@pytest.mark.parametrize("numbers", NUMBERS)
def test_where_a_token_was_best_is_the_same_for_every_type(kernel, numbers):
    queries, documents = sides(6)
    queries, documents = queries.to(numbers), documents.to(numbers)
    scores = np.empty((len(queries), len(documents)), dtype="float32")
    positions = np.empty((queries.num_tokens, len(documents)), dtype="int32")
    one_pass.score_into(scores, queries, documents, positions)
    flat = queries.to("float32").vectors
    best = [(flat @ d.float().T).argmax(1).tolist() if len(d) else [-1] * len(flat) for d in documents]
    assert positions.T.tolist() == best


def test_long_lists_are_scored_by_and_by(kernel):
    documents = [m.double() for m in ragged([9000, 9000, 0, 5], 4)]  # of a type that has to be copied
    queries = TokenEmbeddings.from_list(ragged([3, 2], 4, seed=1))
    at_once = one_pass.maxsim(queries, TokenEmbeddings.from_list(documents).to("float32"))
    np.testing.assert_allclose(packed.maxsim_list(queries, documents), at_once, rtol=1e-5)
    assert at_once[:, 2].tolist() == [-np.inf, -np.inf]


def test_matrices_are_read_where_they_are():
    whole, other = torch.randn(40, 8), torch.randn(3, 8).half()
    read = AddressedDocuments.of_list([whole[5:9], whole[20:20]])
    assert read.addresses[0] == whole.data_ptr() + 5 * 8 * 4
    assert read.offsets.tolist() == [0, 4, 4]
    assert AddressedDocuments.of_list([other]).row_bytes == 16
    assert AddressedDocuments.of_list([whole.T]) is None
    assert AddressedDocuments.of_list([whole.double()]) is None
    embeddings = TokenEmbeddings(whole.numpy(), [0, 3, 40])
    assert AddressedDocuments.of_packed(embeddings).addresses[1] == whole.data_ptr() + 3 * 8 * 4
    assert AddressedDocuments.of_packed(embeddings.to("int8")).dtype == "float32"


def test_read_only_and_half_precision_documents(kernel):
    queries, documents = sides(16)
    expected = one_pass.maxsim(queries, documents)
    vectors = documents.vectors.numpy()
    vectors.setflags(write=False)
    assert np.array_equal(one_pass.maxsim(queries, TokenEmbeddings(vectors, documents.offsets)), expected)
    half = documents.to("float16")
    np.testing.assert_allclose(one_pass.maxsim(queries, half), expected_scores(queries, half), rtol=2e-5, atol=1e-4)
