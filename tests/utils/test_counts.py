"""Numbers of things: integers in range, whatever they come from."""

import numpy as np
import pytest
import torch

from latelier.errors import InvalidArgumentError
from latelier.utils import check_count, count_entries


@pytest.mark.parametrize("value", [1, np.int64(3), np.uint8(3), 2**63 - 1])
def test_counts(value):
    check_count("k", value)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3", None, [1], float("nan"), np.float32(1), 2**63])
def test_what_is_no_count(value):
    with pytest.raises(InvalidArgumentError, match=r"received k=.*; expected an integer of at least 1"):
        check_count("k", value)


def test_none_and_zero_where_they_are_accepted():
    check_count("k", None, optional=True)
    check_count("k", 0, 0)
    with pytest.raises(InvalidArgumentError, match="received k=-1; expected an integer of at least 0, or None"):
        check_count("k", -1, 0, optional=True)


def test_entries():
    assert [count_entries(each, "ids") for each in (["a"], ("a", "b"), np.ones((3, 2)), torch.ones(4))] == [1, 2, 3, 4]


@pytest.mark.parametrize("value", ["ab", b"ab", {"a": 1}, None, 5, {1}, np.array(1), torch.tensor(1), iter([])])
def test_what_has_no_entries(value):
    with pytest.raises(InvalidArgumentError, match="as ids; expected a list"):
        count_entries(value, "ids")
