"""Scores of binary codes, and reranking by all codes, against naive loops, for each instruction set."""

from dataclasses import replace

import numpy as np
import pytest
from coded_documents import CodedSample

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.kernels.centroids import quantise_query
from latelier.indexes.ivf.kernels.rerank import rerank_scores
from latelier.indexes.ivf.kernels.signs import fill_sign_tables, round_to_integers, sign_scores
from latelier.indexes.ivf.layout import BITS, sign_words
from latelier.indexes.store.segments import Segment
from latelier.kernels.multiply import supported

pytestmark = pytest.mark.processor

# Reranking.


def reranked(isa, sample, vectors, most=0):
    """Scores in 8 bits and in single precision, of all documents or of the `most` best so far."""
    scores, highest = np.empty((len(sample.chosen), 2), dtype="float32"), np.full(most, -np.inf, dtype="float32")
    documents, shape = tuple(sample.documents), tuple(sample.codec.shape)
    rerank_scores(isa.argument, documents, sample.chosen, shape, *sample.codec.rotate(vectors), highest, scores)
    return scores.T


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [3, 100, 128])
@pytest.mark.parametrize("tokens", [1, 28, 70])
def test_reranking_equals_the_loop(isa, bits, dim, tokens):
    sample = CodedSample(dim, bits)
    vectors = np.random.default_rng(3).standard_normal((tokens, dim)).astype("float32")
    rests, leads = sample.codec.rotate(vectors)
    query, decoded = quantise_query(rests, leads), sample.decoded()
    rounded = query.digits[0, :, :dim].astype("float64") * query.scales[:, None]
    both = reranked(isa, sample, vectors)
    for scores, asked in zip(both, (rounded, rests.astype("float64")), strict=True):
        products = [asked @ decoded[d].T + np.outer(leads, sample.leads[d]) for d in sample.chosen]
        terms = [each.max(axis=1) for each in products]
        # Of terms of both signs, partial sums are rounded that are larger than the score.
        room = np.finfo("float32").eps * max(np.abs(each).sum() for each in terms)
        np.testing.assert_allclose(scores, [sum(each) for each in terms], rtol=3e-6, atol=room)
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
        self.chosen, self.row_bytes = rng.permutation(numbers), 4 * sign_words(dim)

    def scores(self, isa, tables):
        scores = np.full(len(self.chosen), np.nan, dtype="float32")
        masks = self.codec.cells.masks
        sign_scores(isa.argument, tuple(self.documents), self.chosen, self.row_bytes, masks, tuple(tables), scores)
        return scores


def query(tokens, dim):
    vectors = np.random.default_rng(tokens).standard_normal((tokens, dim)).astype("float32")
    vectors[0, ::3] *= 50  # a few large numbers
    return vectors


def rounded_to(words, vectors):
    integers, units = np.zeros((len(vectors), 32 * words), "int8"), np.empty(len(vectors), "float32")
    round_to_integers(vectors, integers, units)
    return integers, units


def tables_of(vectors, words):
    integers, units = rounded_to(words, vectors)
    tables = np.zeros((-(-len(vectors) // 2), 8 * words, 2, 32), "uint8")
    fill_sign_tables(integers, tables)
    return tables, units


@pytest.mark.parametrize("dim", [1, 6, 32, 128, 130, 384])
def test_integers_are_the_rounded_numbers(dim):
    vectors = query(3, dim)
    for words in {1, sign_words(dim)}:
        integers, units = rounded_to(words, vectors)
        for row, rounded, unit in zip(vectors[:, : 32 * words].astype("float64"), integers, units, strict=True):
            sums = [sum(abs(x) for x in row[i : i + 4]) for i in range(0, len(row), 4)]
            assert unit == pytest.approx(max(sums) / 13.5)
            np.testing.assert_allclose(rounded[: len(row)] * float(unit), row, atol=0.5001 * unit)
            assert not rounded[len(row) :].any()
            assert max(np.abs(rounded.astype(int)).reshape(-1, 4).sum(axis=1)) <= 15


@pytest.mark.parametrize("tokens", [1, 21])
@pytest.mark.parametrize(("dim", "words"), [(1, 1), (100, 4), (130, 5), (384, 4)])
def test_scores_equal_the_loop(isa, tokens, dim, words):
    sample, vectors = Signs(dim), query(tokens, dim)
    scores = sample.scores(isa, tables_of(vectors, words))
    (rounded, units), dims = rounded_to(words, vectors), min(dim, 32 * words)
    rounded = rounded[:, :dims].astype(int)
    for d, score in zip(sample.chosen, scores, strict=True):
        signs = np.where(sample.positive[d][:, :dims], 1, -1)
        total = sum(units[t] * ((signs @ rounded[t]).max() + np.abs(rounded[t]).sum()) for t in range(tokens))
        assert score == pytest.approx(total, rel=1e-5)


def test_instruction_sets_score_alike_to_the_last_bit(isa):
    sample, tables = Signs(200), tables_of(query(5, 200), 7)
    np.testing.assert_array_equal(sample.scores(isa, tables), sample.scores(supported()[-1], tables))


@pytest.mark.parametrize("size", [1e-45, 1e-30, 3e38])
def test_queries_of_extreme_size_get_scores_that_can_be_sorted(isa, size):
    sample = Signs(32)
    vectors = np.full((40, 32), size, dtype="float32")
    scores = sample.scores(isa, tables_of(vectors, 1))
    assert not np.isnan(scores).any()
    assert scores.max() < np.inf
