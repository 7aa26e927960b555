"""`HaystackRetriever` and `HaystackRanker` in pipelines of haystack-ai, and its filters under its own tests."""

import asyncio
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

pytest.importorskip("haystack")
from adapter_records import LONG
from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.core.errors import DeserializationError
from haystack.errors import FilterError
from haystack.testing.document_store import FilterDocumentsTest
from haystack.utils.filters import document_matches_filter

from latelier import indexes
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.integrations.haystack import HaystackRanker, HaystackRetriever, haystack_filter

YEAR_2024 = {"field": "meta.year", "operator": "==", "value": 2024}
NOT_ITALIAN = {"field": "meta.lang", "operator": "!=", "value": "it"}


def ids(answer):
    return [document.id for document in answer["documents"]]


@pytest.fixture(scope="module")
def fruit(searcher):
    return HaystackRetriever(searcher, top_k=2)


def make_pipeline(folder, minilm):
    pipeline = Pipeline()
    retriever = HaystackRetriever(
        folder, device="cpu", top_k=5, search_options={"mode": "keywords", "filter": "year > ?", "parameters": [2000]}
    )
    pipeline.add_component("retriever", retriever)
    pipeline.add_component("ranker", HaystackRanker(minilm, device="cpu", top_k=1))
    template = "{% for document in documents %}{{ document.content }}{% endfor %}"
    pipeline.add_component("prompt", PromptBuilder(template, required_variables=["documents"]))
    pipeline.connect("retriever.documents", "ranker.documents")
    pipeline.connect("ranker.documents", "prompt.documents")
    return pipeline


def test_documents_are_the_results(fruit, searcher):
    results = searcher.search("which fruit is good for me?", k=2)
    documents = fruit.run("which fruit is good for me?")["documents"]
    assert [(document.content, document.score) for document in documents] == [(hit.text, hit.score) for hit in results]
    own = {"year": 2019, "lang": "en", "score": 4.5}
    assert (documents[0].id, documents[0].meta) == ("fruit", own | {"latelier_id": "fruit"})
    [king] = fruit.run("kings of Rome", top_k=1)["documents"]
    assert (king.id, king.meta["latelier_id"]) == ("7", 7)


def test_runs_replace_or_merge_filters(searcher):
    replacing = HaystackRetriever(searcher, filters=YEAR_2024)
    assert set(ids(replacing.run("a trip"))) == {"pasta", "train"}
    assert len(ids(replacing.run("a trip", filters=NOT_ITALIAN))) == 4
    merging = HaystackRetriever(searcher, filters=YEAR_2024, filter_policy="merge")
    assert ids(merging.run("a trip", filters=NOT_ITALIAN)) == ["train"]
    sql = {"filter": "lang = ?", "parameters": ("it",)}
    assert ids(replacing.run("a trip", search_options=sql)) == ["pasta"]
    with pytest.raises(InvalidArgumentError, match="no option 'efort'"):
        replacing.run("a trip", search_options={"efort": 2})
    with pytest.raises(InvalidArgumentError, match="top_k=0"):
        replacing.run("a trip", top_k=0)


def test_a_pipeline_is_saved_as_yaml_and_loaded(folder, minilm):
    pipeline = make_pipeline(folder, minilm)
    query = "is the moon in the night sky?"
    inputs = {"retriever": {"query": query}, "ranker": {"query": query}}
    assert pipeline.run(inputs)["prompt"]["prompt"] == "The moon is far away from the earth."
    saved = pipeline.dumps()
    assert str(folder) in saved
    with pytest.raises(DeserializationError, match="allowed_modules"):  # haystack trusts its own modules alone
        Pipeline.loads(saved)
    again = Pipeline.loads(saved, allowed_modules=["latelier"])
    assert again.to_dict()["components"] == pipeline.to_dict()["components"]
    retriever = again.get_component("retriever")
    assert retriever._searched._retriever is None  # not opened before it is needed
    assert again.run(inputs)["prompt"]["prompt"] == "The moon is far away from the earth."
    assert asyncio.run(again.run_async(inputs))["prompt"]["prompt"] == "The moon is far away from the earth."
    for each in (pipeline, again):
        each.get_component("retriever").close()


def test_who_opens_the_index_closes_it(folder, fruit, searcher):
    opened = HaystackRetriever(folder, device="cpu", top_k=1)
    opened.warm_up()
    first = opened._searched._retriever
    assert ids(opened.run("kings of Rome")) == ["7"]
    assert opened._searched._retriever is first
    opened.close()
    with pytest.raises(LatelierError, match="closed"):
        first.search("kings of Rome")
    fruit.close()
    assert len(searcher.search("kings of Rome", k=1)) == 1


def test_ranked_documents_are_copies_with_new_scores(searcher):
    texts = ["The moon is far.", "Bananas are healthy.", "Bananas are healthy."]
    documents = [Document(id=str(i), content=text, meta={"score": i}, score=9.0) for i, text in enumerate(texts)]
    ranker = HaystackRanker(searcher.model)
    ranked = ranker.run("fruit", documents)["documents"]
    expected = searcher.rerank("fruit", texts)
    assert [(document.id, document.score) for document in ranked] == [(str(hit.id), hit.score) for hit in expected]
    assert [document.meta["score"] for document in ranked] == [1, 2, 0]
    assert [document.score for document in documents] == [9.0] * 3
    assert asyncio.run(ranker.run_async("fruit", documents, top_k=1))["documents"] == ranked[:1]
    assert ranker.run("fruit", [])["documents"] == []
    with pytest.raises(InvalidArgumentError, match=r"texts\[0\] is None|received None"):
        ranker.run("fruit", [Document(content=None)])


class Store:
    """As much of a document store as Haystack's tests of filters call."""

    def __init__(self):
        self.index, self.documents = indexes.Flat(), {}

    def write_documents(self, documents):
        self.documents |= {document.id: document for document in documents}
        texts, metadata = [d.content for d in documents], [d.meta for d in documents]
        vectors = [np.ones((1, 2), "float32")] * len(documents)
        self.index.add([d.id for d in documents], vectors, texts=texts, metadata=metadata)

    def filter_documents(self, filters=None):
        condition = haystack_filter(filters) if filters else None
        if not self.documents:
            return []
        given = {} if condition is None else {"filter": condition.sql, "parameters": condition.parameters}
        [hits] = self.index.search([np.ones((1, 2), "float32")], k=1000, **given)
        return [self.documents[hit.id] for hit in hits]


class TestFilters(FilterDocumentsTest):
    @pytest.fixture
    def document_store(self):
        return Store()


DOCUMENTS = [
    {"number": 2, "date": "2024-05-01", "tags": ["x"], "author": {"name": "Ada", "born": 1815}, "open": True},
    {"number": -2.5, "date": "2024-05-01T00:00:00+00:00", "name": "a", "id": "inner", "text": "own"},
    {"number": None, "date": "2023-01-01T10:00:00Z", "author": {"name": None}, "name": "2024-05-01"},
    {"number": "2", "date": "no date", "tags": [], "name": "2020", "author": "Ada"},
    {"name": "b", "open": False},
]
COMPARISONS = [
    *[("meta.number", operator, 2) for operator in ("==", "!=")],
    *[("meta.date", operator, "2024-05-01") for operator in ("==", "!=")],
    ("meta.date", "in", ["2024-05-01", None]),
    ("meta.name", "in", ["a", "2020", "2024-05-01T00:00:00"]),
    ("meta.author.name", "==", "Ada"),
    ("meta.author.born", ">", 1800),
    ("meta.tags", "in", [["x"], []]),
    ("meta.open", "==", True),
    ("meta.id", "==", "inner"),
    ("content", "==", "Text 2"),
    ("id", "in", ["0", "3"]),
    ("meta.number", ">", None),
]


@pytest.fixture(scope="module")
def store():
    store = Store()
    store.write_documents([Document(id=str(i), content=f"Text {i}", meta=meta) for i, meta in enumerate(DOCUMENTS)])
    return store


@pytest.mark.parametrize("given", COMPARISONS, ids=lambda given: " ".join(map(str, given)))
def test_filters_select_what_haystack_selects(store, given):
    comparison = dict(zip(("field", "operator", "value"), given, strict=True))
    other = {"field": "meta.name", "operator": "!=", "value": "a"}
    nested = {"operator": "OR", "conditions": [comparison, {"operator": "NOT", "conditions": [other, comparison]}]}
    negated = {"operator": "NOT", "conditions": [comparison]}
    both = {"operator": "AND", "conditions": [comparison, other]}
    for filters in (comparison, negated, both, nested):
        expected = {id_ for id_, document in store.documents.items() if document_matches_filter(filters, document)}
        assert {document.id for document in store.filter_documents(filters)} == expected, filters


TIMES = {"z": "2024-05-01T10:00:00Z", "space": "2024-05-01 10:00", "zone": "2024-05-01T12:00:00.000+02:00"}
TIMES |= {"micro": "2024-05-01T10:00:00.000200Z", "milli": "2024-05-01T10:00:00.001Z", "day": "2024-05-01"}
# SQLite reads none of these, or not as what it says.
TIMES |= {"hour": "2024-05-01T10", "basic": "2024-05-01T10:00:00+0000", "now": "now", "clock": "12:00"}
TIMES |= {"julian": "2460431.9166666665", "number": 2460431.9166666665, "no day": "2024-02-31"}
TEN = {"z", "space", "zone", "micro"}


@pytest.fixture(scope="module")
def times():
    store = Store()
    store.write_documents([Document(id=id_, content="Text", meta={"date": time}) for id_, time in TIMES.items()])
    return store


@pytest.mark.parametrize(
    ("value", "same_texts"),
    [
        ("2024-05-01T10:00:00Z", set()),
        ("2024-05-01T10", {"hour"}),
        ("2024-05-02T06:00:30+20:00:30", set()),
        (datetime(2024, 5, 1, 6, tzinfo=timezone(timedelta(hours=-4))), set()),
    ],
    ids=str,
)
def test_every_form_of_a_date_is_a_point_in_time(times, value, same_texts):
    def found(operator, value):
        documents = times.filter_documents({"field": "meta.date", "operator": operator, "value": value})
        return {document.id for document in documents}

    assert found("==", value) == found("in", [value, "x"]) == TEN | same_texts
    assert found("!=", value) == found("not in", [value]) == set(TIMES) - TEN - same_texts
    assert found(">=", value) == TEN | {"milli"}
    assert found(">", value) == {"milli"}
    assert found("<=", value) == TEN | {"day"}
    assert found("<", value) == {"day"}


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [("==", "7", {"7"}), ("in", ["7", "moon"], {"7", "moon"}), ("==", "07", set()), ("==", "9" * 5000, set())],
)
def test_an_id_is_a_text_as_in_the_documents_that_come_back(fruit, operator, value, expected):
    filters = {"field": "id", "operator": operator, "value": value}
    assert set(ids(fruit.run("a trip", filters=filters, top_k=10))) == expected


def test_an_id_of_an_index_of_passages_is_that_of_the_document(passages):
    passages.update([{"id": 7, "text": LONG}])
    passages.index.add([8, "whole"], [passages.model.encode_document(["Octopus"])[0]] * 2, ["Octopus"] * 2)
    for id_ in ("sea", "7", "8", "whole"):
        filters = {"field": "id", "operator": "==", "value": id_}
        [found] = HaystackRetriever(passages, filters=filters).run("octopus")["documents"]
        assert (found.id, str(found.meta["latelier_id"])) == (id_, id_)
    passages.remove([7, 8, "whole"])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"field": "meta.x", "operator": "~", "value": 1}, "expected one of ==, !="),
        ({"operator": "AND", "conditions": []}, "a list that is not empty"),
        ({"field": "meta.date", "operator": "<", "value": "2024"}, "a number or an ISO 8601 date"),
    ],
)
def test_malformed_filters_are_errors(store, filters, message):
    with pytest.raises(FilterError, match=message):
        store.filter_documents(filters)


def test_async_searches_leave_the_loop_free(fruit, held_up):
    assert ids(held_up(fruit.run_async("kings of Rome", top_k=1))) == ["7"]
