"""Fusion against naive versions with dicts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latelier.indexes.hybrid import fuse_ranks, fuse_scores
from latelier.indexes.results import Ranking

RANKED = st.dictionaries(st.integers(0, 12), st.integers(-5, 5), max_size=8)
WEIGHTS = st.tuples(st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.25, 2.0]))


def ranking(scores):
    numbers = np.array(list(scores), dtype="int64")
    return Ranking.sorted(numbers, np.array(list(scores.values()), dtype="float64"), k=99)


def naive_scores(scores):
    low, high = min(scores.values(), default=0), max(scores.values(), default=0)
    return {number: 1.0 if high == low else (score - low) / (high - low) for number, score in scores.items()}


def naive_ranks(scores):
    ordered = sorted(scores, key=lambda number: (-scores[number], number))
    return {number: 1 / (60 + rank) for rank, number in enumerate(ordered, 1)}


@pytest.mark.parametrize(("fuse", "naive"), [(fuse_scores, naive_scores), (fuse_ranks, naive_ranks)])
@given(left=RANKED, right=RANKED, weights=WEIGHTS, k=st.integers(1, 15))
def test_fusion_equals_a_sum_over_dicts(fuse, naive, left, right, weights, k):
    sides = [naive(left), naive(right)]
    total = {n: sum(w * side.get(n, 0.0) for w, side in zip(weights, sides, strict=True)) for n in {**left, **right}}
    best = sorted(total.items(), key=lambda pair: (-round(pair[1], 12), pair[0]))[:k]
    fused = fuse([ranking(left), ranking(right)], weights, k)
    np.testing.assert_allclose(fused.scores, [score for _, score in best], atol=1e-12)
    if len({round(score, 9) for score in total.values()}) == len(total):  # otherwise rounding may order ties
        assert fused.numbers.tolist() == [number for number, _ in best]
