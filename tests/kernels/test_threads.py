"""Work shared out among threads is done once each, and what goes wrong in one is raised."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latelier.kernels.threads import for_ranges


@given(st.lists(st.integers(0, 50_000), max_size=12), st.integers(1, 1 << 16))
def test_ranges_cover_every_document_once(lengths, work):
    seen = []
    for_ranges(lambda first, last: seen.extend(range(first, last)), np.cumsum([0, *lengths]), work)
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize("helper", [True, False], ids=["helper", "caller"])
def test_what_a_thread_raises_is_raised(helper):
    caller, seen, before = threading.current_thread(), set(), torch.get_num_threads()

    def fail(first, last):
        seen.add(threading.current_thread())
        while len(seen) < 2:  # until both are at work
            pass
        if (threading.current_thread() is not caller) == helper:
            raise ValueError(f"documents {first} to {last}")

    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match=r"documents \d+ to"):
            for_ranges(fail, np.arange(0, 10_000_000, 1000), 1 << 16)
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 2


def test_work_within_work_comes_to_an_end():
    before, seen = torch.get_num_threads(), []
    offsets = np.arange(0, 100_000, 1000)
    torch.set_num_threads(2)
    try:
        for_ranges(
            lambda *_: for_ranges(lambda first, last: seen.append(last - first), offsets, 1 << 16), offsets, 4096
        )
    finally:
        torch.set_num_threads(before)
    assert sum(seen) % 99 == 0
    assert len(seen) > 99
