"""`latelier evaluate` and `latelier compare`: their numbers are those of the library, and what they refuse."""

import json
import re
import tempfile

import ir_datasets
import pytest
from ir_datasets.formats import TrecQrels, TsvDocs, TsvQueries
from ir_datasets.util import Registry

from documents import write_beir
from latelier import evaluation
from latelier.retrieve import Retriever

DOCUMENTS = {
    "fruit": "Bananas are healthy.",
    "moon": "The moon is far away from the earth.",
    "berlin": "It is the capital of Germany.",
    "pasta": "How to cook spaghetti.",
}
QUERIES = {"q1": "unhealthy fruit", "q2": "a German city", "q3": "cook noodles", "unjudged": "stars"}
QRELS = {"q1": {"fruit": 1}, "q2": {"berlin": 1, "moon": 0}, "q3": {"pasta": 2}}


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("data") / "beir", DOCUMENTS, QUERIES, QRELS)


@pytest.fixture(scope="module")
def run_file(beir, run, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "minilm.trec"
    result = run("evaluate", beir, "--device", "cpu", "--output", path, "-k", 4)
    assert result.exit_code == 0, result.output
    return path


def test_evaluate_encodes_the_collection_and_removes_its_index(beir, run, tmp_path, monkeypatch, run_file):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = run("evaluate", beir, "--device", "cpu", "--json")
    facts = json.loads(result.stdout)
    expected = evaluation.evaluate(evaluation.read_run(run_file), QRELS)
    assert facts["measures"] == pytest.approx(expected)
    assert facts["per_query"] == expected.per_query
    used = facts["settings"]
    assert (used["documents"], used["queries"], used["queries_cut"], used["documents_cut"]) == (4, 3, 0.0, 0.0)
    assert (used["index"], used["bits"], used["query_length"], used["dtype"]) == ("Flat", 32, 512, "float32")
    assert used["mode"] == "vectors"  # the model is measured
    assert used["model"].endswith("all-MiniLM-L6-v2")
    assert used["seconds"] > 0
    assert expected["RR@10"] > 0.5
    assert list(tmp_path.iterdir()) == []


def test_evaluate_searches_an_index(beir, run, tmp_path, run_file):
    records = tmp_path / "records.jsonl"
    records.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in DOCUMENTS.items()))
    indexing = run("index", records, tmp_path / "index", "--device", "cpu")
    assert indexing.exit_code == 0, indexing.output
    options = ("--device", "cpu", "--measure", "nDCG@10", "--measure", "IPrec@0.1", "--output", tmp_path / "run.jsonl")
    by_default = run("evaluate", beir, "--index", tmp_path / "index", *options)
    assert ", mode hybrid, effort balanced" in by_default.stdout  # as searches are
    result = run("evaluate", beir, "--index", tmp_path / "index", "--mode", "vectors", *options)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["nDCG@10", "IPrec@0.1", "(mean", "model"]
    assert ", index IVF, bits 2, pool_factor 1, mode vectors, effort balanced" in lines[3]
    found, exact = evaluation.read_run(tmp_path / "run.jsonl"), evaluation.read_run(run_file)
    assert {query: list(scores) for query, scores in found.items()} == {q: list(s) for q, s in exact.items()}
    assert lines[0] == f"nDCG@10    {evaluation.evaluate(found, QRELS)['nDCG@10']:.4f}"


def test_a_search_without_a_hit_says_why(beir, run, tmp_path, tiny):
    index, output = tmp_path / "index", tmp_path / "run.trec"
    options = ("evaluate", beir, "--index", index, "--device", "cpu", "--output", output)
    with Retriever(tiny, index, device="cpu") as retriever:
        retriever.add([("fruit", "Pears."), ("b", "Plums.")])
        result = run(*options, "--mode", "keywords")
        assert (result.exit_code, result.stdout) == (1, "")
        assert (
            "--mode keywords found no document for 3 queries, as no query shares a word with any of the 2 docu"
            in result.stderr
        )
        retriever.remove(["fruit", "b"])
    result = run(*options)
    assert result.exit_code == 1
    assert "judged documents, such as 'fruit'" in result.stderr
    assert "is in the index, which is empty" in result.stderr
    assert not output.exists()


def test_an_index_without_the_ids_of_the_collection_is_an_error(beir, run, tmp_path, tiny):
    with Retriever(tiny, tmp_path / "index", device="cpu") as retriever:
        retriever.add(list(DOCUMENTS.values()))
    result = run("evaluate", beir, "--index", tmp_path / "index", "--device", "cpu")
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.search(
        r"none of the \d judged documents, such as 'fruit'.*, is in the index, which has '0', '1', '2': ",
        result.stderr,
    )


@pytest.fixture
def many(tmp_path, tiny):
    index = tmp_path / "index"
    texts = {f"d{i}": "pear " * (1 + i % 7) for i in range(150)}
    with Retriever(tiny, index, device="cpu") as retriever:
        retriever.add(texts.items())
        last = retriever.search("pear", 150)[-1].id
    return write_beir(tmp_path / "many", texts, {"q": "pear"}, {"q": {last: 1}}), index


def test_as_many_documents_are_found_as_the_measures_need(run, many, tmp_path):
    folder, index = many
    measured = ("evaluate", folder, "--index", index, "--device", "cpu", "--measure", "R@1000", "--measure", "R@10")
    assert run(*measured).stdout.startswith("R@1000  1.0000\nR@10    0.0000\n(mean of 1 query)\nmodel ")
    assert run(*measured, "-k", 150).stdout.startswith("R@1000  1.0000\n")  # no document is left out
    for k in (1, 149):
        result = run(*measured, "-k", k)
        assert (result.exit_code, result.stdout) == (2, "")
        message = f"Invalid value for -k: {k} documents per query are too few for R@1000; give -k 1000, or name"
        assert message in result.stderr
    output = tmp_path / "run.jsonl"
    assert run(*measured[:-4], "--measure", "R@10", "--output", output).stdout.startswith("R@10  0.0000\n")
    assert len(evaluation.read_run(output)["q"]) == 100


def test_compare_prints_the_table_of_the_library(beir, run, run_file, tmp_path):
    worse = {query: {id_: -score for id_, score in row.items()} for query, row in evaluation.read_run(run_file).items()}
    evaluation.write_run(worse, tmp_path / "reversed.jsonl")
    expected = evaluation.compare(
        evaluation.read_run(run_file), worse, QRELS, ["nDCG@10", "RR"], names=("minilm", "reversed")
    )
    arguments = (run_file, tmp_path / "reversed.jsonl", "--qrels", beir, "--measure", "nDCG@10", "--measure", "RR")
    assert run("compare", *arguments).stdout == f"{expected}\n"
    facts = json.loads(run("compare", *arguments, "--json").stdout)
    assert (facts["a"], facts["b"], facts["trials"]) == ("minilm", "reversed", 100_000)
    assert facts["measures"]["RR"]["p_holm"] == expected["RR"].p_holm
    assert facts["measures"]["RR"]["differences"] == expected["RR"].differences
    assert facts["measures"]["RR"]["losses"] == 3


def test_reports_are_compared_without_qrels_and_their_settings_too(beir, run, tmp_path, run_file):
    for name, options in (("flat", ()), ("ivf", ("--bits", "8", "--effort", "fast", "--max-length-query", "4"))):
        result = run("evaluate", beir, "--device", "cpu", "--json", *options)
        (tmp_path / f"{name}.json").write_text(result.stdout)
    reports = tmp_path / "flat.json", tmp_path / "ivf.json"
    lines = run("compare", *reports).stdout.splitlines()
    assert lines[-1] == (
        "settings that differ: query_length 512 / 4, index Flat / IVF, bits 32 / 8, queries_cut 0.0 / 0.6667, effort "
        "None / fast"
    )
    assert lines[-3].endswith("100,000 trials)")
    facts = json.loads(run("compare", *reports, "--measure", "RR@10", "--json").stdout)
    assert facts["settings"]["effort"] == [None, "fast"]
    measured = json.loads(reports[0].read_text())["measures"]
    assert {name: found["a"] for name, found in facts["measures"].items()} == {"RR@10": measured["RR@10"]}
    result = run("compare", reports[0], run_file)
    assert (result.exit_code, "--qrels: runs are compared by relevance judgements" in result.stderr) == (2, True)
    result = run("compare", reports[0], run_file, "--qrels", beir, "--measure", "AP")
    assert (result.exit_code, "flat and minilm cannot be compared" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("evaluate", "{beir}", "--run", "{run}", "--model", "m"), 2, "--model: it has no effect beside --run"),
        (("evaluate", "{beir}", "--run", "{tmp}/none"), 1, "there is no file"),
        (
            ("evaluate", "{run}", "--run", "{run}", "--split", "dev"),
            2,
            "--split: it has no effect on {run}, which is a",
        ),
        (("evaluate", "{tmp}"), 1, "has no corpus.jsonl"),
        (("evaluate", "{beir}", "--index", "i", "--max-length-query", "9"), 2, "--max-length-query: it has no effect"),
        (("evaluate", "{beir}", "--run", "{run}", "--measure", "nDGC"), 1, "did you mean 'nDCG'"),
        (("evaluate", "{beir}", "--device", "banana", "--output", "{tmp}/none/x.trec"), 1, "there is no folder"),
        (("compare", "{run}", "{run}"), 2, "--qrels"),
    ],
)
def test_refused(beir, run, run_file, tmp_path, arguments, status, message):
    (tmp_path / "bad").write_text("q1 d1\n")
    (tmp_path / "empty").write_text("")
    result = run(*(argument.format(beir=beir, run=run_file, tmp=tmp_path) for argument in arguments))
    assert (result.exit_code, result.stdout) == (status, "")
    assert message.format(run=run_file) in result.stderr
    assert "Traceback" not in result.stderr


def test_evaluate_takes_a_folder_of_tables_and_data_sets_by_name(beir, run, run_file, tmp_path, monkeypatch):
    tables = {"collection.tsv": DOCUMENTS, "queries.tsv": QUERIES}
    for name, texts in tables.items():
        (tmp_path / name).write_text("".join(f"{id}\t{text}\n" for id, text in texts.items()))
    evaluation.write_trec_qrels(QRELS, tmp_path / "qrels.test.tsv")
    registry = Registry()
    dataset = ir_datasets.Dataset(
        TsvDocs(Local(tmp_path / "collection.tsv")),
        TsvQueries(Local(tmp_path / "queries.tsv")),
        TrecQrels(Local(tmp_path / "qrels.test.tsv"), {}),
    )
    registry.register("small/test", dataset)
    monkeypatch.setattr(ir_datasets, "registry", registry)
    expected = run("evaluate", beir, "--run", run_file, "--measure", "nDCG@10").stdout.splitlines()[:2]
    for source in (tmp_path, "irds:small/test"):
        result = run("evaluate", source, "--device", "cpu", "--measure", "nDCG@10")
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[:2] == expected
        measured = run("evaluate", source, "--run", run_file, "--measure", "nDCG@10")
        assert measured.stdout.splitlines()[:2] == expected
    refused = run("evaluate", "irds:small/test", "--split", "dev")
    assert refused.exit_code == 2
    assert "--split: it has no effect on irds:small/test" in refused.stderr


class Local:
    """A file as ir_datasets takes it."""

    def __init__(self, path):
        self._path = path

    def path(self, force=True):
        return self._path

    def stream(self):
        return self._path.open("rb")
