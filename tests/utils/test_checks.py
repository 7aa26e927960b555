"""Numbers of things: integers in range, whatever they come from."""

from functools import partial

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count, check_number, parse_bytes

COUNTS, NUMBERS = partial(check_count, "n"), partial(check_number, "n")
ACCEPTED = {
    COUNTS: [1, np.int64(3), np.uint8(3), 2**63 - 1],
    NUMBERS: [0.05, 3, 1e300, np.float32(0.5), np.float16(2), np.int64(1), np.uint8(3)],
    partial(parse_bytes, "n"): [1],
}
REFUSED = {
    COUNTS: [0, -1, True, 1.0, "3", None, [1], float("nan"), np.float32(1), 2**63],
    partial(check_count, "n", most=3): [0, 4, True, 2.0, 10**400],
    NUMBERS: [0, -1.0, float("nan"), float("inf"), 10**400, "1", True, None, np.True_, np.float16("inf")],
    partial(parse_bytes, "n"): [
        *["", "1", "GB", "-1GB", "1 goose", "1ib", "1e9GB", "0GB", "0.1B", "9" * 15 + "TB", 0, -1, 1.5, True, b"1GB"]
    ],
}


@pytest.mark.parametrize(("check", "value"), [(check, value) for check in ACCEPTED for value in ACCEPTED[check]])
def test_numbers_become_those_of_python(check, value):
    assert check(value) == value
    assert type(check(value)) in (int, float)


@pytest.mark.parametrize(("check", "value"), [(check, value) for check in REFUSED for value in REFUSED[check]])
def test_other_values_are_rejected(check, value):
    with pytest.raises(InvalidArgumentError, match=r"received n="):
        check(value)


@pytest.mark.parametrize(
    ("given", "size"), [(1, 1), ("512MB", 512_000_000), ("1gb", 10**9), ("2KiB", 2048), ("1TB", 10**12), (None, None)]
)
def test_sizes(given, size):
    assert parse_bytes("max_memory", given) == size
