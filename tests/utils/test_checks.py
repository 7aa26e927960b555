"""Numbers of things: integers in range, whatever they come from."""

import numpy as np
import pytest
import torch

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count, check_number, count_entries, parse_bytes


@pytest.mark.parametrize("value", [1, np.int64(3), np.uint8(3), 2**63 - 1])
def test_counts(value):
    assert check_count("k", value) == value
    assert type(check_count("k", value)) is int


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3", None, [1], float("nan"), np.float32(1), 2**63])
def test_what_is_no_count(value):
    with pytest.raises(InvalidArgumentError, match=r"received k=.*; expected an integer of at least 1"):
        check_count("k", value)


@pytest.mark.parametrize("value", [0, 4, True, 2.0, 10**400])
def test_counts_up_to_a_limit(value):
    assert check_count("dim", 3, most=3) == 3
    with pytest.raises(InvalidArgumentError, match=r"received dim=.*; expected an integer from 1 to 3"):
        check_count("dim", value, most=3)


@pytest.mark.parametrize("value", [0.05, 3, 1e300, np.float32(0.5), np.float16(2), np.int64(1), np.uint8(3)])
def test_positive_numbers(value):
    assert check_number("temperature", value) == value
    assert type(check_number("temperature", value)) in (int, float)


@pytest.mark.parametrize(
    "value",
    [0, -1.0, float("nan"), float("inf"), 10**400, "1", True, None, np.True_, np.float32("nan"), np.float16("inf")],
)
def test_what_is_no_positive_number(value):
    with pytest.raises(InvalidArgumentError, match="received temperature="):
        check_number("temperature", value)


def test_entries():
    assert [count_entries(each, "ids") for each in (["a"], ("a", "b"), np.ones((3, 2)), torch.ones(4))] == [1, 2, 3, 4]


@pytest.mark.parametrize("value", ["ab", b"ab", {"a": 1}, None, 5, {1}, np.array(1), torch.tensor(1), iter([])])
def test_what_has_no_entries(value):
    with pytest.raises(InvalidArgumentError, match="as ids; expected a list"):
        count_entries(value, "ids")


@pytest.mark.parametrize(
    ("given", "size"), [(1, 1), ("512MB", 512_000_000), ("1gb", 10**9), ("2KiB", 2048), ("1TB", 10**12), (None, None)]
)
def test_sizes(given, size):
    assert parse_bytes("max_memory", given) == size


@pytest.mark.parametrize(
    "given",
    ["", "1", "GB", "-1GB", "1 goose", "1ib", "1e9GB", "0GB", "0.1B", "9" * 15 + "TB", 0, -1, 1.5, True, b"1GB"],
)
def test_other_values_are_rejected(given):
    with pytest.raises(InvalidArgumentError, match="received max_memory="):
        parse_bytes("max_memory", given)
