"""The instruction sets that kernels are compiled for."""

import pytest

from latelier.kernels import multiply


@pytest.fixture(params=multiply.INSTRUCTION_SETS.values(), ids=lambda isa: isa.name)
def isa(request):
    if not request.param.is_supported:
        pytest.skip(f"this processor does not support {request.param.name}")
    return request.param
