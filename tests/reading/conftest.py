import pytest

from latelier.models import load


@pytest.fixture(scope="session")
def small(tiny):
    return load(tiny, device="cpu")
