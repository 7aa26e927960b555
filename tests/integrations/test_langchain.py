"""`LangChainRetriever` and `LangChainReranker` in chains of langchain-core, and under its own standard tests."""

import asyncio

import pytest

pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.integrations import LangChainReranker, LangChainRetriever
from latelier.retrieve import Retriever


@pytest.fixture(scope="module")
def fruit(searcher):
    return LangChainRetriever(retriever=searcher, k=2)


@pytest.mark.anyio
class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture
    def anyio_backend(self):
        return "asyncio"

    @pytest.fixture(autouse=True)
    def _given(self, searcher):
        self.given = searcher

    @property
    def retriever_constructor(self):
        return LangChainRetriever

    @property
    def retriever_constructor_params(self):
        return {"retriever": self.given}

    @property
    def retriever_query_example(self):
        return "healthy fruit"


def test_documents_are_the_results(fruit, searcher):
    results = searcher.search("which fruit is good for me?", k=2)
    documents = fruit.invoke("which fruit is good for me?")
    assert [document.page_content for document in documents] == [result.text for result in results]
    assert [document.metadata["latelier_score"] for document in documents] == [result.score for result in results]
    assert documents[0].id == "fruit"
    assert results == searcher.search("which fruit is good for me?", k=2, mode="hybrid")
    own = {"year": 2019, "lang": "en", "score": 4.5}  # metadata named like what the retriever adds
    assert documents[0].metadata == own | {"latelier_id": "fruit", "latelier_score": results[0].score}


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"filter": "year = ?", "parameters": (2024,)}, {"pasta", "train"}),
        ({"filter": "lang = 'en'"}, {"fruit", "moon"}),  # without the parameters of the constructor's filter
        ({"mode": "keywords"}, {"7"}),
        ({"k": 1, "filter": None}, {"7"}),
    ],
)
def test_a_call_replaces_the_options(searcher, options, ids):
    own = {"filter": "year = ?", "parameters": (2023,), "k": 5}
    adapter = LangChainRetriever(retriever=searcher, k=1, search_kwargs=own)
    assert [document.id for document in adapter.invoke("kings of Rome")] == ["7"]
    assert {document.id for document in adapter.invoke("kings of Rome", **options)} == ids
    assert {document.id for document in adapter.bind(**options).invoke("kings of Rome")} == ids


def test_a_document_without_a_text_is_an_error(searcher):
    with Retriever(searcher.model) as bare:
        bare.index.add(["a"], [searcher.model.encode_document("Bananas.")])
        with pytest.raises(LatelierError, match="'a' was stored without its text"):
            LangChainRetriever(retriever=bare).invoke("fruit")


def test_ids_that_are_equal_as_str_are_an_error(searcher):
    with Retriever(searcher.model) as mixed:
        mixed.add([(7, "Bananas."), ("7", "Apples.")])
        with pytest.raises(InvalidArgumentError, match="are one id here, where ids are str"):
            LangChainRetriever(retriever=mixed).invoke("fruit")


def test_stored_values_of_an_earlier_search_are_left_out(searcher):
    stored = {"latelier_id": 7, "latelier_score": 9.5, "latelier_start": 3, "latelier_end": 4, "year": 2020}
    with Retriever(searcher.model) as again:
        again.add([{"id": "fruit", "text": "Bananas.", "metadata": stored}])
        [document] = LangChainRetriever(retriever=again).invoke("fruit")
        score = again.search("fruit")[0].score
    assert document.metadata == {"year": 2020, "latelier_id": "fruit", "latelier_score": score}


def test_a_chain_searches_reranks_and_formats(fruit):
    reranker = LangChainReranker(model=fruit.retriever.model, top_n=1)
    chain = (
        {"documents": fruit.bind(k=5, mode="keywords"), "query": RunnablePassthrough()}
        | RunnableLambda(lambda step: reranker.compress_documents(step["documents"], step["query"]))
        | RunnableLambda(lambda documents: " ".join(document.page_content for document in documents))
    )
    query = "the night sky and the moon, or kings, or spaghetti in water"
    assert len(fruit.invoke(query, k=5, mode="keywords")) > 1
    assert chain.invoke("is the moon in the night sky?") == "The moon is far away from the earth."
    assert asyncio.run(chain.ainvoke("is the moon in the night sky?")) == "The moon is far away from the earth."


def test_reranked_documents_are_copies_with_scores(fruit):
    texts = ["The moon is far.", "Bananas are healthy.", "Bananas are healthy."]
    documents = [Document(text, id=str(i), metadata={"source": i, "score": 9}) for i, text in enumerate(texts)]
    reranker = LangChainReranker(model=fruit.retriever.model, top_n=3)
    ranked = reranker.compress_documents(documents, "fruit")
    expected = fruit.retriever.rerank("fruit", texts)
    assert [document.id for document in ranked] == ["1", "2", "0"] == [str(hit.id) for hit in expected]
    assert ranked[0].metadata == {"source": 1, "score": 9, "latelier_score": expected[0].score}
    assert documents[1].metadata == {"source": 1, "score": 9}
    assert asyncio.run(reranker.acompress_documents(documents, "fruit")) == ranked
    assert reranker.compress_documents([], "fruit") == []
    with pytest.raises(InvalidArgumentError, match=r"texts\[0\] is ''"):
        reranker.compress_documents([Document("")], "fruit")


def test_a_reranker_loads_a_model_by_name(minilm, searcher):
    reranker = LangChainReranker(model=minilm, device="cpu", model_options={"max_length_document": 8}, top_n=1)
    [best] = reranker.compress_documents([Document("Bananas. " * 20), Document("Kings.")], "fruit")
    assert best.metadata["latelier_score"] > 1
    with pytest.raises(ValidationError, match="top_n"):
        LangChainReranker(model=minilm, top_n=0)


def test_who_opens_the_index_closes_it(folder, searcher):
    with LangChainRetriever.open(folder, device="cpu", k=1) as opened:
        assert [document.id for document in opened.invoke("kings of Rome")] == ["7"]
    with pytest.raises(LatelierError, match="closed"):
        opened.invoke("kings of Rome")
    with LangChainRetriever(retriever=searcher) as given:
        pass
    assert len(given.invoke("kings of Rome", k=1)) == 1
    with pytest.raises(ValidationError, match="k"):
        LangChainRetriever.open(folder, device="cpu", k=0)


def test_async_searches_leave_the_loop_free(fruit, held_up):
    assert [document.id for document in held_up(fruit.ainvoke("kings of Rome", k=1))] == ["7"]
