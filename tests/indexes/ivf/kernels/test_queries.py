"""Quantised queries: their digits, and the layouts in which kernels read them."""

import numpy as np
import pytest

from latelier.indexes.ivf.kernels.centroids import quantise_query

pytestmark = pytest.mark.processor


@pytest.mark.parametrize("dim", [1, 3, 128, 130])
def test_three_digits_are_as_precise_as_single_precision(dim):
    vectors = np.random.default_rng(2).standard_normal((19, dim)).astype("float32")
    vectors[3] = 0
    query = quantise_query(vectors)
    fine = sum(query.digits[place].astype("float64") / 254**place for place in range(3))[:, :dim]
    np.testing.assert_allclose(fine * query.scales[:, None], vectors, atol=2e-7 * np.abs(vectors).max())
    assert (query.rows[:, :dim].astype(int) - 128 == query.digits[0, :, :dim]).all()
    for t in range(19):
        group, lane = divmod(t, 16)
        packed = query.packed[:, group, :, lane].reshape(3, -1)
        assert (packed == query.digits[:, t]).all()
        assert (query.start[:, group, lane] == -128 * query.digits[:, t].astype(int).sum(axis=1)).all()


@pytest.mark.parametrize("exponent", [-130, -120, 120])
def test_digits_of_very_small_and_large_queries_are_those_of_usual_ones(exponent):
    vectors = np.full((1, 8), 0.75, dtype="float32") * np.linspace(-1, 1, 8, dtype="float32")
    query = quantise_query(np.ldexp(vectors, exponent))
    np.testing.assert_allclose(query.digits[0], quantise_query(vectors).digits[0], atol=1)
    assert query.digits[0, 0, :8].tolist()[::7] == [-127, 127]


def test_the_first_digit_alone_is_that_of_all_three():
    vectors = np.random.default_rng(2).standard_normal((19, 40)).astype("float32")
    query, first = quantise_query(vectors), quantise_query(vectors, 1)
    for name in ("rows", "scales"):
        np.testing.assert_array_equal(getattr(first, name), getattr(query, name))
    for name in ("digits", "packed", "start"):
        np.testing.assert_array_equal(getattr(first, name), getattr(query, name)[:1])
