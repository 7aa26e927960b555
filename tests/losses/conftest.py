"""One real model for all tests here; those that change it take a copy."""

import copy

import pytest

from latelier.models import ColBERT


@pytest.fixture(scope="session")
def shared_colbert(shallow):
    return ColBERT(shallow, 16, "cpu", max_length_query=12)


@pytest.fixture
def colbert(shared_colbert):
    return copy.deepcopy(shared_colbert).eval()
