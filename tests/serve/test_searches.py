"""The modes of a search, and batches of searches: each gets what it gets alone, with one call of the model for all."""

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError
from latelier.models import load
from latelier.retrieve import Retriever
from latelier.serve.searches import Search, search_batch

SEARCHES = [
    Search(["healthy fruit", "moon"], 2, {}),
    Search(["moon", "capital of Germany"], 2, {}),
    Search(["moon"], 3, {"filter": "year > ?", "parameters": [2020]}),
    Search(["moon"], 3, {"filter": "year > ?", "parameters": [2022.0]}),
    Search(["Bananas", "sum"], 2, {"mode": "keywords"}),
    Search(["healthy bananas"], 2, {"mode": "hybrid", "weights": (0.3, 0.7)}),
    Search(["sum of integers"], 2, {"mode": "rerank"}),
    Search(["moon"], 2, {"min_mean_score": 0.1}),
    Search([], 2, {}),
]
FAULTY = [
    Search(["moon"], 0, {}),
    Search(["moon"], 2, {"filter": "yera > 2020"}),
    Search(["moon"], 2, {"mode": "nothing"}),
    Search(["moon"], 2, {"effort": 2.0}),
]


RECORDS = [
    {"id": "fruit", "text": "Bananas are healthy.", "year": 2019},
    {"id": "moon", "text": "The moon is far away from the earth.", "year": 2021},
    {"id": "berlin", "text": "It is the capital of Germany.", "year": 2023},
    {"id": "sum", "text": "Addition of two integers returns their sum.", "year": 2024},
]


@pytest.fixture(scope="module")
def model(shallow):
    return load(shallow, device="cpu")


@pytest.fixture(scope="module")
def shared_retriever(model):
    retriever = Retriever(model)
    retriever.add(RECORDS)
    return retriever


def alone(retriever, search):
    return [retriever.search(query, search.k, **search.options) for query in search.queries]


@pytest.mark.parametrize("passages", [None, 16])
def test_each_search_gets_what_it_gets_alone(model, passages):
    retriever = Retriever(model)
    texts = ["Bananas are healthy. " * 4 + "So are apples.", "The moon is far away from the earth. " * 4]
    texts += ["Berlin is the capital of Germany.", "Addition of two integers returns their sum."]
    retriever.add([{"id": i, "text": text, "year": 2020 + i} for i, text in enumerate(texts)], passages=passages)
    found = search_batch(retriever, SEARCHES)
    for results, search in zip(found, SEARCHES, strict=True):
        for got, expected in zip(results, alone(retriever, search), strict=True):
            assert [(hit.id, *hit[2:6]) for hit in got] == [(hit.id, *hit[2:6]) for hit in expected]
            for name in ("score", "mean_score"):  # most have no mean
                sides = [[getattr(hit, name) or 0.0 for hit in side] for side in (got, expected)]
                np.testing.assert_allclose(*sides, rtol=1e-4)


def test_all_texts_are_encoded_in_one_call_and_each_once(shared_retriever, monkeypatch):
    calls, model = [], shared_retriever.query_model
    encode = model.encode_queries
    monkeypatch.setattr(model, "encode_queries", lambda texts, **how: calls.append(texts) or encode(texts, **how))
    search_batch(shared_retriever, SEARCHES)
    [texts] = calls
    assert sorted(texts) == ["capital of Germany", "healthy bananas", "healthy fruit", "moon", "sum of integers"]


def test_a_fault_of_one_search_is_not_that_of_another(shared_retriever):
    found = search_batch(shared_retriever, [*FAULTY, SEARCHES[0]])
    assert found[-1][0][0].id == "fruit"
    for error, expected in zip(found[:-1], ("k=0", "yera", "nothing", "effort"), strict=True):
        assert isinstance(error, InvalidArgumentError)
        assert expected in str(error)
