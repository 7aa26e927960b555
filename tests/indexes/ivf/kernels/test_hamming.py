"""The Hamming stage against a naive loop."""

import numpy as np
import pytest
from coded_documents import CodedSample

from latelier.indexes.ivf.kernels.hamming import hamming_scores
from latelier.indexes.ivf.kernels.queries import quantise_query

pytestmark = pytest.mark.processor


@pytest.mark.parametrize("tokens", [1, 9, 16, 17, 40])
@pytest.mark.parametrize("dim", [3, 32, 128, 130])
def test_hamming_scores_equal_the_loop(tokens, dim):
    sample = CodedSample(dim)
    query = quantise_query(np.random.default_rng(1).standard_normal((tokens, dim)).astype("float32"))
    scores = np.empty(len(sample.chosen), dtype="float32")
    hamming_scores(tuple(sample.documents), sample.chosen, (query.signs, query.norms), scores)
    bits, decoded = query.digits[0, :, :dim] >= 0, sample.decoded()
    for d, score in zip(sample.chosen, scores, strict=True):
        signs = decoded[d] >= 0
        total = sum(float(query.norms[q]) * min(int((bits[q] != row).sum()) for row in signs) for q in range(tokens))
        assert score == pytest.approx(-total, rel=1e-5)
