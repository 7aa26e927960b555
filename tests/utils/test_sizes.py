"""Sizes in bytes, as texts and as numbers."""

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (1, 1),
        (np.int64(5000), 5000),
        ("512MB", 512_000_000),
        ("1gb", 10**9),
        (" 1.5 GiB ", 3 << 29),
        ("2KiB", 2048),
        ("7b", 7),
        ("1TB", 10**12),
        (None, None),
    ],
)
def test_sizes(given, size):
    assert parse_bytes("max_memory", given) == size


@pytest.mark.parametrize(
    "given",
    ["", "1", "GB", "-1GB", "1 goose", "1ib", "1e9GB", "0GB", "0.1B", "9" * 15 + "TB", 0, -1, 1.5, True, b"1GB"],
)
def test_other_values_are_rejected(given):
    with pytest.raises(
        InvalidArgumentError, match=r"received max_memory=.*; expected a number of bytes, or a text such"
    ):
        parse_bytes("max_memory", given)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (3.2e9, "3.2 GB"), (5e15, "5000.0 TB")]
)
def test_texts_of_sizes(size, text):
    assert format_bytes(size) == text
