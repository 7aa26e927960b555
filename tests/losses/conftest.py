"""One real model for all tests here; those that change it take a copy."""

import copy

import pytest
import torch

from latelier.models import ColBERT


@pytest.fixture(autouse=True)
def _one_thread():
    """Batches are tiny here, and threads that wait for one another make a busy machine ten times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shared_colbert(minilm):
    # Two of the six layers: what is tested here does not depend on how well the model reads.
    return ColBERT(minilm, 16, "cpu", max_length_query=12, config_kwargs={"num_hidden_layers": 2})


@pytest.fixture
def colbert(shared_colbert):
    """A fresh model with the whole recipe, without dropout, so that two passes can be compared."""
    return copy.deepcopy(shared_colbert).eval()
