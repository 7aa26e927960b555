"""Inverted lists, and the selection of candidates, with kernels and in numpy, against dicts and sorts."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latelier.indexes.ivf.kernels.candidates import (
    MOST_TOKENS,
    ListEntries,
    append_lists,
    invert,
    select_candidates,
    sum_bits,
)
from latelier.indexes.ivf.kernels.centroids import ProbedLists, group_rows
from latelier.indexes.ivf.search import highest_places

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("kernel")]
# Each example of a test runs with the same kernels.
SAME = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
NONE = np.zeros(0, "uint8")


def select(probed, excess, lists, allowed, documents, most, dtype="int32"):
    entries = ListEntries(np.cumsum([0, *map(len, lists)]), np.concatenate([*lists, np.zeros(0)]).astype(dtype))
    rows = ProbedLists(np.array(probed, dtype="int32", ndmin=2), np.array(excess, dtype="int32", ndmin=2))
    found = select_candidates(rows, entries, sum_bits(len(probed)), allowed, documents, most)
    return found.documents.tolist(), found.sums.tolist()


@settings(max_examples=40, **SAME)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([3, 40, 300]))
def test_candidates_equal_a_dict(seed, masked, most):
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
    found = select(probed, excess, lists, allowed, 400, most, dtype)
    assert found == (sorted(best), [wanted[d] for d in sorted(best)])


@settings(max_examples=15, **SAME)
@given(
    st.integers(0, 10**6),
    st.integers(1, 20_000),
    st.booleans(),
    st.sampled_from(["even", "steep", "rising", "falling"]),
)
def test_the_best_of_very_many_documents_are_found_to_within_a_bin(seed, most, masked, shape):
    """Whatever the order of their sums: where these rise, each document is better than those before."""
    rng = np.random.default_rng(seed)
    n, levels = 150_000, 400  # three blocks
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
    found, found_sums = select([range(len(lists))], [excess], lists, allowed, n, most)
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
    assert select(probed, excess, [[0], [1]], NONE, 2, 1)[0] == [0]
    assert select(probed, excess, [[0], [1]], NONE, 2, 2)[0] == ([0] if tokens == 1 else [0, 1])
    assert int(excess[:, 0].sum()) == 2 ** sum_bits(tokens) - 1


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_entries_of_a_damaged_file_that_are_out_of_range_add_nothing(dtype):
    far = [300, 40_000] if dtype == "uint16" else [300, -5]
    found = select([[0, 1]], [[7, 3]], [[1, 2, far[0]], [2, 3, far[1]]], NONE, 200, 10, dtype)
    assert found == ([1, 2, 3], [7, 7, 3])


@settings(max_examples=30, **SAME)
@given(st.integers(0, 10**6), st.integers(0, 3))
def test_inverted_lists_equal_a_dict(seed, begin):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, 40)
    tokens = rng.integers(0, 9, lengths.sum()).astype("int32")
    lists = [[] for _ in range(9 - begin)]
    for d, own in enumerate(np.split(tokens, np.cumsum(lengths)[:-1])):
        for i in np.unique(own[own >= begin]):
            lists[i - begin].append(100 + d)
    counts, last = np.zeros(9 - begin, dtype="int64"), np.full(9 - begin, -1, dtype="int32")
    invert(tokens, lengths, 100, begin, last, counts, None)
    assert counts.tolist() == [len(own) for own in lists]
    offsets, documents = np.append(0, np.cumsum(counts)), np.empty(counts.sum(), dtype="int32")
    last[:] = -1
    places = offsets[:-1].copy()
    for some in (slice(0, 25), slice(25, 40)):  # in two steps
        first, end = lengths[: some.start].sum(), lengths[: some.stop].sum()
        invert(tokens[first:end], lengths[some], 100 + some.start, begin, last, places, documents)
    assert [documents[a:b].tolist() for a, b in pairwise(offsets)] == lists
    more = [[d + 1000] * (i % 3) for i, d in enumerate(range(9 - begin))]
    more_offsets = np.append(0, np.cumsum([len(own) for own in more]))
    merged = append_lists(offsets, documents, more_offsets, np.concatenate(more).astype("uint16"))
    assert merged.tolist() == [d for own, new in zip(lists, more, strict=True) for d in [*own, *new]]


@settings(max_examples=50, **SAME)
@given(st.lists(st.integers(0, 4), max_size=40))
def test_grouped_rows_equal_a_stable_sort(clusters):
    offsets, order = group_rows(np.array(clusters, dtype="int32"), 5)
    assert order.tolist() == sorted(range(len(clusters)), key=clusters.__getitem__)
    assert np.diff(offsets).tolist() == [clusters.count(c) for c in range(5)]


@settings(max_examples=80, **SAME)
@given(st.lists(st.floats(-5, 5, width=16), min_size=1, max_size=50), st.data())
def test_the_highest_places_equal_a_stable_sort(scores, data):
    most = data.draw(st.integers(1, len(scores)))
    places = highest_places(np.array(scores, dtype="float32"), most)
    order = np.argsort(-np.array(scores, dtype="float32"), kind="stable")[:most]
    assert places.tolist() == sorted(order.tolist())
