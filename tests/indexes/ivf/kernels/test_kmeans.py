"""Spherical k-means, against a loop in numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.indexes.ivf.kernels.kmeans import group_rows, spherical_kmeans
from latelier.kernels.multiply import supported

WIDTH, DIM = 32, 20


def tokens(count, seed=0):
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
    """The same in float64, except that centroids are compared by their codes of 8 bits."""
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


@pytest.mark.parametrize("isa", supported(), ids=lambda isa: isa.name)
@pytest.mark.parametrize(("members", "count"), [(1, 1), (90, 5), (200, 40), (40, 40)])
def test_kmeans_equals_the_loop(isa, members, count):
    rows, scales = tokens(members)
    centroids = np.empty((count, DIM), dtype="float32")
    spherical_kmeans(isa.argument, rows, scales, 4, centroids)
    np.testing.assert_allclose(centroids, kmeans(rows, scales, count, 4)[0], atol=2e-6)


def test_centroids_without_tokens_take_other_tokens():
    rows, scales = tokens(60)
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
