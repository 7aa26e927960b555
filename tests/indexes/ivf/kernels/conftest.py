"""The instruction sets that kernels are compiled for."""

import pytest

from latelier.kernels.multiply import supported

SETS = supported()
# Each is compiled anew, which takes seconds: `make test` has the best one and the one that every processor has.
ALL = [pytest.param(isa, marks=pytest.mark.slow) if isa in SETS[1:-1] else isa for isa in SETS]


@pytest.fixture(params=ALL, ids=lambda isa: isa.name)
def isa(request):
    return request.param
