"""`PyTerrierIndexer`, `PyTerrierRetriever` and `PyTerrierReranker` in pipelines and experiments of PyTerrier."""

import pytest

pytest.importorskip("pyterrier")

import pandas as pd
import pyterrier as pt
from adapter_records import RECORDS

from latelier.errors import InvalidArgumentError
from latelier.evaluation import evaluate
from latelier.integrations import PyTerrierIndexer, PyTerrierReranker, PyTerrierRetriever
from latelier.retrieve import Retriever

TOPICS = pd.DataFrame(
    [["q1", "which fruit is good for me?"], ["q2", "a night train"]],
    columns=["qid", "query"],
)
QRELS = pd.DataFrame([["q1", "fruit", 2], ["q2", "train", 1], ["q2", "pasta", 1]], columns=["qid", "docno", "label"])


@pytest.fixture(scope="module")
def documents():
    return [{"docno": str(record["id"]), "text": record["text"], "year": record.get("year")} for record in RECORDS]


@pytest.fixture(scope="module")
def search(minilm, documents):
    return PyTerrierIndexer(Retriever(minilm)).index(iter(documents))


def test_results_are_those_of_the_retriever(search):
    found = search(TOPICS)
    assert found.columns.tolist() == ["qid", "query", "docno", "score", "rank"]
    for qid, query in TOPICS.itertuples(index=False):
        own = search.retriever.search(query, k=1000)
        rows = found[found.qid == qid]
        assert rows.docno.tolist() == [result.id for result in own]
        assert rows.score.tolist() == pytest.approx([result.score for result in own], abs=1e-4)  # encoded in a batch
        assert rows["rank"].tolist() == list(range(len(own)))


def test_other_keys_are_metadata_and_filter(search):
    recent = PyTerrierRetriever(search.retriever, search_options={"filter": "year >= 2024"})
    years = {str(record["id"]): record.get("year") for record in RECORDS}
    found = set(recent(TOPICS).docno)
    assert found == {id for id, year in years.items() if year is not None and year >= 2024}


def test_an_experiment_has_the_figures_of_evaluate(search):
    names = ["nDCG@10", "AP", "RR"]
    measures = [pt.measures.nDCG @ 10, pt.measures.AP, pt.measures.RR]
    table = pt.Experiment([search], TOPICS, QRELS, measures)
    qrels = {}
    for qid, docno, label in QRELS.itertuples(index=False):
        qrels.setdefault(qid, {})[docno] = label
    run = search.retriever.run(dict(TOPICS.itertuples(index=False)), k=1000)
    own = evaluate(run, qrels, names)
    assert [table.loc[0, name] for name in names] == pytest.approx([own[name] for name in names])


def test_cutoff_and_reranker_after_a_retriever(search, minilm):
    with_texts = PyTerrierRetriever(search.retriever, text=True)
    pipeline = with_texts % 2 >> PyTerrierReranker(minilm)
    found = pipeline(TOPICS)
    first = (search % 2)(TOPICS)
    assert set(zip(found.qid, found.docno, strict=True)) == set(zip(first.qid, first.docno, strict=True))
    assert found["rank"].tolist() == [0, 1, 0, 1]
    for qid, query in TOPICS.itertuples(index=False):
        rows = found[found.qid == qid]
        texts = dict(zip(rows.docno, rows.text, strict=True))
        expected = search.retriever.model.scores([query] * len(texts), list(texts.values())).tolist()
        assert rows.score.tolist() == pytest.approx(expected, rel=1e-5)
        assert rows.score.is_monotonic_decreasing


def test_no_query_gives_no_result(search, minilm):
    empty = TOPICS.iloc[:0]
    assert search(empty).columns.tolist() == ["qid", "query", "docno", "score", "rank"]
    ranked = PyTerrierReranker(minilm)(PyTerrierRetriever(search.retriever, text=True)(empty))
    assert len(ranked) == 0
    assert {"score", "rank"} <= set(ranked.columns)


def test_documents_of_several_fields_and_without_text(minilm):
    documents = [
        {"docno": 1, "title": "Bananas", "body": "They are healthy."},
        {"docno": 2, "title": "", "body": "The moon."},
        {"docno": 3, "title": "", "body": " "},
    ]
    indexer = PyTerrierIndexer(Retriever(minilm), text=["title", "body"])
    with pytest.warns(UserWarning, match="1 of the documents .* 3"):
        search = indexer.index(documents)
    assert search.retriever.index.ids() == ["1", "2"]
    [record] = search.retriever.index.get(["1"])
    assert record.text == "Bananas\nThey are healthy."


@pytest.mark.parametrize(("document", "fact"), [({"text": "a"}, "docno"), ({"docno": "d", "body": "a"}, "body")])
def test_a_document_without_id_or_text_is_an_error(minilm, document, fact):
    with pytest.raises(InvalidArgumentError, match=fact):
        PyTerrierIndexer(Retriever(minilm)).index([document])
