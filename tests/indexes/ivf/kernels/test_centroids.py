"""Products with centroids for each instruction set, and the digits of quantised queries, against naive loops."""

import threading

import numpy as np
import pytest

from latelier.indexes.ivf.kernels.candidates import NO_CENTROID
from latelier.indexes.ivf.kernels.centroids import (
    centroid_dots,
    nearest_centroids,
    nearest_of_groups,
    quantise_query,
)
from latelier.indexes.ivf.layout import byte_width
from latelier.indexes.ivf.lists import pack_centroids

pytestmark = pytest.mark.processor


def centroids_and_rows(count, dim, rows=13, seed=5):
    """Packed centroids, rows of bytes, and all dot products as integers ``(rows, groups * 16)``."""
    rng = np.random.default_rng(seed)
    width = byte_width(dim)
    centroids = rng.integers(-3, 4, size=(count, dim))  # few values, so that some products are equal
    packed, start = pack_centroids(centroids, width, 1.0)
    tokens = np.full((rows, width), 128, dtype="uint8")
    tokens[:, :dim] = rng.integers(126, 131, size=(rows, dim))
    products = np.full((rows, packed.shape[0] * 16), NO_CENTROID, dtype="int64")
    products[:, :count] = (tokens[:, :dim].astype("int64") - 128) @ centroids.T
    return packed, start, tokens, products


@pytest.mark.parametrize("count", [1, 15, 16, 100, 200])
@pytest.mark.parametrize("dim", [3, 128])
def test_dot_products_with_centroids_equal_the_loop(isa, count, dim):
    packed, start, rows, products = centroids_and_rows(count, dim)
    groups = len(packed)
    ranges = np.array([[[0, groups], [groups // 2, groups]]] * len(rows))
    out = np.empty((len(rows), 2 * groups - groups // 2, 16), dtype="int32")
    centroid_dots(isa.argument, rows, ranges, packed, start, out)
    has_centroid = np.arange(groups * 16) < count
    for row, found in zip(products, out.reshape(len(rows), -1), strict=True):
        assert (found[: groups * 16][has_centroid] == row[has_centroid]).all()
        assert (found[: groups * 16][~has_centroid] < NO_CENTROID // 2).all()
        assert (found[groups * 16 :] == found[groups // 2 * 16 : groups * 16]).all()


@pytest.mark.parametrize("count", [1, 15, 16, 100])
def test_the_nearest_centroid_is_the_first_of_the_best(isa, count):
    packed, start, rows, products = centroids_and_rows(count, 7)
    nearest, dots = (np.full(len(rows), -5, dtype="int32") for _ in range(2))
    order = np.array([12, 3, 4, 0, 1, 2, 7, 8, 9, 10, 11])
    nearest_centroids(isa.argument, rows, order, packed, start, nearest, dots)
    for row in order:
        assert nearest[row] == products[row].argmax()
        assert dots[row] == products[row].max()
    assert (nearest[[5, 6]] == -5).all()


def test_the_nearest_centroid_is_one_of_those_under_the_same_coarse_centroid(isa):
    packed, start, rows, products = centroids_and_rows(100, 50)
    groups = np.array([0, 2, 2, 3, 7])  # the second coarse centroid has no centroids, and no rows either
    offsets, order = np.array([0, 5, 5, 6, 12]), np.array([12, 3, 4, 0, 1, 2, 7, 8, 9, 10, 11, 6])
    nearest, dots = (np.full(len(rows), -5, dtype="int32") for _ in range(2))
    nearest_of_groups(isa.argument, rows, (offsets, order), (packed, start, groups), nearest, dots)
    for coarse in range(4):
        under = slice(16 * groups[coarse], 16 * groups[coarse + 1])
        for row in order[offsets[coarse] : offsets[coarse + 1]]:
            assert nearest[row] == products[row, under].argmax()
            assert dots[row] == products[row, under].max()
    assert nearest[5] == -5


def test_kernels_in_threads_do_not_disturb_each_other(isa):
    """Memory that a kernel reads by address must be its own for as long as it reads it."""
    packed, start, rows, products = centroids_and_rows(500, 100, rows=400)
    wanted = products.argmax(axis=1)
    wrong = []

    def work():
        for _ in range(40):
            nearest, dots = (np.empty(len(rows), dtype="int32") for _ in range(2))
            nearest_centroids(isa.argument, rows, np.arange(len(rows)), packed, start, nearest, dots)
            if not np.array_equal(nearest, wanted):
                wrong.append(nearest)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


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
