"""Rows put together with those whose documents are hard for them."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latelier.data import TrainingSet, order_by_neighbours
from latelier.data.samplers import InOrder
from latelier.errors import InvalidArgumentError


def mined(negatives):
    """Row i with the positive ``Pi`` and the positives of other rows, or texts that are nobody's."""
    return TrainingSet(
        [f"q{i}" for i in range(len(negatives))],
        [[f"P{i}", *(f"P{j}" for j in others)] for i, others in enumerate(negatives)],
    )


@given(st.data(), st.integers(0, 4), st.integers(0, 2), st.integers(1, 3), st.integers(0, 99))
def test_every_row_comes_once_a_pass_with_negatives_of_its_own(data, neighbours, negatives, passes, seed):
    rows = data.draw(st.integers(1, 12))
    others = [
        data.draw(st.lists(st.integers(0, 15).filter(lambda j, i=i: j != i), min_size=3, max_size=3))
        for i in range(rows)
    ]
    given_rows = mined(others)
    ordered = order_by_neighbours(given_rows, neighbours, negatives=negatives, passes=passes, seed=seed)
    assert Counter(ordered.queries) == dict.fromkeys(given_rows.queries, passes)
    for start in range(0, len(ordered), rows):
        assert set(ordered.queries[start : start + rows]) == set(given_rows.queries)
    for query, documents in zip(ordered.queries, ordered.documents, strict=True):
        positive, *own = given_rows.documents[int(query[1:])]
        assert documents[0] == positive
        assert len(documents) == 1 + negatives
        assert not Counter(documents[1:]) - Counter(own)


def test_neighbours_follow_hardest_first_and_passes_differ():
    # Each row of a group of four is hard for the others, the next one most.
    groups = mined([[4 * (i // 4) + (i + step) % 4 for step in (1, 2, 3)] for i in range(40)])
    ordered = order_by_neighbours(groups, neighbours=3, passes=2)
    numbers = [int(query[1:]) for query in ordered.queries]
    for start in range(0, 80, 4):
        first = numbers[start]
        assert numbers[start : start + 4] == [4 * (first // 4) + (first + step) % 4 for step in range(4)]
    assert numbers[:40] != numbers[40:]
    alone = order_by_neighbours(groups, neighbours=0)
    assert sum(a // 4 == b // 4 for a, b in pairwise(numbers[:40])) == 30
    rows = [int(query[1:]) for query in alone.queries]
    assert sum(a // 4 == b // 4 for a, b in pairwise(rows)) < 10
    assert order_by_neighbours(groups, neighbours=3, passes=2, seed=np.int64(0)) == ordered


def test_rows_whose_neighbours_are_taken_are_spread_over_the_pass():
    # Only the first ten are anybody's neighbours: a few groups take them all.
    rows = mined([[(i + step) % 10 for step in (1, 2, 3)] for i in range(100)])
    last = [order_by_neighbours(rows, neighbours=3, seed=seed).queries[50:] for seed in range(10)]
    assert sum(int(query[1:]) < 10 for queries in last for query in queries) > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbours": -1}, "neighbours=-1; expected an integer of at least 0"),
        ({"passes": 0}, "passes=0; expected an integer of at least 1"),
        ({"seed": [1]}, r"received seed=\[1\]; expected an integer of at least 0"),
        ({"negatives": 4}, "negatives=4, but the rows have 3 each"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        order_by_neighbours(mined([[1, 2, 3]] * 4), **options)
    with pytest.raises(InvalidArgumentError, match="teacher"):
        order_by_neighbours(TrainingSet(["q"], [["a", "b"]], [[1.0, 0.0]]))
    with pytest.raises(
        InvalidArgumentError, match=r"received \[\('q', 'a'\)\] \(list\) as mined; expected a TrainingSet"
    ):
        order_by_neighbours([("q", "a")])


@pytest.mark.parametrize(("drop_last", "last"), [(True, [2, 3]), (False, [4])])
def test_batches_in_order(drop_last, last):
    batches = list(InOrder(range(5), batch_size=2, drop_last=drop_last))
    assert batches[:2] == [[0, 1], [2, 3]]
    assert batches[-1] == last
    assert len(batches) == len(InOrder(range(5), batch_size=2, drop_last=drop_last))
