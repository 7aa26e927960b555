"""Reranking for each instruction set: against naive loops, and against each other."""

import numpy as np
import pytest
from coded_documents import LENGTHS, CodedSample

from latelier.indexes.ivf.kernels.centroids import quantise_query
from latelier.indexes.ivf.kernels.rerank import rerank_scores
from latelier.indexes.ivf.layout import BITS
from latelier.kernels.multiply import supported

pytestmark = pytest.mark.processor


def reranked(isa, sample, vectors, most=0):
    """Scores in 8 bits and in single precision, of all documents or of the `most` best so far."""
    scores, highest = np.empty((len(sample.chosen), 2), dtype="float32"), np.full(most, -np.inf, dtype="float32")
    documents, shape = tuple(sample.documents), tuple(sample.codec.shape)
    rerank_scores(isa.argument, documents, sample.chosen, shape, vectors, highest, scores)
    return scores.T


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [3, 64, 100, 128])
@pytest.mark.parametrize("tokens", [1, 7, 16, 28, 70])
def test_reranking_equals_the_loop(isa, bits, dim, tokens):
    sample = CodedSample(dim, bits)
    vectors = np.random.default_rng(3).standard_normal((tokens, dim)).astype("float32")
    query, decoded = quantise_query(vectors), sample.decoded()
    rounded = query.digits[0, :, :dim].astype("float64") * query.scales[:, None]
    both = reranked(isa, sample, vectors)
    for scores, asked in zip(both, (rounded, vectors.astype("float64")), strict=True):
        wanted = [sum((asked @ decoded[d].T).max(axis=1)) for d in sample.chosen]
        np.testing.assert_allclose(scores, wanted, rtol=3e-6, atol=1e-5)
    rough, best = reranked(isa, sample, vectors, most=3)
    np.testing.assert_array_equal(rough, both[0])
    among = [np.count_nonzero(rough[:n] > rough[n]) < 3 for n in range(len(rough))]
    np.testing.assert_array_equal(best, np.where(among, both[1], np.nan))


@pytest.mark.parametrize("bits", BITS)
def test_instruction_sets_rerank_alike_to_the_last_bit(bits):
    sample = CodedSample(100, bits)
    vectors = np.random.default_rng(4).standard_normal((21, 100)).astype("float32")
    first, *others = (reranked(isa, sample, vectors) for isa in supported())
    for scores in others:
        np.testing.assert_array_equal(scores, first)


def test_scores_are_those_of_all_products_with_all_digits(isa):
    """To the last bit, also if the tokens of a document are so similar that 8 bits do not tell which is best."""
    sample = CodedSample(64)
    codes, rng = sample.arrays["codes"], np.random.default_rng(5)
    codes[:] = rng.integers(10, 240, 64) + rng.integers(-1, 2, codes.shape)
    sample.arrays["scales"][:] = sample.arrays["scales"][0]
    vectors = rng.standard_normal((70, 64)).astype("float32")
    vectors[3] = 0
    query, unit = quantise_query(vectors), np.float32(1 / 254)
    scale = (sample.arrays["scales"][:1].astype("uint32") << 15).view("float32")[0]
    sums = (codes.astype("int64") - 128) @ query.digits.astype("int64").transpose(0, 2, 1)
    values = sums[2].astype("float32")
    for digit in (1, 0):
        values = values * unit + sums[digit].astype("float32")
    values *= scale
    first = np.append(0, LENGTHS.cumsum())
    for d, score in zip(sample.chosen, reranked(isa, sample, vectors)[1], strict=True):
        total = np.float32(0)
        for best, own in zip(values[first[d] : first[d + 1]].max(axis=0), query.scales, strict=True):
            total += best * own
        assert score == total
