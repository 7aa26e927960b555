"""Work shared out among threads is done once each, and what goes wrong in one is raised."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latelier.kernels.threads import for_each, for_ranges, limited_threads


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


@pytest.fixture
def _four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def each_square(work):
    found = {}
    for_each(lambda number: (work(), found.update({number: number**2})), range(40))
    return [found[number] for number in range(40)]


def each_range(work):
    found, offsets = np.zeros(40), np.arange(0, 41_000, 1000)

    def square(first, last):
        work()
        found[first:last] = np.arange(first, last) ** 2

    for_ranges(square, offsets, 1 << 16)
    return found.tolist()


@pytest.mark.usefixtures("_four_threads")
@pytest.mark.parametrize("call", [each_square, each_range])
@pytest.mark.parametrize("allowed", [1, 2, 3, 4])
def test_as_many_threads_work_as_are_allowed_with_equal_results(call, allowed):
    seen, all_at_work = set(), threading.Barrier(allowed)

    def work():
        if (thread := threading.get_ident()) not in seen:
            seen.add(thread)
            all_at_work.wait(30)  # one thread too few would wait in vain, one too many be seen or wait in vain
        time.sleep(0.002)  # so that there is work left for one too many

    with limited_threads(allowed):
        assert call(work) == [number**2 for number in range(40)]
    assert len(seen) == allowed
    assert threading.get_ident() in seen
