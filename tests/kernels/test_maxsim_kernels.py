"""Positions of best tokens on each supported instruction set and for each kind of numbers; rows that are converted."""

import numpy as np
import pytest

from latelier.kernels.conversion import BFLOAT16, FLOAT16, INT8, WIDE_INT8, WORDS, convert_rows
from latelier.kernels.float_maxsim import NO_POSITIONS, Documents, Queries, pack_queries, score_range
from latelier.kernels.jit import has_features
from latelier.kernels.multiply import INSTRUCTION_SETS

pytestmark = pytest.mark.processor

LENGTHS, QUERY_LENGTHS = np.array([1, 0, 5, 6, 7, 8, 9, 33]), [5, 0, 40]
KINDS = {"float32": WORDS, "float16": FLOAT16, "bfloat16": BFLOAT16, "pairs of bfloat16": WORDS}


@pytest.mark.parametrize("isa", INSTRUCTION_SETS.values(), ids=INSTRUCTION_SETS)
@pytest.mark.parametrize("numbers", KINDS)
@pytest.mark.parametrize("dim", [2, 32, 50])
def test_scores_and_positions_equal_the_double_loop(isa, numbers, dim):
    if not isa.is_supported:
        pytest.skip(f"this processor does not support {isa.name}")
    pairs = numbers == "pairs of bfloat16"
    if pairs and not ("avx512f" in isa.features and has_features("avx512bf16")):
        pytest.skip("no multiplication of bfloat16")
    rng = np.random.default_rng(dim)
    # Numbers that bfloat16 and float16 hold exactly, all similarities negative for the first query.
    rows, queries = (np.round(rng.normal(size=(n, dim)) * 8) / 8 for n in (LENGTHS.sum(), sum(QUERY_LENGTHS)))
    rows[:, 0], queries[:5, 0] = 16, -16
    rows, queries = rows.astype("float32"), queries.astype("float32")
    stored, kind = stored_as(rows, numbers), KINDS[numbers]
    packed = pack_queries(stored_as(queries, numbers).view("int16") if pairs else queries)

    offsets, query_offsets = np.cumsum([0, *LENGTHS]), np.cumsum([0, *QUERY_LENGTHS])
    addresses = stored.ctypes.data + offsets[:-1] * stored.strides[0]
    documents = Documents(addresses, LENGTHS, kind, dim // 2 if pairs else dim, stored.strides[0])
    scores = np.full((3, len(LENGTHS) + 1), 7, dtype="float32")
    positions = np.full((len(queries), len(LENGTHS) + 1), 7, dtype="int32")
    call = isa.argument, tuple(documents), tuple(Queries(packed, query_offsets))
    score_range(*call, scores, positions, 1)

    similarities = queries.astype("float64") @ rows.T.astype("float64")
    for d, length in enumerate(LENGTHS):
        block = similarities[:, offsets[d] : offsets[d + 1]]
        best = block.max(axis=1) if length else np.full(len(queries), -np.inf)
        for q in range(3):
            wanted = best[query_offsets[q] : query_offsets[q + 1]].sum() if length else -np.inf
            assert scores[q, d + 1] == pytest.approx(wanted, rel=1e-5, abs=1e-3)
        assert positions[:, d + 1].tolist() == (block.argmax(axis=1).tolist() if length else [-1] * len(queries))
    assert (scores[:, 0] == 7).all()
    assert (positions[:, 0] == 7).all()
    again = np.full_like(scores, 7)
    score_range(*call, again, NO_POSITIONS, 1)
    assert np.array_equal(again, scores)


def stored_as(rows, numbers):
    if "bfloat16" in numbers:
        return np.ascontiguousarray(rows.view("uint16")[:, 1::2])  # upper halves
    return rows.astype(numbers)


def convert(rows, kind, words):
    out = np.zeros((8, words), dtype="int32")
    convert_rows(rows.ctypes.data, len(rows), (kind, rows.shape[1], rows.strides[0]), out)
    return out


def test_every_float16_keeps_its_value():
    halves = np.arange(1 << 16, dtype="uint16").view("float16").reshape(8, -1)
    found = convert(halves, FLOAT16, halves.shape[1]).view("float32")
    assert np.array_equal(found, halves.astype("float32"), equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(halves))


def test_rows_are_padded_and_repeated():
    values = np.array([[1.5, -2.0, 0.25], [3.0, -0.5, 64.0]], dtype="float32")
    upper_halves = np.ascontiguousarray(values.view("uint16")[:, 1::2])
    found = convert(upper_halves, BFLOAT16, 4).view("float32")
    assert found.tolist() == [[1.5, -2.0, 0.25, 0.0], *[[3.0, -0.5, 64.0, 0.0]] * 7]


def test_signed_bytes_are_shifted():
    codes = np.arange(-127, 128, dtype="int8").reshape(1, -1)
    for kind, dtype in ((INT8, "uint8"), (WIDE_INT8, "uint16")):
        found = convert(codes, kind, 128).view(dtype)
        assert found[0, :255].tolist() == found[7, :255].tolist() == list(range(1, 256))
