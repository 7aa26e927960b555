"""The first searches of a process, by numpy: the same documents as by the kernels, and which search takes which."""

import numpy as np
import pytest

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.code_layout import BITS, sign_words
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.kernels.sign_scores import sign_scores
from latelier.indexes.ivf.kernels.sign_tables import make_sign_tables
from latelier.indexes.ivf.sign_integers import round_to_integers
from latelier.indexes.ivf.uncompiled import decode_by_numpy, search_by_numpy, sign_scores_by_numpy
from latelier.indexes.storage.segments import Part, Segment
from latelier.kernels.first_use import FirstUse
from latelier.kernels.instruction_sets import instruction_set


def sample(bits, dim, documents=300):
    rng = np.random.default_rng(dim)
    lengths = rng.integers(1, 9, documents)
    embeddings = TokenEmbeddings(
        rng.standard_normal((lengths.sum(), dim), dtype="float32"), np.concatenate([[0], np.cumsum(lengths)])
    )
    codec, numbers = Codec(bits, dim), np.arange(documents) * 2
    segment = Segment.build(numbers, numbers.tolist(), lengths, codec.encode(embeddings))
    return codec, Part(segment, np.flatnonzero(rng.random(documents) < 0.9))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [5, 32, 96, 128])
def test_numpy_reads_codes_as_the_kernels_do(bits, dim):
    codec, part = sample(bits, dim)
    segment = Segment({**part.segment.arrays, "scales": part.segment.arrays["scales"].copy()}, dim)
    segment.arrays["scales"][:3] = 0xFF00, 0xFF80, 0xFFFF  # infinity and NaN of a damaged file
    for one in (part, Part(segment, part.positions)):
        assert decode_by_numpy(one, codec) == codec.decode(one)


@pytest.mark.parametrize(("dim", "words"), [(5, 1), (32, 1), (128, 4), (384, 4), (384, 12)])
def test_numpy_scores_sign_codes_as_the_kernels_do(dim, words):
    codec, part = sample(8, dim)
    vectors = np.random.default_rng(1).standard_normal((19, dim), dtype="float32")
    vectors[3] = 0
    query = round_to_integers(vectors, words)
    scores = np.empty(len(part.positions), dtype="float32")
    isa, documents, tables = instruction_set().argument, codec.locate(part.segment), make_sign_tables(query.integers)
    row_bytes = 4 * sign_words(dim)
    sign_scores(isa, tuple(documents), part.positions, row_bytes, (tables, query.units), scores)
    np.testing.assert_allclose(sign_scores_by_numpy(part, query), scores, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        indexes.Flat,
        lambda: indexes.Flat(dtype="float16"),
        *[lambda bits=bits: indexes.IVF(nbits=bits) for bits in BITS],
    ],
)
def test_numpy_finds_what_the_kernels_find(make, monkeypatch):
    """In two segments, with removed documents and with a filter."""
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((n, 48), dtype="float32") for n in rng.integers(1, 12, 700)]
    queries = [matrices[i][:5] + rng.standard_normal((len(matrices[i][:5]), 48), dtype="float32") for i in (3, 600)]
    with make() as index:
        index.add(range(400), matrices[:400], metadata=[{"even": i % 2 == 0} for i in range(400)])
        index.add(range(400, 700), matrices[400:], metadata=[{"even": i % 2 == 0} for i in range(300)])
        index.remove(list(range(0, 700, 7)))
        for arguments in ({}, {"filter": "even = ?", "parameters": (1,)}, {"k": 1000}):
            expected = index.search(queries, **arguments)
            with monkeypatch.context() as patch:
                patch.setattr(type(index), "_first_use", FirstUse(most_work=1 << 60))
                found = index.search(queries, **arguments)
            for mine, theirs in zip(found, expected, strict=True):
                assert [hit.id for hit in mine] == [hit.id for hit in theirs]
                np.testing.assert_allclose(
                    [hit.score for hit in mine], [hit.score for hit in theirs], rtol=1e-6, atol=1e-4
                )


def test_search_parameters_hold_for_numpy():
    codec, part = sample(4, 32)
    vectors = np.random.default_rng(1).standard_normal((4, 32), dtype="float32")
    choose = indexes.ivf.index.choose_search_parameters
    scores, numbers = search_by_numpy([part], codec, vectors, 5, choose(5, 32, "balanced", rerank=5))
    sign_scores = sign_scores_by_numpy(part, round_to_integers(vectors, 1))
    best = np.sort(np.argsort(-sign_scores, kind="stable")[:5])
    assert set(numbers) == set(part.segment.numbers[part.positions[best]])
    assert (np.diff(scores) <= 0).all()


def test_kernels_answer_large_searches_at_once_and_others_once_they_are_ready():
    first_use, prepared = FirstUse(most_work=10), []
    assert not first_use.is_over(10, lambda: prepared.append(1))
    assert prepared == []  # a process that searches once compiles nothing
    assert not first_use.is_over(10, lambda: prepared.append(2))
    first_use.wait()
    assert prepared == [2]
    assert first_use.is_over(1, lambda: prepared.append(3))
    large = FirstUse(most_work=10)
    assert large.is_over(11, lambda: prepared.append(4))
    assert large.is_over(1, lambda: prepared.append(5))
    assert prepared == [2]


def test_an_error_of_the_kernels_is_raised_by_the_next_search(monkeypatch):
    index = indexes.IVF()
    index.add(["a"], [np.eye(4)])
    monkeypatch.setattr(indexes.IVF, "_first_use", FirstUse(most_work=1 << 60))
    monkeypatch.setattr(indexes.IVF, "_search_by_kernels", lambda *arguments: 1 / 0)
    for _ in range(2):
        assert index.search(np.eye(4))[0][0].id == "a"
    index._first_use.wait()
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        index.search(np.eye(4))
