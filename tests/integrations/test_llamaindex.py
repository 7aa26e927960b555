"""`LlamaIndexRetriever` and `LlamaIndexReranker` in query engines of llama-index-core, and its filters."""

import asyncio
import itertools

import pytest

pytest.importorskip("llama_index.core")
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.vector_stores import FilterCondition, MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn
from pydantic import ValidationError

from latelier.errors import InvalidArgumentError
from latelier.integrations import LlamaIndexReranker, LlamaIndexRetriever
from latelier.retrieve import Retriever


@pytest.fixture(scope="module")
def fruit(searcher):
    return LlamaIndexRetriever(searcher, similarity_top_k=2)


def ids(nodes):
    return [node.node.node_id for node in nodes]


def test_nodes_are_the_results(fruit, searcher):
    results = searcher.search("which fruit is good for me?", k=2)
    nodes = fruit.retrieve("which fruit is good for me?")
    assert [(node.text, node.score) for node in nodes] == [(result.text, result.score) for result in results]
    assert ids(nodes)[0] == "fruit"
    own = {"year": 2019, "lang": "en", "score": 4.5}
    assert nodes[0].node.metadata == own | {"latelier_id": "fruit"}
    assert nodes[0].node.get_content(MetadataMode.EMBED) == results[0].text
    for_llm = nodes[0].node.get_content(MetadataMode.LLM)
    assert "score: 4.5" in for_llm
    assert "latelier" not in for_llm


def test_options_filters_and_both(searcher):
    year = MetadataFilters(filters=[MetadataFilter(key="year", value=2024)])
    adapter = LlamaIndexRetriever(searcher, filters=year)
    assert set(ids(adapter.retrieve("a trip"))) == {"pasta", "train"}
    adapter.search_options = {"filter": "lang <> ?", "parameters": ("it",), "mode": "hybrid"}
    assert ids(adapter.retrieve("a trip")) == ["train"]
    adapter.filters, adapter.similarity_top_k = None, 3
    assert len(adapter.retrieve("a trip")) == 3
    adapter.search_options = {"efort": 2}
    with pytest.raises(InvalidArgumentError, match="no option 'efort'"):
        adapter.retrieve("a trip")
    named = LlamaIndexRetriever(searcher, filters=year, search_options={"filter": "lang = :l", "parameters": {"l": 1}})
    with pytest.raises(InvalidArgumentError, match="named parameters 'l'"):
        named.retrieve("a trip")


def test_a_query_engine_searches_and_reranks(searcher):
    keywords = LlamaIndexRetriever(searcher, search_options={"mode": "keywords"})
    query = "is the moon in the night sky?"
    assert len(keywords.retrieve(query)) > 1
    engine = RetrieverQueryEngine.from_args(
        keywords,
        llm=MockLLM(),
        node_postprocessors=[LlamaIndexReranker(model=searcher.model, top_n=1)],
        response_synthesizer=get_response_synthesizer(MockLLM(), response_mode="compact"),
    )
    for response in (engine.query(query), asyncio.run(engine.aquery(query))):
        assert ids(response.source_nodes) == ["moon"]
        assert "The moon is far away from the earth." in str(response)
        assert "kings" not in str(response)


def test_reranked_nodes_have_new_scores(searcher):
    texts = ["The moon is far.", "Bananas are healthy.", "Bananas are healthy."]
    nodes = [NodeWithScore(node=TextNode(text=text, metadata={"score": i}), score=9.0) for i, text in enumerate(texts)]
    reranker = LlamaIndexReranker(model=searcher.model)
    assert all("score:" in node.node.get_content(MetadataMode.EMBED) for node in nodes)
    plain = LlamaIndexReranker(model=searcher.model, metadata_mode="none", top_n=2)
    expected = searcher.rerank("fruit", texts, 2)
    ranked = plain.postprocess_nodes(nodes, query_str="fruit")
    assert [(node.node.metadata["score"], node.score) for node in ranked] == [(hit.id, hit.score) for hit in expected]
    assert [node.score for node in nodes] == [9.0] * 3
    with_metadata = searcher.rerank("fruit", [f"score: {i}\n\n{text}" for i, text in enumerate(texts)])
    ranked = asyncio.run(reranker.apostprocess_nodes(nodes, query_str="fruit"))
    assert [node.score for node in ranked] == pytest.approx([hit.score for hit in with_metadata], abs=1e-5)
    assert reranker.postprocess_nodes([], query_str="fruit") == []
    with pytest.raises(InvalidArgumentError, match="received no query"):
        reranker.postprocess_nodes(nodes)


def test_a_reranker_is_serialised_by_the_name_of_its_model(minilm, searcher):
    options = {"model": minilm, "device": "cpu", "model_options": {"max_length_document": 64}, "top_n": 1}
    saved = LlamaIndexReranker(**options).to_json()
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in ("Kings.", "Bananas.")]
    [best] = LlamaIndexReranker.from_json(saved).postprocess_nodes(nodes, query_str="fruit")
    assert best.text == "Bananas."
    with pytest.raises(Exception, match="has a ColBERT; give the name or folder"):
        LlamaIndexReranker(model=searcher.model).to_json()
    with pytest.raises(ValidationError, match="top_n"):
        LlamaIndexReranker(model=minilm, top_n=0)


METADATA = {
    "a": {"year": 2020, "lang": "en", "tags": ["x", "y"], "open": True},
    "b": {"year": 2021, "lang": "De", "tags": [], "rate": 1.5},
    "c": {"year": None, "lang": "", "tags": ["y"], "id": "other", "text": "t"},
    "d": {"lang": "the end", "rate": 2, "tags": ["x"], "my key": 'a "quoted" one'},
}
FILTERS = [
    *[("year", operator, 2020) for operator in ("==", "!=", ">", ">=", "<", "<=")],
    *[("lang", operator, "en") for operator in ("==", "!=", "text_match", "text_match_insensitive", "contains")],
    ("lang", "text_match_insensitive", "dE"),
    ("rate", ">", 1.5),
    ("year", "in", [2021, 1999]),
    ("year", "nin", [2021, 1999]),
    ("tags", "any", ["x", "z"]),
    ("tags", "all", ["x", "y"]),
    ("tags", "contains", "x"),
    ("tags", "is_empty", None),
    ("lang", "is_empty", None),
    ("year", "is_empty", None),
    ("my key", "==", 'a "quoted" one'),
    ("id", "==", "other"),
    ("text", "==", "t"),
    ("open", "==", 1),
]


@pytest.fixture(scope="module")
def labelled(searcher):
    with Retriever(searcher.model) as labelled:
        labelled.add([{"id": id_, "text": "A text.", "metadata": values} for id_, values in METADATA.items()])
        yield labelled


def naive(filters):
    def matches(filters, id_):
        parts = [
            matches(each, id_)
            if isinstance(each, MetadataFilters)
            else build_metadata_filter_fn(METADATA.get, MetadataFilters(filters=[each]))(id_)
            for each in filters.filters
        ]
        how = {FilterCondition.AND: all, FilterCondition.OR: any, FilterCondition.NOT: lambda each: not any(each)}
        return how[filters.condition](parts)

    return {id_ for id_ in METADATA if matches(filters, id_)}


def selected(labelled, filters):
    return set(ids(LlamaIndexRetriever(labelled, filters=filters).retrieve("text")))


@pytest.mark.parametrize("given", FILTERS, ids=lambda given: " ".join(map(str, given)))
def test_filters_select_what_llamaindex_selects(labelled, given):
    one = MetadataFilter(**dict(zip(("key", "operator", "value"), given, strict=True)))
    for condition in FilterCondition:
        filters = MetadataFilters(filters=[one], condition=condition)
        assert selected(labelled, filters) == naive(filters), condition


@pytest.mark.parametrize("conditions", list(itertools.product(FilterCondition, FilterCondition)), ids=str)
def test_nested_filters_are_combined(labelled, conditions):
    outer, inner = conditions
    year, rate, lang, tags = (
        MetadataFilter(key=key, operator=operator, value=value)
        for key, operator, value in [
            ("year", "<", 2021),
            ("rate", ">=", 1),
            ("lang", "!=", "en"),
            ("tags", "any", ["y"]),
        ]
    )
    nested = MetadataFilters(filters=[rate, lang], condition=inner)
    filters = MetadataFilters(filters=[year, nested, tags], condition=outer)
    assert selected(labelled, filters) == naive(filters)


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"key": "year", "operator": "in", "value": 5}, "received 5 .* in; expected a list"),
        ({"key": "year", "operator": ">", "value": None}, "received None .* >; expected a number or a text"),
        ({"key": "yaer", "operator": ">", "value": 3}, "unknown field"),
    ],
)
def test_filters_that_make_no_sense_are_errors(labelled, filter, message):
    with pytest.raises(InvalidArgumentError, match=message):
        selected(labelled, MetadataFilters(filters=[MetadataFilter(**filter)]))


def test_async_searches_leave_the_loop_free(fruit, held_up):
    assert ids(held_up(fruit.aretrieve("kings of Rome")))[0] == "7"
