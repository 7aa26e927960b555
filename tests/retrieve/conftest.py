"""One model and one small collection, shared: loading MiniLM takes longer than all that is done with it."""

import pytest

from latelier.models import load
from latelier.retrieve import Retriever

RECORDS = [
    {"_id": "fruit", "text": "Bananas are healthy.", "year": 2019, "lang": "en"},
    {"_id": "moon", "text": "The moon is far away from the earth.", "year": 2021, "lang": "en"},
    {"_id": "berlin", "title": "Berlin", "text": "It is the capital of Germany.", "year": 2023, "lang": "de"},
    {"_id": "sum", "text": "Addition of two integers returns their sum.", "metadata": {"year": 2024}},
]


@pytest.fixture(scope="session")
def model(minilm):
    return load(minilm, device="cpu")


@pytest.fixture(scope="session")
def small(tiny):
    return load(tiny, device="cpu")


def fill(model):
    retriever = Retriever(model)
    retriever.add(RECORDS)
    return retriever


@pytest.fixture
def retriever(model):
    return fill(model)


@pytest.fixture(scope="session")
def shared_retriever(model):
    """The same for tests that leave it as it is: encoding the records takes longer than what they do."""
    return fill(model)
