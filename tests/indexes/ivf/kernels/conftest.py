"""The instruction sets that kernels are compiled for."""

import pytest

from latelier.kernels import multiply


@pytest.fixture(params=multiply.supported(), ids=lambda isa: isa.name)
def isa(request):
    return request.param
