"""`latelier rerank`: a run and a collection in, a run out, scored as by the library."""

import pytest

from documents import write_beir
from latelier import evaluation
from latelier.retrieve import Retriever

DOCUMENTS = {
    "fruit": "Bananas are healthy.",
    "moon": "The moon is far away from the earth.",
    "berlin": "It is the capital of Germany.",
    "other": "Not in the run.",
}
QUERIES = {"q1": "unhealthy fruit", "q2": "a German city", "q3": "not in the run"}
RUN = {"q1": {"moon": 3.0, "fruit": 2.0}, "q2": {"fruit": 3.0, "moon": 2.0, "berlin": 1.0}}


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("data") / "beir", DOCUMENTS, QUERIES, {"q3": {"other": 1}})


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "first.trec"
    evaluation.write_run(RUN, path)
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "top1000.dev"
    rows = [(query, id, QUERIES[query], DOCUMENTS[id]) for query, found in RUN.items() for id in found]
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def expected():
    retriever = Retriever(device="cpu")
    ordered = {}
    for query, found in RUN.items():
        hits = retriever.rerank(QUERIES[query], [{"id": id, "text": DOCUMENTS[id]} for id in found])
        ordered[query] = {hit["id"]: pytest.approx(hit["score"], abs=1e-5) for hit in hits}
    assert list(ordered["q1"]) == ["fruit", "moon"]
    return ordered


@pytest.mark.parametrize("kind", ["ids", "texts"])
def test_the_documents_of_a_run_are_ordered_by_maxsim(run, beir, ids, texts, expected, tmp_path, kind):
    source = {"ids": (ids, beir), "texts": (texts,)}[kind]
    result = run("rerank", *source, "--device", "cpu", "--output", tmp_path / "new.jsonl")
    assert result.exit_code == 0, result.output
    assert "new.jsonl: 3 documents of 2 queries, reranked with " in result.stdout
    found = evaluation.read_run(tmp_path / "new.jsonl")
    assert found == expected
    assert [list(scores) for scores in found.values()] == [list(scores) for scores in expected.values()]


def test_the_best_documents_alone(run, beir, ids, tmp_path):
    result = run("rerank", ids, beir, "--device", "cpu", "--output", tmp_path / "short.trec", "-k", 2)
    assert result.exit_code == 0, result.output
    short = evaluation.read_run(tmp_path / "short.trec")
    assert {query: {*found} for query, found in short.items()} == {"q1": {"moon", "fruit"}, "q2": {"fruit", "moon"}}


def test_what_cannot_be_reranked(run, beir, ids, texts, tmp_path):
    output = tmp_path / "new.trec"
    (tmp_path / "unknown.trec").write_text("q1 Q0 fruit 1 2.0 x\nq1 Q0 d9 2 1.0 x\n")
    (tmp_path / "faulty.tsv").write_text("q1\td1\tpears\tPears.\nq1\td1\tpears\tPlums.\n")
    for arguments, status, message in (
        ((ids,), 2, "first.trec holds ids; give the collection with their texts"),
        ((texts, beir), 2, "top1000.dev holds texts of its own; leave DATA out"),
        ((texts, "--split", "dev"), 2, "--split: it has no effect on"),
        ((tmp_path / "unknown.trec", beir), 1, "1 of 2 documents of "),
        ((tmp_path / "faulty.tsv",), 1, "faulty.tsv:2: the document 'd1' has another text"),
    ):
        result = run("rerank", *arguments, "--output", output)
        assert result.exit_code == status, result.output
        assert message in " ".join(result.stderr.split()), result.stderr
    assert not output.exists()
