"""Two runs compared: the counts by hand, missing and unjudged queries, and what is printed."""

import itertools
import math
import random

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError
from latelier.evaluation import compare, evaluate
from latelier.evaluation.comparison import bootstrap_interval, holm, randomization_test

QRELS = {f"q{i}": {"good": 1, "fair": 1} for i in range(6)} | {"only negative": {"bad": 0}}
A = {f"q{i}": {"good": 3.0, "bad": 2.0, "fair": 1.0} for i in range(6)}

B = {
    **A,
    "q0": {"good": 2.0, "fair": 1.0},
    "q1": {"bad": 2.0, "good": 1.0},
    "q2": {"bad": 1.0},
    "unjudged": {"good": 1.0},
}


@pytest.fixture(scope="module")
def comparison():
    with pytest.warns(UserWarning, match="count as 0: 'only negative'"):
        return compare(A, B, QRELS, ["AP", "RR"], names=("old", "new"))


def test_differences_are_those_of_evaluate(comparison):
    with pytest.warns(UserWarning, match="in the run and count as 0"):
        first, second = (evaluate(run, QRELS, ["AP", "RR"]) for run in (A, B))
    for name, found in comparison.items():
        assert (found.a, found.b) == (first[name], second[name])
        assert found.difference == pytest.approx(second[name] - first[name])
        for query, value in found.differences.items():
            assert value == pytest.approx(second.per_query[query][name] - first.per_query[query][name])
        assert found.p == randomization_test(list(found.differences.values()))
    assert [found.p_holm for found in comparison.values()] == holm([found.p for found in comparison.values()])


def test_wins_ties_losses_and_the_queries_that_changed(comparison):
    found = comparison["AP"]
    assert (found.wins, found.ties, found.losses) == (1, 4, 2)
    assert found.changed() == pytest.approx({"q2": -5 / 6, "q1": -7 / 12, "q0": 1 / 6})
    assert list(found.changed(2)) == ["q2", "q1"]


def test_a_query_that_one_run_lacks_counts_as_zero_and_the_run_is_named():
    qrels = {query: QRELS[query] for query in ("q0", "q1", "q2")}
    less = {query: A[query] for query in ("q0", "q1")}
    with pytest.warns(UserWarning, match="1 of 3 judged queries have no results in run b") as record:
        found = compare(A, less, qrels, ["RR"])["RR"]
    assert record[0].filename == __file__
    assert found.differences == {"q0": 0.0, "q1": 0.0, "q2": -1.0}


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((A, B, {"q0": {"good": 1}}), {}, "qrels of 1 query; a comparison needs at least two"),
        ((A, {}, QRELS), {}, "run b is empty"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*count as 0")
def test_wrong_arguments(arguments, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        compare(*arguments, **options)


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


def test_systems_that_do_not_differ_are_called_different_in_one_of_twenty_cases():
    rng = np.random.default_rng(0)
    p_values = [randomization_test(rng.normal(0, 1, 25), trials=400, seed=i) for i in range(600)]
    assert 0.03 < np.mean(np.array(p_values) <= 0.05) < 0.07
    assert 0.45 < np.mean(p_values) < 0.55


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


def test_bootstrap_interval_equals_a_loop_and_narrows_with_more_queries():
    values = list(draws(40, 0.1, 2))
    low, high = bootstrap_interval(values)
    rng = random.Random(0)
    means = sorted(sum(rng.choices(values, k=40)) / 40 for _ in range(4000))
    assert low == pytest.approx(means[100], abs=0.01)
    assert high == pytest.approx(means[3900], abs=0.01)
    few = bootstrap_interval(values, confidence=0.5)
    assert low < few[0] < np.mean(values) < few[1] < high
