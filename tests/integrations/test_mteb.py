"""`mteb.evaluate` on local tasks made from a BEIR folder, without a network: its numbers are those of `evaluate`."""

import tempfile
from functools import partial

import pytest

mteb = pytest.importorskip("mteb")
# ruff: noqa: E402
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.models_protocols import SearchProtocol

from documents import write_beir
from image_models import pictures, save_image_model
from latelier import evaluation
from latelier.errors import UnknownIdError
from latelier.indexes import IVF, Flat
from latelier.integrations import MTEBSearch
from latelier.models import ColBERT
from latelier.scores import colbert_scores

DOCUMENTS = {
    "fruit": ("Food", "Bananas are healthy."),
    "moon": ("", "The moon is far away from the earth."),
    "berlin": ("Berlin", "It is the capital of Germany."),
    "pasta": ("Carbonara", "How to cook spaghetti."),
    "rome": ("Rome", "A low fare to Italy, by plane."),
}
QUERIES = {"q1": "unhealthy fruit", "q2": "a German city", "q3": "recipes for noodles", "q4": "an Italian restaurant"}
QRELS = {"q1": {"fruit": 1}, "q2": {"berlin": 2, "rome": 1}, "q3": {"pasta": 1}, "q4": {"rome": 1, "pasta": 1}}
CANDIDATES = {
    "q1": ["moon", "fruit"],
    "q2": ["rome", "moon", "berlin"],
    "q3": ["fruit", "moon", "pasta"],
    "q4": ["rome"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("data") / "beir", DOCUMENTS, QUERIES, QRELS)


def make_task(folder, name, *, top_ranked=None, instruction=None):
    class LocalTask(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=name,
            description="Documents of a folder.",
            dataset={"path": str(folder), "revision": "1"},
            type="Retrieval" if top_ranked is None else "Reranking",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, **kwargs):
            collection = evaluation.load_beir(folder)
            queries = [{"id": id_, "text": text} for id_, text in collection.queries.items()]
            if instruction is not None:
                queries = [{**query, "instruction": instruction} for query in queries]
            self.dataset = {
                "default": {
                    "test": {
                        "corpus": Dataset.from_list([{"id": i, **d} for i, d in collection.documents.items()]),
                        "queries": Dataset.from_list(queries),
                        "relevant_docs": collection.qrels,
                        "top_ranked": top_ranked,
                    }
                }
            }
            self.data_loaded = True

    return LocalTask()


def scores_of(model, task, **options):
    results = mteb.evaluate(model, task, cache=None, show_progress_bar=False, **options)
    [found] = results.task_results
    [scores] = found.scores["test"]
    return scores


@pytest.fixture(scope="module")
def model(minilm):
    return ColBERT.from_dense(minilm, device="cpu")


def own_run(model, make, queries=QUERIES, **options):
    with make() as index:
        collection = {id_: f"{title} {text}".strip() for id_, (title, text) in DOCUMENTS.items()}
        index.add(list(collection), model.encode_document(list(collection.values())))
        hits = index.search(model.encode_query(list(queries.values())), 10, **options)
    return {query: {hit.id: hit.score for hit in found} for query, found in zip(queries, hits, strict=True)}


@pytest.mark.parametrize("make", [Flat, IVF, partial(IVF, nbits=1)], ids=["flat", "ivf", "ivf 1 bit"])
def test_numbers_are_those_of_evaluate(folder, model, make, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with MTEBSearch(model, make) as search:
        assert isinstance(search, SearchProtocol)
        scores = scores_of(search, make_task(folder, "LocalRetrieval"))
        assert [path.name.startswith("latelier-index-") for path in tmp_path.iterdir()] == [True]
    assert list(tmp_path.iterdir()) == []
    expected = evaluation.evaluate(own_run(model, make), QRELS, ["nDCG@10", "nDCG@1", "RR@10", "R@1", "R@3", "AP@10"])
    assert 0.5 < expected["nDCG@10"] <= 1
    for own, theirs in {
        "nDCG@10": "ndcg_at_10",
        "nDCG@1": "ndcg_at_1",
        "RR@10": "mrr_at_10",
        "R@1": "recall_at_1",
        "R@3": "recall_at_3",
        "AP@10": "map_at_10",
    }.items():
        assert scores[theirs] == pytest.approx(expected[own], abs=1e-5), own


def test_a_task_of_page_images_is_searched_by_pictures(folder, tmp_path):
    task = make_task(folder, "LocalPages")
    task.load_data()
    changes = {"category": "t2i", "modalities": ["text", "image"], "type": "DocumentUnderstanding"}
    task.metadata = task.metadata.model_copy(update=changes)
    data = task.dataset["default"]["test"]
    data["corpus"] = Dataset.from_dict({"id": ["a", "b"], "image": pictures()})
    data["relevant_docs"] = {query: {"a": 1} for query in QUERIES}
    task.load_data = lambda **_: None
    reader = ColBERT(save_image_model("colqwen2", tmp_path / "model"), device="cpu")
    with MTEBSearch(reader, Flat, name="me/pages") as search:
        scores = scores_of(search, task)
    found = reader.similarity(reader.encode_query(list(QUERIES.values())), reader.encode_document(pictures()))
    assert scores["hit_rate_at_1"] == pytest.approx(float((found[:, 0] > found[:, 1]).float().mean()))


def test_reranking_scores_only_the_candidates(folder, model):
    with MTEBSearch(model, Flat) as search:
        scores = scores_of(search, make_task(folder, "LocalReranking", top_ranked=CANDIDATES))
        task = make_task(folder, "LocalReranking")
        task.load_data()
        queries = task.dataset["default"]["test"]["queries"]
        less = {**CANDIDATES, "q1": []}
        del less["q2"]
        where = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
        run = search.search(queries, top_k=2, top_ranked=less, **where)
        with pytest.raises(UnknownIdError, match="absent"):
            search.search(queries, top_k=2, top_ranked={"q1": ["absent"]}, **where)
    assert {query: set(found) for query, found in run.items() if query != "q3"} == {
        "q1": set(),
        "q2": set(),
        "q4": {"rome"},
    }
    texts = [f"{DOCUMENTS[id_][0]} {DOCUMENTS[id_][1]}".strip() for id_ in CANDIDATES["q3"]]
    naive = colbert_scores(model.encode_query([QUERIES["q3"]]), model.encode_document(texts))[0].tolist()
    best = sorted(zip(naive, CANDIDATES["q3"], strict=True), reverse=True)[:2]
    assert list(run["q3"]) == [id_ for _, id_ in best]
    assert list(run["q3"].values()) == pytest.approx([score for score, _ in best], abs=1e-4)
    full = own_run(model, Flat)
    kept = {query: {id_: full[query][id_] for id_ in ids} for query, ids in CANDIDATES.items()}
    assert scores["ndcg_at_10"] == pytest.approx(evaluation.evaluate(kept, QRELS, ["nDCG@10"])["nDCG@10"], abs=1e-5)


def test_prompts_and_instructions_reach_the_model(folder, model):
    """The most special prompt wins, and an instruction follows the query, as mteb's own models have it."""
    prompts = {"query": "general: ", "LocalPrompts-query": "special: ", "document": "text: "}
    task = make_task(folder, "LocalPrompts", instruction="answer briefly")
    with MTEBSearch(model, Flat, prompts=prompts) as search:
        scores_of(search, task)
        task.load_data()  # mteb frees it
        split = task.dataset["default"]["test"]
        where = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
        run = search.search(split["queries"], top_k=5, **where)
    documents = [f"text: {title} {text}" if title else f"text: {text}" for title, text in DOCUMENTS.values()]
    queries = [f"special: {query} answer briefly" for query in QUERIES.values()]
    expected = colbert_scores(model.encode_query(queries), model.encode_document(documents))
    for query, row in zip(QUERIES, expected.tolist(), strict=True):
        assert run[query] == pytest.approx(dict(zip(DOCUMENTS, row, strict=True)), abs=1e-4)


@pytest.mark.parametrize("top_ranked", [None, {"moon": ["fruit", "moon", "rome"]}])
def test_the_document_with_the_id_of_its_query_is_left_out(folder, model, top_ranked):
    queries = Dataset.from_list([{"id": "moon", "text": "a planet and its moon"}])
    task = make_task(folder, "LocalIdentical")
    where = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
    corpus = Dataset.from_list([{"id": i, "title": title, "text": text} for i, (title, text) in DOCUMENTS.items()])
    found = {}
    for ignored in (False, True):
        with MTEBSearch(model, Flat, ignore_identical_ids=ignored) as search:
            search.index(corpus, **where)
            found[ignored] = search.search(queries, top_k=2, top_ranked=top_ranked, **where)["moon"]
    (first, second), kept = list(found[False]), list(found[True])
    assert (first, kept[0], len(kept)) == ("moon", second, 2)
    assert "moon" not in kept
