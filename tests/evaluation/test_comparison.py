"""Two runs compared: the counts by hand, missing and unjudged queries, and what is printed."""

import pytest

from latelier.errors import InvalidArgumentError
from latelier.evaluation import compare, evaluate
from latelier.evaluation.comparison import holm, randomization_test

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


def test_prints_a_table(comparison):
    head, first, second, *notes, changed = str(comparison).splitlines()
    assert " ".join(head.split()) == "measure old new diff 95% interval d p p Holm W/T/L"
    assert first.split()[:4] == ["AP", "0.7143", "0.5357", "-0.1786"]
    assert first.split()[-1] == "1/4/2"
    assert second.split()[0] == "RR"
    assert notes == [
        "(7 queries; diff is new minus old; W/T/L: new wins, ties, losses;",
        "p of a paired randomisation test, two-sided, 100,000 trials)",
    ]
    assert changed == "changed most by AP: q2 -0.8333, q1 -0.5833, q0 +0.1667"


def test_a_query_that_one_run_lacks_counts_as_zero_and_the_run_is_named():
    qrels = {query: QRELS[query] for query in ("q0", "q1", "q2")}
    less = {query: A[query] for query in ("q0", "q1")}
    with pytest.warns(UserWarning, match=r"1 of 3 judged queries have no results in run b .*'q2'") as record:
        found = compare(A, less, qrels, ["RR"])["RR"]
    assert record[0].filename == __file__
    assert found.differences == {"q0": 0.0, "q1": 0.0, "q2": -1.0}


def test_identical_runs_differ_in_nothing():
    qrels = {query: QRELS[query] for query in A}
    comparison = compare(A, A, qrels)
    for found in comparison.values():
        assert (found.p, found.p_holm, found.effect_size, found.interval) == (1.0, 1.0, 0.0, (0.0, 0.0))
        assert found.ties == 6
    assert str(comparison).endswith("changed most by nDCG@10: no query")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((A, B, {"q0": {"good": 1}}), {}, "qrels of 1 query; a comparison needs at least two"),
        ((A, {}, QRELS), {}, "run b is empty"),
        ((A, {"other": {"good": 1.0}}, QRELS), {}, "run b and the qrels share no query"),
        ((A, [], QRELS), {}, r"received \[\] \(list\) as run b"),
        ((A, B, QRELS), {"names": "ab"}, "received 'ab' .* as names"),
        ((A, B, QRELS), {"measures": ["nDGC"]}, "did you mean 'nDCG'"),
        ((A, B, QRELS), {"trials": 0}, "trials"),
        ((A, B, QRELS), {"seed": 0.5}, "seed"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*count as 0")
def test_wrong_arguments(arguments, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        compare(*arguments, **options)
