"""Products with centroids for each instruction set, digits of queries, and spherical k-means, against naive loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.indexes.ivf.kernels.candidates import NO_CENTROID
from latelier.indexes.ivf.kernels.centroids import centroid_dots, nearest_centroids, nearest_of_groups, quantise_query
from latelier.indexes.ivf.kernels.kmeans import group_rows, spherical_kmeans
from latelier.indexes.ivf.layout import byte_width
from latelier.indexes.ivf.lists import pack_centroids
from latelier.kernels.multiply import supported

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


@pytest.mark.parametrize("count", [1, 16, 100])
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


@pytest.mark.parametrize("dim", [1, 3, 128, 130])
def test_three_digits_are_as_precise_as_single_precision(dim):
    vectors = np.random.default_rng(2).standard_normal((19, dim)).astype("float32")
    vectors[3] = 0
    leads = np.arange(19, dtype="float32")
    query = quantise_query(vectors, leads)
    np.testing.assert_allclose(query.leads[:19] * query.scales, leads, rtol=1e-6)
    fine = sum(query.digits[place].astype("float64") / 254**place for place in range(3))[:, :dim]
    np.testing.assert_allclose(fine * query.scales[:, None], vectors, atol=2e-7 * np.abs(vectors).max())
    assert (query.rows[:, :dim].astype(int) - 128 == query.digits[0, :, :dim]).all()
    for t in range(19):
        group, lane = divmod(t, 16)
        packed = query.packed[:, group, :, lane].reshape(3, -1)
        assert (packed == query.digits[:, t]).all()
        assert (query.start[:, group, lane] == -128 * query.digits[:, t].astype(int).sum(axis=1)).all()


WIDTH, DIM = 32, 20


def random_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.full((count, WIDTH), 128, dtype="uint8")
    rows[:, :DIM] = rng.integers(1, 256, size=(count, DIM))
    return rows, rng.uniform(0.5, 2, count).astype("float32")


def directions(rows):
    vectors = rows[:, :DIM].astype("float64") - 128
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def quantised(centroids):
    return np.rint(centroids / (np.abs(centroids).max() / 127))


def kmeans(rows, scales, count, iterations):
    vectors, members = rows[:, :DIM].astype("float64") - 128, len(rows)
    centroids = directions(rows[np.arange(count) * members // count])
    empty = 0
    for i in range(iterations):
        nearest = np.argmax(vectors @ quantised(centroids).T, axis=1)
        sums = np.zeros_like(centroids)
        np.add.at(sums, nearest, vectors * scales[:, None])
        for c in np.flatnonzero(np.bincount(nearest, minlength=count) == 0):
            sums[c] = vectors[(c * (iterations + 1) + i + 1) * members // (count * (iterations + 1))]
            empty += 1
        centroids = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return centroids, empty


@pytest.mark.parametrize(("members", "count"), [(1, 1), (90, 5), (200, 40), (40, 40)])
def test_kmeans_equals_the_loop(isa, members, count):
    rows, scales = random_rows(members)
    centroids = np.empty((count, DIM), dtype="float32")
    spherical_kmeans(isa.argument, rows, scales, 4, centroids)
    np.testing.assert_allclose(centroids, kmeans(rows, scales, count, 4)[0], atol=2e-6)


def test_centroids_without_tokens_take_other_tokens():
    rows, scales = random_rows(60)
    rows[:50] = rows[0]  # most of the first centroids are equal, and the first of equal ones gets all their tokens
    centroids = np.empty((12, DIM), dtype="float32")
    spherical_kmeans(supported()[0].argument, rows, scales, 3, centroids)
    expected, empty = kmeans(rows, scales, 12, 3)
    assert empty > 12
    np.testing.assert_allclose(centroids, expected, atol=2e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=40))
def test_grouped_rows_equal_a_stable_sort(clusters):
    offsets, order = np.zeros(6, dtype="int64"), np.empty(len(clusters), dtype="int64")
    group_rows(np.array(clusters, dtype="int32"), offsets, order)
    assert order.tolist() == np.argsort(clusters, kind="stable").tolist()
    assert np.diff(offsets).tolist() == [clusters.count(c) for c in range(5)]
