"""Short inputs are computed with one thread or all, whichever is faster, and long ones with all."""

import pytest
import torch

from latelier.models import ColBERT
from latelier.models.cpu import pace as module
from latelier.models.cpu.held_threads import held_threads
from latelier.models.cpu.pace import Pace

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("two_threads")]


class Machine:
    """A clock, and what a call takes with each number of threads."""

    def __init__(self):
        self.time, self.seconds, self.used = 0.0, {1: 3.0, 2: 2.0}, []

    def compute(self):
        self.used.append(torch.get_num_threads())
        self.time += self.seconds[self.used[-1]]
        return "computed"

    def run(self, pace, calls, tokens=12):
        self.used.clear()
        assert {pace.run(tokens, self.compute) for _ in range(calls)} == {"computed"}
        return self.used


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(module, "perf_counter", lambda: machine.time)
    return machine


def test_the_faster_number_of_threads_is_used(machine):
    pace = Pace()
    assert sorted(machine.run(pace, 6)) == [1, 1, 1, 2, 2, 2]
    assert [n + 1 for n, used in enumerate(machine.run(pace, 124)) if used == 1] == [4, 12, 28, 60, 124]
    machine.seconds[2] = 9.0  # another process has taken a core
    assert machine.run(pace, 2) == [2, 2]
    assert [n + 1 for n, used in enumerate(machine.run(pace, 124)) if used == 2] == [4, 12, 28, 60, 124]
    machine.seconds[2] = 2.0
    assert machine.run(pace, 128).count(2) == 2  # the median of three calls
    assert [n + 1 for n, used in enumerate(machine.run(pace, 10)) if used == 1] == [4]
    assert torch.get_num_threads() == 2


def test_one_slow_call_changes_nothing(machine):
    pace = Pace()
    machine.run(pace, 6)
    machine.seconds[2] = 50.0
    assert machine.run(pace, 1) == [2]
    machine.seconds[2] = 2.0
    assert machine.run(pace, 2) == [2, 2]


def test_long_inputs_and_single_threads_are_computed_with_what_there_is(machine):
    machine.seconds[2] = 9.0
    assert machine.run(Pace(), 50, tokens=65) == [2] * 50
    with held_threads(1):
        assert machine.run(Pace(), 50) == [1] * 50


def test_an_error_is_raised_and_not_timed(machine):
    pace = Pace()

    def fail():
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        pace.run(12, fail)
    assert torch.get_num_threads() == 2
    assert sorted(machine.run(pace, 6)) == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_queries_are_the_same_with_any_number_of_threads(dense, encoder_folder, dtype):
    for model in (dense, ColBERT(encoder_folder, embedding_size=16, device="cpu")):
        queries = [model.encode_query("which fruit is a pear?", compute_dtype=dtype) for _ in range(8)]
        tolerance = 1e-6 if dtype == "float32" else 1e-2
        for query in queries[1:]:
            torch.testing.assert_close(query, queries[0], rtol=0, atol=tolerance)
