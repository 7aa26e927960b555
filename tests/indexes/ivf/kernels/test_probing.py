"""Probing against stable sorts: the best centroids of both levels, and imputed scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.indexes.ivf.kernels.candidates import NO_CENTROID, best_centroids, fine_ranges, imputed_excess

pytestmark = pytest.mark.processor


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_the_best_centroids_equal_a_stable_sort(most, seed):
    rng = np.random.default_rng(seed)
    ranges = np.array([[[0, 2], [4, 5]], [[1, 2], [2, 4]]])
    dots = rng.integers(-20, 20, size=(2, 3, 16)).astype("int32")
    dots[:, :, rng.integers(16)] = NO_CENTROID
    best, values = (np.empty((2, most), dtype="int32") for _ in range(2))
    best_centroids(dots, ranges, best, values)
    for row, own in enumerate(ranges):
        numbers = [group * 16 + lane for first, last in own for group in range(first, last) for lane in range(16)]
        pairs = [(int(value), number) for value, number in zip(dots[row].reshape(-1), numbers, strict=True)]
        wanted = sorted((p for p in pairs if p[0] > NO_CENTROID), key=lambda pair: -pair[0])[:most]
        assert best[row].tolist() == [number for _, number in wanted] + [-1] * (most - len(wanted))
        assert values[row, : len(wanted)].tolist() == [value for value, _ in wanted]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.integers(0, 10**6))
def test_the_ranges_are_those_of_existing_coarse_centroids(most, seed):
    """Of twenty coarse centroids; -1 and 20 stand for lanes without one."""
    rng = np.random.default_rng(seed)
    best = rng.integers(-1, 21, (3, most)).astype("int32")
    fine_offsets = np.cumsum([0, *rng.integers(1, 9, 20)])
    ranges = np.full((3, most, 2), -9, dtype="int64")
    longest = fine_ranges(best, fine_offsets, ranges)
    for centroids, own in zip(best, ranges, strict=True):
        assert own.tolist() == [[*fine_offsets[c : c + 2]] if 0 <= c < 20 else [0, 0] for c in centroids]
    assert longest == (ranges[:, :, 1] - ranges[:, :, 0]).sum(axis=1).max()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_excess_is_the_share_above_the_last_probed_list_and_one(most, seed):
    rng = np.random.default_rng(seed)
    ranges = np.array([[[0, 1]], [[2, 4]]])
    dots = rng.integers(-20, 20, size=(2, 2, 16)).astype("int32")
    scales = rng.random(2, dtype="float32") + np.float32(0.1)
    best, values = (np.empty((2, most), dtype="int32") for _ in range(2))
    best_centroids(dots, ranges, best, values)
    excess = values.copy()
    imputed_excess(best, excess, scales, 1000)
    counts = (best >= 0).sum(axis=1)
    above = [(row[:n] - row[n - 1]) * float(scale) for row, n, scale in zip(values, counts, scales, strict=True)]
    total = sum(row[0] for row in above)
    for row, own, n in zip(excess, above, counts, strict=True):
        wanted = own * (1000 / total) if total else own
        assert ((row[:n] - 1 <= wanted + 1e-6) & (row[:n] > wanted - 1e-6)).all()
        assert row[n - 1] == 1
        assert not row[n:].any()
