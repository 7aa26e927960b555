"""Scores on each instruction set that this processor supports."""

import pytest

from latelier.kernels.library import instruction_set, supported


@pytest.fixture(params=supported()[:-1])
def kernel(request, monkeypatch):
    monkeypatch.setenv("LATELIER_KERNELS", request.param)
    instruction_set.cache_clear()
    yield request.param
    instruction_set.cache_clear()
