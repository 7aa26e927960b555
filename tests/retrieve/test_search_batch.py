"""A batch of searches: each gets what it gets alone, and all of them are one call of the model."""

import re
from contextlib import contextmanager

import numpy as np
import pytest

from latelier.errors import EmbeddingsError, InvalidArgumentError, LatelierError
from latelier.retrieve import Retriever
from latelier.retrieve.retriever import Search, search_batch

SEARCHES = [
    Search(["healthy fruit", "moon"], 2, {}),
    Search(["moon", "capital of Germany"], 2, {}),
    Search(["moon"], 3, {"filter": "year > ?", "parameters": [2020]}),
    Search(["moon"], 3, {"filter": "year > ?", "parameters": [2022.0]}),
    Search(["Bananas", "sum"], 2, {"mode": "keywords"}),
    Search(["healthy bananas"], 2, {"mode": "hybrid", "weights": (0.3, 0.7)}),
    Search(["sum of integers"], 2, {"mode": "rerank"}),
    Search([], 2, {}),
]
FAULTY = [
    Search(["moon"], 0, {}),
    Search(["moon"], 2, {"filter": "yera > 2020"}),
    Search(["moon"], 2, {"mode": "nothing"}),
    Search(["moon"], 2, {"effort": 2.0}),
]


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
            assert [hit._replace(score=0) for hit in got] == [hit._replace(score=0) for hit in expected]
            np.testing.assert_allclose([hit.score for hit in got], [hit.score for hit in expected], rtol=1e-4)


def test_all_texts_are_encoded_in_one_call_and_each_once(shared_retriever, monkeypatch):
    calls, model = [], shared_retriever.query_model
    encode = model.encode_queries
    monkeypatch.setattr(model, "encode_queries", lambda texts: calls.append(texts) or encode(texts))
    search_batch(shared_retriever, SEARCHES)
    assert calls == [["healthy fruit", "moon", "capital of Germany", "healthy bananas", "sum of integers"]]


def test_a_fault_of_one_search_is_not_that_of_another(shared_retriever):
    found = search_batch(shared_retriever, [*FAULTY, SEARCHES[0]])
    assert found[-1][0][0].id == "fruit"
    messages = [str(error) for error in found[:-1]]
    for message, expected in zip(messages, ("k=0", "yera", "nothing", "effort"), strict=True):
        assert expected in message
    for search, message in zip(FAULTY, messages, strict=True):
        with pytest.raises(InvalidArgumentError, match=rf"^{re.escape(message)}\Z"):
            alone(shared_retriever, search)


def test_faulty_vectors_of_one_search_are_not_those_of_another(shared_retriever):
    good = shared_retriever.model.encode_query(["healthy fruit"], convert_to_numpy=True)
    nan = [np.full_like(good[0], np.nan)]
    searches = [Search(good, 1, {}), Search([good[0][:, :3]], 1, {}), Search(nan, 1, {}), Search(good, 1, {})]
    found = search_batch(shared_retriever, searches)
    assert [isinstance(each, EmbeddingsError) for each in found] == [False, True, True, False]
    assert found[0][0][0].id == found[3][0][0].id == "fruit"


def test_stages_are_measured_in_their_order_and_keywords_need_no_encoding(shared_retriever):
    stages = []

    @contextmanager
    def stage(name):
        stages.append(name)
        yield

    search_batch(shared_retriever, SEARCHES[:1], stage)
    search_batch(shared_retriever, [Search(["moon"], 1, {"mode": "keywords"})], stage)
    assert stages == ["encode", "search", "read", "search", "read"]


def test_a_batch_of_errors_reads_nothing(shared_retriever):
    found = search_batch(shared_retriever, FAULTY)
    assert all(isinstance(error, LatelierError) for error in found)
