"""Inverted lists, probing and the selection of candidates against dicts and sorts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.indexes.ivf.kernels.candidates import (
    MOST_TOKENS,
    NO_CENTROID,
    ListEntries,
    best_centroids,
    highest_places,
    near_highest,
    select_candidates,
)
from latelier.indexes.ivf.search import sum_bits

pytestmark = pytest.mark.processor


def select(probed, excess, lists, allowed, documents, block, most, dtype="int32"):
    offsets = np.cumsum([0, *map(len, lists)])
    entries = np.concatenate([*lists, np.zeros(0)]).astype(dtype)
    best, sums = np.full((2, most), -7, dtype="int64"), np.full(block, 2**32 - 1, dtype="uint32")
    rows = np.asarray(probed, dtype="int32"), np.asarray(excess, dtype="int32")
    lists = tuple(ListEntries(offsets, entries.view("uint8"), entries.itemsize))
    count = select_candidates(*rows, lists, sum_bits(len(probed)), allowed, documents, sums, best)
    assert (best[:, count:] == -7).all()
    return best[0, :count].tolist(), best[1, :count].tolist()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([64, 128, 1024]), st.sampled_from([3, 40, 300]))
def test_candidates_equal_a_dict(seed, masked, block, most):
    """The excess is a multiple of a bin, so that sums are told apart; of equal ones the first are taken."""
    rng = np.random.default_rng(seed)
    dtype, step = rng.choice(["uint16", "int32"]), 2**12
    lists = [np.sort(rng.choice(400, rng.integers(0, 150), replace=False)) for _ in range(6)]
    allowed = rng.integers(0, 2, 400).astype("uint8") if masked else np.zeros(0, "uint8")
    probed = np.array([rng.permutation(6)[:4] for _ in range(3)])
    probed[1, 3] = -1
    excess = -np.sort(-rng.integers(1, 50, size=(3, 4)), axis=1) * step
    wanted = {}
    for row, own in zip(probed, excess, strict=True):
        first = {}
        for i, added in zip(row, own, strict=True):
            for d in lists[i] if i >= 0 else ():
                if not masked or allowed[d]:
                    first.setdefault(int(d), int(added))
        for d, added in first.items():
            wanted[d] = wanted.get(d, 0) + added
    best = sorted(wanted, key=lambda d: (-wanted[d], d))[:most]
    found = select(probed, excess, lists, allowed, 400, block, most, dtype)
    assert found == (sorted(best), [wanted[d] for d in sorted(best)])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 3_000), st.booleans(), st.sampled_from(["even", "steep", "rising", "falling"])
)
def test_the_best_of_very_many_documents_are_found_to_within_a_bin(seed, most, masked, shape):
    """Whatever the order of their sums: where these rise, each document is better than those before."""
    rng = np.random.default_rng(seed)
    n, levels = 20_000, 400
    shares = {"even": rng.random(n), "steep": rng.random(n) ** 20, "rising": np.arange(n) / n}
    shares["falling"] = 1 - shares["rising"]
    level = (shares[shape] * levels).astype("int64")
    lists = [np.flatnonzero(level == levels - 1 - i) for i in range(levels - 50)]
    excess = (2**24 - 1) * np.arange(levels, 50, -1) // levels
    sums = np.zeros(n, dtype="int64")
    for own, added in zip(lists, excess, strict=True):
        sums[own] = added
    allowed = rng.integers(0, 2, n).astype("uint8") if masked else np.zeros(0, "uint8")
    counts = sums > 0
    counts &= allowed > 0 if masked else True
    found, found_sums = select([range(len(lists))], [excess], lists, allowed, n, 4096, most)
    assert len(found) == min(most, counts.sum())
    assert found_sums == sums[found].tolist()
    assert found == sorted(set(found))
    assert counts[found].all()
    left = np.setdiff1d(np.flatnonzero(counts), found)
    assert not len(left) or sums[left].max() < sums[found].min() + 2**12


@pytest.mark.parametrize("tokens", [1, 2, 255, 256, 5000, MOST_TOKENS])
def test_all_tokens_of_a_long_query_are_told_apart(tokens):
    """Document 0 is in the list that all tokens probe first, document 1 in one that all but the last probe next."""
    probed = [[0, 1]] * (tokens - 1) + [[0, -1]]
    excess = np.ones((tokens, 2))
    excess[-1] = 2 ** sum_bits(tokens) - tokens
    assert select(probed, excess, [[0], [1]], np.zeros(0, "uint8"), 2, 64, 1)[0] == [0]
    assert select(probed, excess, [[0], [1]], np.zeros(0, "uint8"), 2, 64, 2)[0] == ([0] if tokens == 1 else [0, 1])
    assert int(excess[:, 0].sum()) == 2 ** sum_bits(tokens) - 1


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


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-5, 5, width=16), min_size=1, max_size=50), st.data())
def test_the_highest_places_equal_a_stable_sort(scores, data):
    most = data.draw(st.integers(1, len(scores)))
    places = np.empty(most, dtype="int64")
    highest_places(np.array(scores, dtype="float32"), places)
    order = np.argsort(-np.array(scores, dtype="float32"), kind="stable")[:most]
    assert places.tolist() == sorted(order.tolist())


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-5, 5, width=16), min_size=1, max_size=50), st.floats(0, 4, width=16), st.data())
def test_scores_near_the_kth_highest_equal_a_comprehension(scores, slack, data):
    k = data.draw(st.integers(1, len(scores)))
    places = np.full(len(scores), -1, dtype="int64")
    count = near_highest(np.array(scores, dtype="float32"), k, slack, places)
    edge = sorted(scores, reverse=True)[k - 1] - slack
    assert places[:count].tolist() == [i for i, score in enumerate(scores) if score >= edge]
    assert (places[count:] == -1).all()
