"""The modes of a retriever's search, with a real model."""

import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.retrieve import Retriever


def test_each_mode_finds_its_own(shared_retriever):
    """ "integers" is a word of one document; no word of "unhealthy fruit" is in any."""
    best = {mode: shared_retriever.search("unhealthy fruit", mode=mode) for mode in ("vectors", "hybrid")}
    assert [results[0].id for results in best.values()] == ["fruit", "fruit"]
    assert shared_retriever.search("unhealthy fruit", mode="keywords") == []
    for mode in ("keywords", "rerank"):
        [result] = shared_retriever.search("integers", mode=mode)
        assert (result.id, result.metadata) == ("sum", {"year": 2024})
    assert shared_retriever.search("integers", mode="rerank")[0].score == pytest.approx(
        next(hit.score for hit in shared_retriever.search("integers") if hit.id == "sum"), rel=1e-5
    )


def test_a_run_takes_the_mode(shared_retriever):
    assert list(shared_retriever.run({"q": "integers earth"}, mode="keywords")["q"]) == ["sum", "moon"]
    weighted = shared_retriever.run({"q": "integers"}, 1, mode="hybrid", weights=(0, 1), filter="lang = 'en'")
    assert list(weighted["q"]) != ["sum"]
    assert shared_retriever.run({}, mode="hybrid") == {}


def test_keywords_encode_nothing(shared_retriever, monkeypatch):
    monkeypatch.setattr(shared_retriever._model, "encode_queries", None)
    assert [result.id for result in shared_retriever.search("bananas", mode="keywords")] == ["fruit"]


def test_a_wrong_mode_and_an_index_without_keywords(model, shared_retriever):
    with pytest.raises(InvalidArgumentError, match="received mode='words'"):
        shared_retriever.search("fruit", mode="words")
    without = Retriever(model, indexes.Flat(keywords=False))
    without.add(["Bananas are healthy."])
    with pytest.raises(LatelierError, match=r"compact\(keywords=True\)"):
        without.search("fruit", mode="hybrid")
