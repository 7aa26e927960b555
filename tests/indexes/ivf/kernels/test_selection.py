"""Selection against Python's sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.indexes.ivf.kernels.candidates import highest_places, near_highest, nth_highest, sort_falling

pytestmark = pytest.mark.processor


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


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=900), st.data())
def test_selecting_and_sorting_numbers_equal_those_of_python(numbers, data):
    n = data.draw(st.integers(1, len(numbers)))
    array, falling = np.array(numbers), sorted(numbers, reverse=True)
    assert nth_highest(array, n) == falling[n - 1]
    assert sorted(array[:n].tolist(), reverse=True) == falling[:n]
    distinct = np.array(list(dict.fromkeys(numbers)))
    sort_falling(distinct, n)
    assert distinct[:n].tolist() == sorted(set(numbers), reverse=True)[:n]


def test_more_numbers_than_one_block_are_sorted():
    numbers = np.random.default_rng(0).permutation(1000)
    sort_falling(numbers, 300)
    assert numbers[:300].tolist() == list(range(999, 699, -1))


def test_equal_scores_of_minus_infinity_are_selected_in_order():
    places = np.full(3, -1, dtype="int64")
    highest_places(np.array([-np.inf, 1, -np.inf, -np.inf], dtype="float32"), places)
    assert places.tolist() == [0, 1, 2]
