"""Scores of int8 codes against the double loop, and how far they may be from float scores."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_sides import expected_scores, sides

from latelier.embeddings import TokenEmbeddings
from latelier.kernels.instruction_sets import supported
from latelier.scores import colbert_kd_scores, colbert_scores
from latelier.scores.engines import int8, packed
from naive import ragged

pytestmark = pytest.mark.processor


@pytest.mark.parametrize("dim", [1, 3, 8, 96, 130])
@pytest.mark.parametrize("shift", [0.0, 2.0], ids=["mixed", "negative"])
def test_int8_kernels_equal_the_double_loop_over_the_scaled_codes(kernel, dim, shift):
    queries, documents = (side.to("int8") for side in sides(dim, shift=shift))
    scores = int8.maxsim(queries, documents)
    np.testing.assert_allclose(scores, expected_scores(queries, documents), rtol=2e-6, atol=2e-6 * dim)


def test_int8_kernels_agree_to_the_last_bit(monkeypatch):
    queries, documents = sides(128)
    scores = []
    for isa in supported():
        monkeypatch.setenv("LATELIER_KERNELS", isa.name)
        scores.append(int8.maxsim(queries, documents))
        assert np.array_equal(scores[-1], scores[0])


@settings(max_examples=25)
@given(st.integers(1, 40), st.floats(0.01, 100), st.integers(0, 1000))
def test_int8_scores_stay_within_the_stated_bound(dim, size, seed):
    queries, documents = sides(dim, seed=seed)
    queries = TokenEmbeddings(queries.vectors * size, queries.offsets)
    real = np.ix_(queries.lengths > 0, documents.lengths > 0)
    difference = np.abs(int8.maxsim(queries, documents)[real] - packed.maxsim(queries, documents)[real])
    assert (difference <= error_bound(queries, documents)[real] * (1 + 1e-4) + 1e-5).all()


def test_the_bound_is_of_the_right_size():
    unit = [torch.nn.functional.normalize(m, dim=1) for m in ragged([32], 128)]
    queries = TokenEmbeddings.from_list(unit)
    # By Cauchy-Schwarz sqrt(128) / 254 from each side if every number were at its worst; codes use their range better.
    assert 32 * 0.02 < error_bound(queries, queries)[0, 0] < 32 * 2 * np.sqrt(128) / 254


def test_auto_takes_integers_for_int8_documents_only():
    queries, documents = sides(128)
    small = documents.to("int8")
    assert np.array_equal(colbert_scores(queries, small).numpy(), int8.maxsim(queries, small))
    assert np.array_equal(colbert_scores(queries, documents).numpy(), packed.maxsim(queries, documents))
    forced = colbert_scores(queries, documents, backend="int8").numpy()
    assert np.array_equal(forced, int8.maxsim(queries, small))
    grouped = colbert_kd_scores(queries, small[:], backend="int8")
    everything = int8.maxsim(queries, small)
    assert grouped.tolist() == [everything[i, 2 * i : 2 * i + 2].tolist() for i in range(5)]


def test_scales_may_require_a_gradient():
    queries, documents = sides(128)
    small = documents.to("torch").to("int8")
    tracked = TokenEmbeddings(small.vectors, small.offsets, small.scales.clone().requires_grad_())
    assert np.array_equal(int8.maxsim(queries, tracked), int8.maxsim(queries, small))


def error_bound(queries, documents):
    """Return how far int8 scores can be from float scores, at most.

    For a query token ``q = s c + e`` with ``|e_i| <= s / 2``, and the same for documents:
    ``|<q, d> - <q', d'>| <= |q| |e_d| + |e_q| |d| + |e_q| |e_d|`` with ``|e| <= s sqrt(dim) / 2``. A maximum is off by
    no more than the worst of its terms, a sum by no more than their sum.
    """
    (norm_q, error_q), (norm_d, error_d) = (_token_errors(side) for side in (queries, documents))
    worst = [(norm_d[a:b].max(initial=0), error_d[a:b].max(initial=0)) for a, b in _ranges(documents)]
    bound = np.zeros((len(queries), len(documents)))
    for i, (a, b) in enumerate(_ranges(queries)):
        for j, (norm, error) in enumerate(worst):
            bound[i, j] = (norm_q[a:b] * error + error_q[a:b] * norm + error_q[a:b] * error).sum()
    return bound


def _token_errors(embeddings):
    """Length of each token, and of the largest error that its quantisation can make."""
    vectors = embeddings.to("float32").to("numpy").vectors.astype("float64")
    scales = np.abs(vectors).max(axis=1, initial=0) / 127
    return np.linalg.norm(vectors, axis=1), scales * np.sqrt(embeddings.dim) / 2


def _ranges(embeddings):
    return list(zip(embeddings.offsets[:-1].tolist(), embeddings.offsets[1:].tolist(), strict=True))
