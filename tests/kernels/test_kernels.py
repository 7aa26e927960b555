"""Each kernel that this processor can run, against the naive loop and against each other."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.kernels import jit, segment_max
from latelier.kernels.cpu import INSTRUCTION_SETS, instruction_set, supported
from latelier.kernels.threads import for_ranges
from latelier.scores import colbert_kd_scores, colbert_scores
from latelier.scores.engines import int8 as quantized
from latelier.scores.engines import packed
from latelier.scores.engines.addressed import Matrices
from naive import naive_matrix, ragged

pytestmark = pytest.mark.processor

LENGTHS = [0, 1, 2, 7, 8, 9, 16, 33, 0, 5]


@pytest.fixture(params=INSTRUCTION_SETS)
def kernel(request, monkeypatch):
    if not INSTRUCTION_SETS[request.param].is_supported:
        pytest.skip(f"this processor does not support {request.param}")
    monkeypatch.setenv("LATELIER_KERNELS", request.param)
    return request.param


def sides(dim, query_lengths=(5, 0, 1, 17, 32), seed=0, shift=0.0):
    queries = TokenEmbeddings.from_list(ragged(query_lengths, dim, seed, shift=shift))
    return queries, TokenEmbeddings.from_list(ragged(LENGTHS, dim, seed + 1, shift=-shift))


@pytest.mark.parametrize("dim", [1, 3, 8, 96, 130])
@pytest.mark.parametrize("shift", [0.0, 2.0], ids=["mixed", "negative"])
def test_float_kernels_equal_the_double_loop(kernel, dim, shift):
    queries, documents = sides(dim, shift=shift)
    scores = packed.maxsim(queries, documents)
    np.testing.assert_allclose(scores, _expected(queries, documents), rtol=2e-5, atol=2e-5 * dim)


@pytest.mark.parametrize("dim", [1, 3, 8, 96, 130])
@pytest.mark.parametrize("shift", [0.0, 2.0], ids=["mixed", "negative"])
def test_int8_kernels_equal_the_double_loop_over_the_scaled_codes(kernel, dim, shift):
    queries, documents = (side.to("int8") for side in sides(dim, shift=shift))
    scores = quantized.maxsim(queries, documents)
    np.testing.assert_allclose(scores, _expected(queries, documents), rtol=2e-6, atol=2e-6 * dim)


def test_int8_kernels_agree_to_the_last_bit(monkeypatch):
    queries, documents = sides(128)
    scores = []
    for isa in supported():
        monkeypatch.setenv("LATELIER_KERNELS", isa.name)
        scores.append(quantized.maxsim(queries, documents))
        assert np.array_equal(scores[-1], scores[0])


@settings(max_examples=25)
@given(st.integers(1, 40), st.floats(0.01, 100), st.integers(0, 1000))
def test_int8_scores_stay_within_the_stated_bound(dim, size, seed):
    queries, documents = sides(dim, seed=seed)
    queries = TokenEmbeddings(queries.vectors * size, queries.offsets)
    real = np.ix_(queries.lengths > 0, documents.lengths > 0)
    difference = np.abs(quantized.maxsim(queries, documents)[real] - packed.maxsim(queries, documents)[real])
    assert (difference <= quantized.error_bound(queries, documents)[real] * (1 + 1e-4) + 1e-5).all()


def test_the_bound_is_of_the_right_size():
    unit = [torch.nn.functional.normalize(m, dim=1) for m in ragged([32], 128)]
    queries = TokenEmbeddings.from_list(unit)
    # By Cauchy-Schwarz sqrt(128) / 254 from each side if every number were at its worst; codes use their range better.
    assert 32 * 0.02 < quantized.error_bound(queries, queries)[0, 0] < 32 * 2 * np.sqrt(128) / 254


def test_auto_takes_integers_for_int8_documents_only():
    queries, documents = sides(128)
    small = documents.to("int8")
    assert np.array_equal(colbert_scores(queries, small).numpy(), quantized.maxsim(queries, small))
    assert np.array_equal(colbert_scores(queries, documents).numpy(), packed.maxsim(queries, documents))
    forced = colbert_scores(queries, documents, backend="int8").numpy()
    assert np.array_equal(forced, quantized.maxsim(queries, small))
    grouped = colbert_kd_scores(queries, small[:], backend="int8")
    everything = quantized.maxsim(queries, small)
    assert grouped.tolist() == [everything[i, 2 * i : 2 * i + 2].tolist() for i in range(5)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_the_scores(kernel, threads):
    queries = TokenEmbeddings.from_list(ragged([64], 128))
    documents = TokenEmbeddings.from_list(ragged([200, 0, 1, 300] * 80, 128, seed=1))
    before = torch.get_num_threads()
    alone = packed.maxsim(queries, documents), quantized.maxsim(queries, documents)
    torch.set_num_threads(threads)
    try:
        np.testing.assert_allclose(packed.maxsim(queries, documents), alone[0], rtol=1e-5)
        assert np.array_equal(quantized.maxsim(queries, documents), alone[1])
    finally:
        torch.set_num_threads(before)


@given(st.lists(st.integers(0, 50_000), max_size=12), st.integers(1, 1 << 16))
def test_ranges_cover_every_document_once(lengths, work):
    seen = []
    for_ranges(lambda first, last: seen.extend(range(first, last)), np.cumsum([0, *lengths]), work)
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize("helper", [True, False], ids=["helper", "caller"])
def test_what_a_thread_raises_is_raised(helper):
    caller, seen, before = threading.current_thread(), set(), torch.get_num_threads()

    def fail(first, last):
        seen.add(threading.current_thread())
        while len(seen) < 2:  # until both are at work
            pass
        if (threading.current_thread() is not caller) == helper:
            raise ValueError(f"documents {first} to {last}")

    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match=r"documents \d+ to"):
            for_ranges(fail, np.arange(0, 10_000_000, 1000), 1 << 16)
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 2


def test_work_within_work_comes_to_an_end():
    before, seen = torch.get_num_threads(), []
    offsets = np.arange(0, 100_000, 1000)
    torch.set_num_threads(2)
    try:
        for_ranges(
            lambda *_: for_ranges(lambda first, last: seen.append(last - first), offsets, 1 << 16), offsets, 4096
        )
    finally:
        torch.set_num_threads(before)
    assert sum(seen) % 99 == 0
    assert len(seen) > 99


NUMBERS = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("dim", [1, 7, 16, 50, 130])
@pytest.mark.parametrize("documents_type", NUMBERS)
@pytest.mark.parametrize("queries_type", NUMBERS)
def test_every_pair_of_number_types_scores_the_stored_numbers(kernel, queries_type, documents_type, dim):
    queries, documents = sides(dim, query_lengths=(33, 2))  # three registers of query tokens
    queries, documents = queries.to(queries_type), documents.to(documents_type)
    expected = _expected(queries, documents)
    np.testing.assert_allclose(packed.maxsim(queries, documents), expected, rtol=2e-5, atol=2e-5 * dim)
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
    difference = packed.maxsim(queries, documents)[:, real] - _expected(queries, documents)[:, real]
    longest = max(d.float().norm(dim=1).max() for d in documents if len(d))
    bound = [float(q.float().norm(dim=1).sum() * longest) * 2 * half_dim * 2**-24 for q in queries]
    assert (np.abs(difference) <= np.array(bound)[:, None]).all()


@pytest.mark.parametrize("numbers", NUMBERS)
def test_where_a_token_was_best_is_the_same_for_every_type(kernel, numbers):
    queries, documents = sides(6)
    queries, documents = queries.to(numbers), documents.to(numbers)
    scores = np.empty((len(queries), len(documents)), dtype="float32")
    positions = np.empty((queries.num_tokens, len(documents)), dtype="int32")
    packed.score_into(scores, queries, documents, positions)
    flat = queries.to("float32").vectors
    best = [(flat @ d.float().T).argmax(1).tolist() if len(d) else [-1] * len(flat) for d in documents]
    assert positions.T.tolist() == best


def test_long_lists_are_scored_by_and_by(kernel):
    documents = [m.double() for m in ragged([9000, 9000, 0, 5], 4)]  # of a type that has to be copied
    queries = TokenEmbeddings.from_list(ragged([3, 2], 4, seed=1))
    at_once = packed.maxsim(queries, TokenEmbeddings.from_list(documents).to("float32"))
    np.testing.assert_allclose(packed.maxsim_list(queries, documents), at_once, rtol=1e-5)
    assert at_once[:, 2].tolist() == [-np.inf, -np.inf]


def test_matrices_are_read_where_they_are():
    whole, other = torch.randn(40, 8), torch.randn(3, 8).half()
    read = Matrices.of_list([whole[5:9], whole[20:20]])
    assert read.addresses[0] == whole.data_ptr() + 5 * 8 * 4
    assert read.offsets.tolist() == [0, 4, 4]
    assert Matrices.of_list([other]).row_bytes == 16
    assert Matrices.of_list([whole.T]) is None
    assert Matrices.of_list([whole.double()]) is None
    embeddings = TokenEmbeddings(whole.numpy(), [0, 3, 40])
    assert Matrices.of_packed(embeddings).addresses[1] == whole.data_ptr() + 3 * 8 * 4
    assert Matrices.of_packed(embeddings.to("int8")).dtype == "float32"


def test_read_only_and_half_precision_documents(kernel):
    queries, documents = sides(16)
    expected = packed.maxsim(queries, documents)
    vectors = documents.vectors.numpy()
    vectors.setflags(write=False)
    assert np.array_equal(packed.maxsim(queries, TokenEmbeddings(vectors, documents.offsets)), expected)
    half = documents.to("float16")
    np.testing.assert_allclose(packed.maxsim(queries, half), _expected(queries, half), rtol=2e-5, atol=1e-4)


def test_unknown_kernels_are_refused(monkeypatch):
    monkeypatch.setenv("LATELIER_KERNELS", "sse2")
    with pytest.raises(InvalidArgumentError, match="LATELIER_KERNELS='sse2'; expected one of avx512vnni, generic"):
        instruction_set()


def _expected(queries, documents):
    return naive_matrix(list(queries), list(documents))


def test_what_cannot_be_cached_is_compiled_all_the_same():
    # Code without a file is the case in which numba finds no place for its cache, as in an unwritable installation.
    names = {"kernel": jit.kernel, "__name__": "latelier.elsewhere"}
    exec("@kernel()\ndef double(x):\n    return 2 * x", names)
    assert names["double"](21) == 42


def test_a_file_run_by_itself_leaves_nothing_in_the_cache_that_others_could_not_load(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    use = "import doctest; from latelier.kernels import segment_max; assert doctest.testmod(segment_max).failed == 0"
    for command in (["-m", "doctest", segment_max.__file__], ["-c", use]):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
