"""Int8 MaxSim in one pass, with the multiplication of each supported instruction set, against the double loop."""

import numpy as np
import pytest

from latelier.kernels.instruction_sets import INSTRUCTION_SETS
from latelier.kernels.int8_maxsim import Documents, pack_queries, score_range

pytestmark = pytest.mark.processor


@pytest.mark.parametrize("isa", INSTRUCTION_SETS.values(), ids=INSTRUCTION_SETS)
@pytest.mark.parametrize("dim", [1, 32, 50, 128])
def test_scores_equal_the_double_loop(isa, dim):
    if not isa.is_supported:
        pytest.skip(f"this processor does not support {isa.name}")
    rng = np.random.default_rng(dim)
    lengths, query_lengths = [1, 0, 7, 8, 9, 33], [5, 0, 40]
    codes, query_codes = (rng.integers(-127, 128, size=(sum(n), dim)).astype("int8") for n in (lengths, query_lengths))
    scales, query_scales = (rng.random(sum(n), dtype="float32") for n in (lengths, query_lengths))
    offsets, query_offsets = (np.cumsum([0, *n]) for n in (lengths, query_lengths))
    queries = pack_queries(query_codes, query_scales, query_offsets)
    scores = np.full((3, len(lengths) + 1), 7, dtype="float32")
    score_range(isa.argument, tuple(Documents(codes, scales, offsets)), tuple(queries), scores, 1)

    products = (query_codes.astype("int64") @ codes.astype("int64").T) * query_scales[:, None] * scales
    assert (scores[:, 0] == 7).all()
    for q in range(3):
        for d, length in enumerate(lengths):
            block = products[query_offsets[q] : query_offsets[q + 1], offsets[d] : offsets[d + 1]]
            wanted = block.max(axis=1).sum() if length else -np.inf
            assert scores[q, d + 1] == pytest.approx(wanted, rel=1e-5, abs=1e-3)
