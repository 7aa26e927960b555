"""MaxSim of sign codes, and the tables of a query, against naive loops; for each instruction set, and between them."""

import numpy as np
import pytest

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.kernels.signs import fill_sign_tables, round_to_integers, sign_scores
from latelier.indexes.ivf.layout import sign_words
from latelier.indexes.store.segments import Segment
from latelier.kernels.multiply import INSTRUCTION_SETS, supported

pytestmark = pytest.mark.processor

# Around the 32, 64 and 128 tokens that are compared at a time.
LENGTHS = np.array([1, 2, 31, 32, 33, 64, 65, 96, 97, 128, 129, 300])


class Signs:
    """Documents of random vectors, some with many zeros and negative numbers, and an order to read them in."""

    def __init__(self, dim):
        rng = np.random.default_rng(dim)
        vectors = rng.standard_normal((int(LENGTHS.sum()), dim)).astype("float32")
        vectors[::7] = -np.abs(vectors[::7])
        arrays = Codec(1, dim).encode(TokenEmbeddings(vectors, np.append(0, LENGTHS.cumsum())))
        self.positive = np.split(vectors >= 0, LENGTHS.cumsum()[:-1])
        numbers = np.arange(len(LENGTHS))
        self._segment = Segment.build(numbers, numbers.tolist(), LENGTHS, arrays)
        self.documents = Codec(1, dim).locate(self._segment)
        self.chosen, self.row_bytes = rng.permutation(numbers), 4 * sign_words(dim)

    def scores(self, isa, tables):
        scores = np.full(len(self.chosen), np.nan, dtype="float32")
        sign_scores(isa.argument, tuple(self.documents), self.chosen, self.row_bytes, tuple(tables), scores)
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


def test_tables_hold_the_products_with_all_signs():
    integers, (tables, _) = rounded_to(3, query(3, 96))[0], tables_of(query(3, 96), 3)
    assert tables.max() <= 30
    for t in range(3):
        for g in range(24):
            four = integers[t, 4 * g : 4 * g + 4].astype(int)
            for position in range(16):
                signs = [1 if position >> b & 1 else -1 for b in range(4)]
                entry = np.dot(four, signs) + np.abs(four).sum()
                assert tables[t // 2, g, t % 2, [position, position + 16]].tolist() == [entry, entry]
    assert not tables[1, :, 1].any()  # no token


@pytest.mark.parametrize("tokens", [1, 2, 21])
@pytest.mark.parametrize(("dim", "words"), [(1, 1), (32, 1), (100, 4), (128, 4), (130, 5), (384, 12), (384, 4)])
def test_scores_equal_the_loop(isa, tokens, dim, words):
    sample, vectors = Signs(dim), query(tokens, dim)
    scores = sample.scores(isa, tables_of(vectors, words))
    (rounded, units), dims = rounded_to(words, vectors), min(dim, 32 * words)
    rounded = rounded[:, :dims].astype(int)
    for d, score in zip(sample.chosen, scores, strict=True):
        signs = np.where(sample.positive[d][:, :dims], 1, -1)
        total = sum(units[t] * ((signs @ rounded[t]).max() + np.abs(rounded[t]).sum()) for t in range(tokens))
        assert score == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_instruction_sets_score_alike_to_the_last_bit(name):
    isa = INSTRUCTION_SETS[name]
    if not isa.is_supported:
        pytest.skip(f"this processor does not support {name}")
    sample, tables = Signs(200), tables_of(query(5, 200), 7)
    np.testing.assert_array_equal(sample.scores(isa, tables), sample.scores(supported()[-1], tables))


@pytest.mark.parametrize("size", [1e-45, 1e-30, 3e38])
def test_queries_of_extreme_size_get_scores_that_can_be_sorted(isa, size):
    sample = Signs(32)
    vectors = np.full((40, 32), size, dtype="float32")
    scores = sample.scores(isa, tables_of(vectors, 1))
    assert not np.isnan(scores).any()
    assert scores.max() < np.inf
