"""One real model for all tests here; those that change it take a copy."""

import copy

import pytest

from latelier.models import ColBERT


@pytest.fixture(scope="session")
def shared_colbert(minilm):
    # Two of the six layers: what is tested here does not depend on how well the model reads.
    return ColBERT(minilm, 16, "cpu", max_length_query=12, config_kwargs={"num_hidden_layers": 2})


@pytest.fixture
def colbert(shared_colbert):
    """A fresh model with the whole recipe, without dropout, so that two passes can be compared."""
    return copy.deepcopy(shared_colbert).eval()
