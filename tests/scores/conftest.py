"""Scores on each instruction set that this processor supports."""

import pytest

from latelier.kernels.multiply import supported

NAMES = [isa.name for isa in supported()]
# Each is compiled anew, which takes seconds: `make test` has the best one and the one that every processor has.
ALL = [pytest.param(name, marks=pytest.mark.slow) if name in NAMES[1:-1] else name for name in NAMES]


@pytest.fixture(params=ALL)
def kernel(request, monkeypatch):
    monkeypatch.setenv("LATELIER_KERNELS", request.param)
    return request.param
