"""The instruction sets that kernels are compiled for."""

import pytest

from latelier.kernels.multiply import INSTRUCTION_SETS


@pytest.fixture(params=INSTRUCTION_SETS.values(), ids=INSTRUCTION_SETS)
def isa(request):
    if not request.param.is_supported:
        pytest.skip(f"this processor does not support {request.param.name}")
    return request.param
