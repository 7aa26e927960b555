"""The first searches of a process, by numpy: the same documents as by the kernels, and which search takes which."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.layout import BITS
from latelier.indexes.ivf.uncompiled import hamming_scores_by_numpy, search_by_numpy
from latelier.indexes.store.segments import Part, Segment
from latelier.kernels.threads import KernelWarmUp


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
        assert codec.decode_by_numpy(one) == codec.decode(one)


def naive_hamming_scores(part, signs, norms):
    """Minus the sum over query tokens of norm * (least number of differing bits), one bit after the other."""
    scores = []
    for position in part.positions:
        rows = Part(part.segment, np.array([position])).rows("signs")
        least = [min(sum(f"{a ^ b:b}".count("1") for a, b in zip(q, row, strict=True)) for row in rows) for q in signs]
        scores.append(-sum(norm * distance for norm, distance in zip(norms, least, strict=True)))
    return scores


@pytest.mark.parametrize("dim", [5, 32, 96, 128])
def test_hamming_scores(dim):
    _, part = sample(8, dim, documents=60)
    rng = np.random.default_rng(1)
    signs = rng.integers(0, 1 << 32, (5, -(-dim // 32)), dtype="uint32")
    norms = rng.random(5, dtype="float32")
    by_numpy = hamming_scores_by_numpy(part, signs, norms)
    np.testing.assert_allclose(by_numpy, naive_hamming_scores(part, signs, norms), rtol=1e-6)


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
            exact = {} if isinstance(index, indexes.Flat) else {"effort": "exact"}
            expected = index.search(queries, **exact, **arguments)
            with monkeypatch.context() as patch:
                patch.setattr(type(index), "_warm_up", KernelWarmUp(most_work=1 << 60))
                found = index.search(queries, **arguments)
                assert index.search([], **arguments) == []
            everything = index.search(queries, **exact, **{**arguments, "k": 1000})
            for mine, theirs, every in zip(found, expected, everything, strict=True):
                # Random vectors are the hardest: sign codes say little about them.
                assert mine[0].id == theirs[0].id
                assert len({hit.id for hit in mine} & {hit.id for hit in theirs}) >= (0.7 if exact else 1) * len(theirs)
                scores = dict(every)
                np.testing.assert_allclose([hit.score for hit in mine], [scores[hit.id] for hit in mine], atol=1e-4)


@pytest.mark.parametrize(("make", "size"), [(indexes.Flat, 1e30), (indexes.Flat, 3e38), (indexes.IVF, 1e30)])
@pytest.mark.filterwarnings("error")
def test_numpy_scores_numbers_too_large_for_float32_without_warnings_and_nan(make, size, monkeypatch):
    monkeypatch.setattr(make, "_warm_up", KernelWarmUp(most_work=1 << 60))
    signs = np.random.default_rng(0).choice(np.float32([-1, 1]), (200, 2, 64)) * np.float32(size)
    index = make()
    index.add(range(200), list(signs))
    scores = {hit.id: hit.score for hit in index.search([signs[7]], k=200)[0]}
    # Products of both signs give either infinity, or NaN, which does not count: the order of the sum decides.
    assert len(scores) == 200
    assert scores[7] == np.inf
    assert not np.isnan(list(scores.values())).any()


def test_search_parameters_hold_for_numpy():
    codec, part = sample(4, 32)
    vectors = np.random.default_rng(1).standard_normal((4, 32), dtype="float32")
    choose = indexes.ivf.index.choose_search_parameters
    scores, numbers = search_by_numpy([part], codec, vectors, 5, choose(5, 32, "balanced", rerank=5))
    signs = np.packbits(vectors >= -np.abs(vectors).max(axis=1, keepdims=True) / 254, axis=1, bitorder="little")
    norms = np.linalg.norm(vectors, axis=1)
    distances = -np.array(naive_hamming_scores(part, signs.view("<u4"), norms))
    best = np.sort(np.argsort(distances, kind="stable")[:5])
    assert set(numbers) == set(part.segment.numbers[part.positions[best]])
    assert (np.diff(scores) <= 0).all()


def test_kernels_answer_large_searches_at_once_and_others_once_they_are_ready():
    first_use, prepared = KernelWarmUp(most_work=10), []
    assert not first_use.is_over(10, lambda: prepared.append(1))
    assert prepared == []  # a process that searches once compiles nothing
    assert not first_use.is_over(10, lambda: prepared.append(2))
    first_use.wait()
    assert prepared == [2]
    assert first_use.is_over(1, lambda: prepared.append(3))
    large = KernelWarmUp(most_work=10)
    assert large.is_over(11, lambda: prepared.append(4))
    assert large.is_over(1, lambda: prepared.append(5))
    assert prepared == [2]


def test_an_error_of_the_kernels_is_raised_by_the_next_search(monkeypatch):
    index = indexes.IVF()
    index.add(["a"], [np.eye(4)])
    monkeypatch.setattr(indexes.IVF, "_search_by_kernels", lambda *arguments: 1 / 0)
    for _ in range(2):
        assert index.search(np.eye(4))[0][0].id == "a"
    index._warm_up.wait()
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        index.search(np.eye(4))


FORKED = """
import os, sys, time
import numpy as np
from latelier import indexes
index = indexes.Flat()
index.add(["a"], [np.eye(4)])
for _ in range(2):
    index.search(np.eye(4))
time.sleep(float(sys.argv[1]))
child = os.fork()
assert index.search(np.eye(4))[0][0].id == "a"
sys.exit(os.waitpid(child, 0)[1] if child else 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.0])
def test_a_process_forked_while_kernels_compile_searches(tmp_path, seconds):
    """The thread that compiles holds locks of numba, of imports and, at moments, of logging."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", FORKED, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_search_needs_no_thread(monkeypatch):
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    first_use = KernelWarmUp(most_work=10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert [first_use.is_over(1, list) for _ in range(3)] == [False] * 3
    first_use.is_over(1, list)
    first_use.wait()
    assert first_use.is_over(1, list)
