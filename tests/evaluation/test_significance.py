"""The randomisation test against scipy and a naive loop, its false alarms, and Holm's correction by hand."""

import itertools
import math
import random

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError
from latelier.evaluation.comparison import bootstrap_interval, holm, paired_effect_size, randomization_test


def draws(n, mean, seed):
    """Differences with two digits, so that sums of different signs are often equal."""
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(mean, 0.3, n), 2)


@pytest.mark.parametrize(("n", "mean"), [(1, 0.3), (2, 0.0), (7, 0.2), (12, -0.1)])
def test_exact_p_equals_enumeration_and_scipy(n, mean):
    from scipy.stats import permutation_test

    values = draws(n, mean, n)
    observed = abs(values.sum())
    hits = 0
    for signs in itertools.product((1, -1), repeat=n):
        hits += abs(sum(sign * value for sign, value in zip(signs, values, strict=True))) >= observed - 1e-9
    found = randomization_test(values)
    assert found == hits / 2**n
    if n > 1:
        peer = permutation_test((values,), np.mean, permutation_type="samples", n_resamples=2**n + 1)
        assert found == pytest.approx(peer.pvalue, abs=1e-12)


def test_sampled_p_agrees_with_scipy_and_is_reproducible():
    from scipy.stats import permutation_test

    values = draws(60, 0.06, 3)
    found = randomization_test(values, trials=40_000)
    rng = np.random.default_rng(0)
    peer = permutation_test((values,), np.mean, permutation_type="samples", n_resamples=40_000, rng=rng).pvalue
    assert 0.02 < found < 0.5
    assert found == pytest.approx(peer, abs=5 * math.sqrt(2 * peer * (1 - peer) / 40_000))  # 5 standard errors
    assert found == randomization_test(values, trials=40_000)
    assert found != randomization_test(values, trials=40_000, seed=1)
    assert found == pytest.approx(randomization_test(-values, trials=40_000), abs=1e-12)


def test_sampled_p_is_never_zero():
    assert randomization_test([1.0] * 100, trials=999) == 1 / 1000


def test_small_blocks_count_each_trial_once(monkeypatch):
    many, few = draws(30, 0.1, 5), draws(10, 0.1, 6)
    whole = randomization_test(many, trials=5000), randomization_test(few)
    monkeypatch.setattr("latelier.evaluation.comparison._BLOCK", 64)
    assert randomization_test(many, trials=5000) == pytest.approx(whole[0], abs=0.03)  # other signs, as many
    assert randomization_test(few) == whole[1]


def test_systems_that_do_not_differ_are_called_different_in_one_of_twenty_cases():
    rng = np.random.default_rng(0)
    p_values = [randomization_test(rng.normal(0, 1, 25), trials=400, seed=i) for i in range(600)]
    assert 0.03 < np.mean(np.array(p_values) <= 0.05) < 0.07
    assert 0.45 < np.mean(p_values) < 0.55


def test_zeros_change_nothing_and_only_zeros_give_one():
    values = list(draws(8, 0.2, 1))
    assert randomization_test([0.0] * 50 + values) == randomization_test(values)
    assert randomization_test([0.0, 0.0]) == 1.0


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # 3*0.01, max(0.04, 0.06), 2*0.03, 4*0.005
        ([0.5, 0.9], [1.0, 1.0]),
        ([0.2], [0.2]),
        ([], []),
    ],
)
def test_holm_by_hand(p_values, expected):
    assert holm(p_values) == pytest.approx(expected)


def test_effect_size_by_hand():
    assert paired_effect_size([0.1, 0.3]) == pytest.approx(0.2 / math.sqrt(0.02))
    assert paired_effect_size([0.0, 0.0]) == 0.0
    assert paired_effect_size([-0.25, -0.25]) == -math.inf


def test_bootstrap_interval_equals_a_loop_and_narrows_with_more_queries():
    values = list(draws(40, 0.1, 2))
    low, high = bootstrap_interval(values)
    rng = random.Random(0)
    means = sorted(sum(rng.choices(values, k=40)) / 40 for _ in range(4000))
    assert low == pytest.approx(means[100], abs=0.01)
    assert high == pytest.approx(means[3900], abs=0.01)
    few = bootstrap_interval(values, confidence=0.5)
    assert low < few[0] < np.mean(values) < few[1] < high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: randomization_test([]), r"differences of shape \(0,\)"),
        (lambda: randomization_test([[0.1]]), r"differences of shape \(1, 1\)"),
        (lambda: randomization_test([0.1, math.nan]), "difference 1 is not finite"),
        (lambda: randomization_test([0.1], trials=0), "trials"),
        (lambda: randomization_test([0.1] * 40, seed=-1), "seed"),
        (lambda: paired_effect_size([0.1]), "needs at least two"),
        (lambda: bootstrap_interval([0.1], confidence=95), "confidence=95"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()
