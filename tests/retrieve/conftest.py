"""One model and one small collection, shared: loading MiniLM takes longer than all that is done with it."""

import json

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


class Stored:
    """The documents of a retriever by the ids that the user gave them, put together from passages by their offsets."""

    def __init__(self, retriever):
        self.index, self._parts = retriever.index, {}
        for id in self.index.ids():
            is_passage = isinstance(id, str) and id.startswith("[") and "documents" in self.index.settings
            self._parts.setdefault(json.loads(id)[0] if is_passage else id, []).append(id)

    def ids(self):
        return list(self._parts)

    def parts(self, id):
        return self._parts.get(id, [])

    def text(self, id):
        records = self.index.get(self.parts(id))
        if not isinstance(records[0].id, str) or not records[0].id.startswith("["):
            return records[0].text
        whole = ""
        for record in records:
            start = json.loads(record.id)[2]
            whole = whole[:start].ljust(start) + record.text
        return whole


@pytest.fixture(scope="session")
def stored():
    return Stored
