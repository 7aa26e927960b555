"""k-means and the assignment of tokens, against loops in numpy."""

from itertools import pairwise

import numpy as np
import pytest

from latelier.indexes.ivf.centroids import pack_centroids
from latelier.indexes.ivf.kernels.kmeans import assign_tokens, spherical_kmeans
from latelier.kernels.instruction_sets import supported

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
    rows, scales = tokens(members + 30)
    order = np.random.default_rng(1).permutation(len(rows))[:members]
    centroids = np.empty((count, DIM), dtype="float32")
    spherical_kmeans(isa.argument, rows, scales, order, 4, centroids)
    np.testing.assert_allclose(centroids, kmeans(rows[order], scales[order], count, 4)[0], atol=2e-6)


def test_centroids_without_tokens_take_other_tokens():
    rows, scales = tokens(60)
    rows[:50] = rows[0]  # most of the first centroids are equal, and the first of equal ones gets all their tokens
    centroids = np.empty((12, DIM), dtype="float32")
    spherical_kmeans(supported()[0].argument, rows, scales, np.arange(60), 3, centroids)
    expected, empty = kmeans(rows, scales, 12, 3)
    assert empty > 12
    np.testing.assert_allclose(centroids, expected, atol=2e-6)


@pytest.mark.parametrize("isa", supported(), ids=lambda isa: isa.name)
def test_tokens_are_assigned_to_the_nearest_centroid_under_the_nearest_coarse_one(isa):
    rng, (rows, _) = np.random.default_rng(2), tokens(300, seed=3)
    coarse, fine, counts = rng.standard_normal((18, DIM)), rng.standard_normal((200, DIM)), [16, 1, 7] + [11] * 15
    packed = pack_centroids(coarse.astype("float32"), WIDTH, 0.05)
    ends = np.cumsum([0, *counts])
    parts = [pack_centroids(fine[a:b].astype("float32"), WIDTH, 0.05) for a, b in pairwise(ends)]
    groups = np.cumsum([0] + [len(codes) for codes, _ in parts])
    under = (np.concatenate([part[i] for part in parts]) for i in range(2))
    nearest, dots = (np.empty(len(rows), dtype="int32") for _ in range(2))
    assign_tokens(isa.argument, rows, packed, (*under, groups), nearest, dots)
    values = rows[:, :DIM].astype("int64") - 128
    for n, value in enumerate(values):
        c = int(np.argmax(np.rint(coarse / 0.05).clip(-127, 127) @ value))
        products = np.rint(fine[ends[c] : ends[c + 1]] / 0.05).clip(-127, 127) @ value
        assert (nearest[n], dots[n]) == (16 * groups[c] + np.argmax(products), products.max())
