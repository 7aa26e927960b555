"""Scores on each instruction set that this processor supports."""

import pytest

from latelier.kernels.multiply import INSTRUCTION_SETS


@pytest.fixture(params=INSTRUCTION_SETS)
def kernel(request, monkeypatch):
    if not INSTRUCTION_SETS[request.param].is_supported:
        pytest.skip(f"this processor does not support {request.param}")
    monkeypatch.setenv("LATELIER_KERNELS", request.param)
    return request.param
