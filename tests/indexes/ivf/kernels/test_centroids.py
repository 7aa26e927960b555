"""Centroids with the kernels of each instruction set, and in numpy, against naive loops."""

import numpy as np
import pytest

from latelier.indexes.ivf.kernels.centroids import (
    NO_CENTROID,
    CentroidLevels,
    find_lists,
    find_lists_plainly,
    nearest_centroids,
    nearest_in_two_levels,
    pack_centroids,
    spherical_kmeans,
)
from latelier.indexes.ivf.layout import byte_width

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("kernel")]


def centroids_and_rows(count, dim, rows=13, seed=5):
    """Packed centroids, rows of bytes, and all dot products as integers ``(rows, groups * 16)``."""
    rng = np.random.default_rng(seed)
    width = byte_width(dim)
    centroids = rng.integers(-3, 4, size=(count, dim))  # few values, so that some products are equal
    packed = pack_centroids(centroids.astype("float32"), width, 1.0)
    tokens = np.full((rows, width), 128, dtype="uint8")
    tokens[:, :dim] = rng.integers(126, 131, size=(rows, dim))
    products = np.full((rows, packed.start.size), NO_CENTROID, dtype="int64")
    products[:, :count] = (tokens[:, :dim].astype("int64") - 128) @ centroids.T
    return packed, tokens, products


@pytest.mark.parametrize("count", [1, 15, 16, 100])
@pytest.mark.parametrize("rows", [1, 7, 8, 13])
def test_the_nearest_centroid_is_the_first_of_the_best(count, rows):
    packed, tokens, products = centroids_and_rows(count, 7, rows)
    nearest, dots = nearest_centroids(tokens, packed)
    assert nearest.tolist() == products.argmax(axis=1).tolist()
    assert dots.tolist() == products.max(axis=1).tolist()


def two_levels(dim, counts, seed=3):
    """Coarse centroids, and some fine ones under each; the last coarse one may be without any."""
    rng = np.random.default_rng(seed)
    width = byte_width(dim)
    coarse = pack_centroids(rng.integers(-3, 4, (len(counts), dim)).astype("float32"), width, 1.0)
    fine = [pack_centroids(rng.integers(-3, 4, (n, dim)).astype("float32"), width, 1.0) for n in counts]
    offsets = np.append(0, np.cumsum([len(each.start) for each in fine]))
    packed = [np.concatenate(parts) for parts in zip(*fine, strict=True)]
    return CentroidLevels(coarse, type(coarse)(*packed), offsets)


def dots_with(rows, packed):
    numbers = packed.packed.transpose(0, 2, 1, 3).reshape(packed.start.size, -1).astype("int64")
    return np.where(packed.start.reshape(-1) > NO_CENTROID, (rows.astype("int64") - 128) @ numbers.T, NO_CENTROID)


@pytest.mark.parametrize("dim", [3, 50, 128])
def test_the_nearest_in_two_levels_is_one_of_those_under_the_nearest_coarse_centroid(dim):
    levels = two_levels(dim, [5, 20, 1, 40])
    _, rows, _ = centroids_and_rows(1, dim, rows=101)
    nearest, dots = nearest_in_two_levels(rows, levels)
    coarse = dots_with(rows, levels.coarse).argmax(axis=1)
    assert len(set(coarse.tolist())) == 4
    products = dots_with(rows, levels.fine)
    for n, c in enumerate(coarse):
        under = slice(16 * levels.offsets[c], 16 * levels.offsets[c + 1])
        assert nearest[n] == 16 * levels.offsets[c] + products[n, under].argmax()
        assert dots[n] == products[n, under].max()


@pytest.mark.parametrize("dim", [1, 31, 128])
@pytest.mark.parametrize(("tokens", "coarse", "nprobe"), [(1, 1, 1), (7, 3, 40), (8, 4, 9), (20, 4, 200), (70, 2, 33)])
def test_probed_lists_are_those_of_the_naive_search(dim, tokens, coarse, nprobe):
    levels = two_levels(dim, [5, 20, 100, 1, 48, 7, 3, 2, 16, 30, 31, 32, 4, 6, 8, 1, 9])
    vectors = np.random.default_rng(tokens).standard_normal((tokens, dim)).astype("float32")
    vectors[::5] = np.round(vectors[::5])  # some dot products are equal
    if tokens > 7:
        vectors[3] = 0
        vectors[4] *= np.float32(1e-42)
    found = find_lists(vectors, levels, coarse, nprobe, 20)
    wanted = find_lists_plainly(vectors, levels, coarse, nprobe, 20)
    np.testing.assert_array_equal(found.lists, wanted.lists)
    np.testing.assert_array_equal(found.excess, wanted.excess)
    assert found.excess[:, 0].sum() < 2**20
    scales = np.abs(vectors).max(axis=1) / np.float32(127)
    for t in np.flatnonzero(scales > 1e-40)[:3]:  # the first one by a loop of its own
        row = np.full((1, byte_width(dim)), 128)
        row[0, :dim] += np.floor(vectors[t] / scales[t].astype("float64") + 0.5).astype("int64")
        best = np.argsort(-dots_with(row, levels.coarse)[0], kind="stable")[:coarse]
        under = [i for c in sorted(best) for i in range(16 * levels.offsets[c], 16 * levels.offsets[c + 1])]
        assert found.lists[t, 0] == max(under, key=lambda i: (dots_with(row, levels.fine)[0, i], -i))


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
def test_kmeans_equals_the_loop(members, count):
    rows, scales = random_rows(members)
    centroids = np.empty((count, DIM), dtype="float32")
    spherical_kmeans(rows, scales, 4, centroids)
    np.testing.assert_allclose(centroids, kmeans(rows, scales, count, 4)[0], atol=2e-6)


def test_centroids_without_tokens_take_other_tokens():
    rows, scales = random_rows(60)
    rows[:50] = rows[0]  # most of the first centroids are equal, and the first of equal ones gets all their tokens
    centroids = np.empty((12, DIM), dtype="float32")
    spherical_kmeans(rows, scales, 3, centroids)
    expected, empty = kmeans(rows, scales, 12, 3)
    assert empty > 12
    np.testing.assert_allclose(centroids, expected, atol=2e-6)
