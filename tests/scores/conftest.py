"""Scores on each instruction set that this processor supports."""

import pytest

from latelier.errors import InvalidArgumentError
from latelier.scores import colbert_scores


@pytest.fixture(params=["avx512vnni", "avx512", "avxvnni", "avx2", "dotprod", "neon", "generic"])
def kernel(request, monkeypatch):
    monkeypatch.setenv("LATELIER_KERNELS", request.param)
    try:
        colbert_scores([[[1.0]]], [[[1.0]]], backend="packed")
    except InvalidArgumentError as error:
        if "this processor supports" not in str(error):
            raise
        pytest.skip(str(error))
    return request.param
