"""Scores of binary codes, and reranking by all codes, with kernels and in numpy, against naive loops."""

from dataclasses import replace

import numpy as np
import pytest
from coded_documents import CodedSample

from instructions import forced
from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.kernels.rerank import rerank_scores, round_query
from latelier.indexes.ivf.kernels.signs import sign_scores, sign_units
from latelier.indexes.ivf.layout import BITS
from latelier.indexes.store.segments import Segment
from latelier.kernels.library import supported

pytestmark = pytest.mark.processor
# The last is numpy, whose sums are rounded otherwise.
COMPILED = supported()[:-1]

# Reranking.


def reranked(sample, vectors, most=0):
    """Scores in 8 bits and in single precision, of all documents or of the `most` best so far."""
    scores, highest = np.empty((len(sample.chosen), 2), dtype="float32"), np.full(most, -np.inf, dtype="float32")
    query = sample.codec.rotate(vectors)
    rerank_scores(sample.documents, sample.chosen, sample.codec.shape, *query, highest, scores)
    return scores.T


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [3, 100, 128])
@pytest.mark.parametrize("tokens", [1, 28, 70])
def test_reranking_equals_the_loop(bits, dim, tokens):
    sample = CodedSample(dim, bits)
    vectors = np.random.default_rng(3).standard_normal((tokens, dim)).astype("float32")
    vectors[tokens // 2, dim // 2 :] *= 1e-4  # needs all digits
    rests, leads = sample.codec.rotate(vectors)
    scales, numbers = round_query(rests, leads)
    assert np.abs(numbers * scales[:, None] - rests).max() <= 0.501 * scales.max()
    decoded = sample.decoded()
    both = reranked(sample, vectors)
    for scores, asked in zip(both, (numbers * scales[:, None], rests.astype("float64")), strict=True):
        products = [asked @ decoded[d].T + np.outer(leads, sample.leads[d]) for d in sample.chosen]
        terms = [each.max(axis=1) for each in products]
        # Of terms of both signs, partial sums are rounded that are larger than the score.
        room = np.finfo("float32").eps * max(np.abs(each).sum() for each in terms)
        np.testing.assert_allclose(scores, [sum(each) for each in terms], rtol=3e-6, atol=room)
    rough, best = reranked(sample, vectors, most=3)
    np.testing.assert_array_equal(rough, both[0])
    among = [np.count_nonzero(rough[:n] > rough[n]) < 3 for n in range(len(rough))]
    np.testing.assert_array_equal(best, np.where(among, both[1], np.nan))


@pytest.mark.parametrize("bits", BITS)
def test_instruction_sets_rerank_alike_to_the_last_bit(bits):
    sample = CodedSample(100, bits)
    vectors = np.random.default_rng(4).standard_normal((21, 100)).astype("float32")
    found = []
    for name in COMPILED:
        with forced(name):
            found.append(reranked(sample, vectors))
    for scores in found[1:]:
        np.testing.assert_array_equal(scores, found[0])


# Binary codes.
# Around the 32, 64 and 128 tokens that are compared at a time.
LENGTHS = np.array([1, 2, 31, 32, 33, 64, 65, 96, 97, 128, 129, 300])


class Signs:
    """Documents of random vectors, some with many zeros and negative numbers, and an order to read them in."""

    def __init__(self, dim):
        rng = np.random.default_rng(dim)
        vectors = rng.standard_normal((int(LENGTHS.sum()), dim)).astype("float32")
        vectors[::7] = -np.abs(vectors[::7])
        codec = Codec(1, dim)
        self.codec = codec = replace(codec, codebook=codec.choose_codebook(vectors[::3]))
        arrays = codec.encode(TokenEmbeddings(vectors, np.append(0, LENGTHS.cumsum())))
        cells = codec.codebook[arrays["cells"] >> 4]  # of the signs of which the large ones are taken
        signs = np.unpackbits(arrays["signs"].view("uint8"), axis=1, bitorder="little")[:, :dim] == 1
        self.positive = np.split(np.where(np.abs(cells) >= 18, cells > 0, signs), LENGTHS.cumsum()[:-1])
        numbers = np.arange(len(LENGTHS))
        self._segment = Segment.build(numbers, numbers.tolist(), LENGTHS, arrays)
        self.documents = codec.locate(self._segment)
        self.chosen = rng.permutation(numbers)

    def scores(self, vectors, words):
        scores = np.full(len(self.chosen), np.nan, dtype="float32")
        sign_scores(self.documents, self.chosen, self.codec.shape, vectors, words, scores)
        return scores


def query(tokens, dim):
    vectors = np.random.default_rng(tokens).standard_normal((tokens, dim)).astype("float32")
    vectors[0, ::3] *= 50  # a few large numbers
    return vectors


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("tokens", [1, 21])
@pytest.mark.parametrize(("dim", "words"), [(1, 1), (6, 1), (32, 1), (100, 4), (130, 5), (384, 4), (384, 12)])
def test_scores_of_signs_equal_the_loop(tokens, dim, words):
    sample, vectors = Signs(dim), query(tokens, dim)
    dims = min(dim, 32 * words)
    scores = sample.scores(vectors, words)
    units, rounded = [], []
    for row in vectors[:, :dims].astype("float64"):
        units.append(max(sum(abs(x) for x in row[i : i + 4]) for i in range(0, dims, 4)) / 13.5)
        rounded.append([int(np.floor(x / units[-1] + 0.5)) for x in row])
    rounded = np.array(rounded)
    assert max(np.abs(np.pad(rounded, ((0, 0), (0, -dims % 4)))).reshape(-1, 4).sum(axis=1)) <= 15
    np.testing.assert_allclose(sign_units(vectors[:, :dims]), units)
    for d, score in zip(sample.chosen, scores, strict=True):
        signs = np.where(sample.positive[d][:, :dims], 1, -1)
        total = sum(units[t] * ((signs @ rounded[t]).max() + np.abs(rounded[t]).sum()) for t in range(tokens))
        assert score == pytest.approx(total, rel=1e-5)


def test_instruction_sets_score_signs_alike_to_the_last_bit():
    sample, vectors = Signs(200), query(5, 200)
    found = []
    for name in COMPILED:
        with forced(name):
            found.append(sample.scores(vectors, 7))
    for scores in found[1:]:
        np.testing.assert_array_equal(scores, found[0])


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("size", [1e-45, 1e-30, 3e38])
def test_queries_of_extreme_size_get_scores_that_can_be_sorted(size):
    sample = Signs(32)
    scores = sample.scores(np.full((40, 32), size, dtype="float32"), 1)
    assert not np.isnan(scores).any()
    assert scores.max() < np.inf
