"""Runs and qrels in each format are read as the same tables, and each fault is named with its file and line."""

import gzip
import json
import os

import pytest

from latelier.errors import InvalidArgumentError, StorageError
from latelier.evaluation import read_qrels, read_run, write_run, write_trec, write_trec_qrels
from latelier.evaluation.files import check_run_file

RUN = {"q1": {"d2": 1.25, "d1": 0.5}, "q2": {"d1": -3.0}}
QRELS = {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": 2}}


def rows(table, value, query="query_id", document="document_id"):
    return "".join(
        json.dumps({query: q, document: d, value: number}) + "\n"
        for q, row in table.items()
        for d, number in row.items()
    )


@pytest.mark.parametrize(
    "text",
    [
        rows(RUN, "score"),
        rows(RUN, "score", "query-id", "corpus-id"),
        "\n".join(
            json.dumps(
                {"query_id": q, "query": "text", "results": [{"corpus_id": d, "score": s} for d, s in row.items()]}
            )
            for q, row in RUN.items()
        ),
        "\n\n  " + rows(RUN, "score"),
    ],
    ids=["pairs", "BEIR's names", "a query per line", "blank lines first"],
)
def test_runs_as_json_lines(tmp_path, text):
    (tmp_path / "run").write_text(text)
    assert read_run(tmp_path / "run") == RUN


def test_runs_in_trec_format_and_compressed(tmp_path):
    write_trec(RUN, tmp_path / "run.trec")
    assert read_run(tmp_path / "run.trec") == RUN
    (tmp_path / "run.gz").write_bytes(gzip.compress((tmp_path / "run.trec").read_bytes()))
    assert read_run(tmp_path / "run.gz") == RUN


@pytest.mark.parametrize("name", ["run.jsonl", "run.trec"])
def test_write_run_is_read_back_as_it_was(tmp_path, name):
    write_run(RUN, tmp_path / name)
    assert read_run(tmp_path / name) == RUN
    assert (tmp_path / name).read_text().startswith("{") is name.endswith(".jsonl")


@pytest.mark.parametrize("name", ["run.jsonl.gz", "run.trec.gz", "run.gz"])
def test_a_run_file_that_ends_in_gz_is_compressed(tmp_path, name):
    write_run(RUN, tmp_path / name)
    assert gzip.decompress((tmp_path / name).read_bytes()).startswith(b"{") is (".jsonl" in name)
    assert read_run(tmp_path / name) == RUN
    check = (tmp_path / name, ["q 1"], ["d1"])
    if ".jsonl" in name:
        check_run_file(*check)
    else:
        with pytest.raises(InvalidArgumentError, match="white space"):
            check_run_file(*check)


@pytest.mark.parametrize(("run", "what"), [({"q": {"": 1.0}}, "document id"), ({"": {"d": 1.0}}, "query id")])
def test_an_empty_id_is_not_written_as_readers_reject_it(tmp_path, run, what):
    with pytest.raises(InvalidArgumentError, match=f"{what} '' cannot be written"):
        write_run(run, tmp_path / "run.jsonl")
    with pytest.raises(InvalidArgumentError, match=f"{what} '' cannot be written"):
        check_run_file(tmp_path / "run.jsonl", run, next(iter(run.values())))
    assert list(tmp_path.iterdir()) == []


def test_json_lines_hold_ids_that_trec_cannot(tmp_path):
    run = {"q 1": {"a b": 1.0, "\u2028": 0.5}}
    write_run(run, tmp_path / "run.jsonl")
    assert read_run(tmp_path / "run.jsonl") == run
    with pytest.raises(InvalidArgumentError, match="white space"):
        write_run(run, tmp_path / "run.trec")


def test_a_query_id_in_braces_is_no_json(tmp_path):
    run, qrels = {"{3f25}": {"a": 1.5}, "q": {"b": 0.5}}, {"{3f25}": {"a": 1}, "q": {"b": 0}}
    write_run(run, tmp_path / "run.trec")
    write_trec_qrels(qrels, tmp_path / "qrels.trec")
    (tmp_path / "qrels.tsv").write_text("{3f25}\ta\t1\nq\tb\t0\n")
    assert read_run(tmp_path / "run.trec") == run
    assert read_qrels(tmp_path / "qrels.trec") == read_qrels(tmp_path / "qrels.tsv") == qrels


def test_qrels_in_each_format(tmp_path):
    write_trec_qrels(QRELS, tmp_path / "trec")
    (tmp_path / "json").write_text(rows(QRELS, "relevance"))
    (tmp_path / "floats").write_text(
        rows({q: {d: float(n) for d, n in row.items()} for q, row in QRELS.items()}, "score")
    )
    lines = "".join(f"{q}\t{d}\t{n}\n" for q, row in QRELS.items() for d, n in row.items())
    (tmp_path / "tsv").write_text(lines)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    for name in ("trec", "json", "floats", "tsv"):
        assert read_qrels(tmp_path / name) == QRELS
    assert read_qrels(tmp_path, "dev") == QRELS
    with pytest.raises(InvalidArgumentError, match=r"no relevance judgements for split='test'; .* available: dev"):
        read_qrels(tmp_path)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_run, "", "file is empty"),
        (read_run, "\n \n", "file is empty"),
        (read_run, "q1 d1 0.5\n", "file:1: 3 columns"),
        (read_run, '{"query_id": "q"', "file:1: malformed JSON"),
        (read_run, rows(RUN, "score") + "[]\n", "file:4: expected a JSON object, received list"),
        (read_run, rows(RUN, "score") + "q1 Q0 d1 1 0.5 x\n", "file:4: malformed JSON"),
        (read_run, rows(RUN, "value"), "file:1: no 'score' field; its fields are 'query_id', 'document_id', 'value'"),
        (read_run, rows(RUN, "score", query="q"), "file:1: no 'query_id' field"),
        (read_run, rows({"q": {"d": None}}, "score"), "file:1: score is None; expected a number"),
        (read_run, rows({"q": {"d": True}}, "score"), r"file:1: score is True \(bool\)"),
        (read_run, rows({"q": {"d": float("nan")}}, "score"), r"file:1: score is nan \(float\)"),
        (read_run, rows({"q": {"d": 10**400}}, "score"), "file:1: score is .* expected a number"),
        (read_run, rows({"q": {"d": 1}}, "score") * 2, "file:2: document 'd' is repeated for query 'q'"),
        (read_run, '{"query_id": "q", "results": {"d": 1}}', "file:1: results is .* expected a list"),
        (read_run, '{"query_id": null, "document_id": "d", "score": 1}', "file:1: the id is None"),
        (read_qrels, rows({"q": {"d": 0.5}}, "relevance"), "file:1: relevance 0.5 is not an integer"),
        (read_qrels, rows({"q": {"d": float("inf")}}, "relevance"), "file:1: relevance inf is not an integer"),
        (
            read_run,
            '{"query_id": "", "document_id": "d", "score": 1}',
            "the id is .* expected a string that is not empt",
        ),
        (read_qrels, rows({"q": {"d": 2**32}}, "relevance"), "file:1: relevance 4294967296.0 is not from -1,000,000"),
        (read_qrels, "q\td\tscore\nq\td\t2147483647\n", "file:2: relevance 2147483647.0 is not from -1,000,000"),
        (read_qrels, "q\td\tscore\nq\td\tmuch\n", "file:2: relevance 'much' is not an integer"),
        (read_qrels, "q\td\t1.0\nq\te\t1\n", "file:1: relevance '1.0' is not an integer"),
        (read_qrels, "q\td\t\nq\te\t1\n", "file:1: relevance '' is not an integer"),
        (read_qrels, "q\td\t1\nq\td\n", "file:2: 2 columns; expected query id, document id and relevance, separated"),
        (read_qrels, "q\td\t1\nq\td\t0\n", "file:2: document 'd' is repeated"),
        (read_qrels, "q 0 d one\n", "file:1: 'one' is not an integer"),
    ],
)
def test_faults_name_the_line(tmp_path, read, text, message):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InvalidArgumentError, match=message):
        read(tmp_path / "file")


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path):
    write_run(RUN, tmp_path / "run.jsonl")
    with pytest.raises(InvalidArgumentError, match="NaN"):
        write_run({"q": {"d": float("nan")}}, tmp_path / "run.jsonl")
    assert read_run(tmp_path / "run.jsonl") == RUN
    with pytest.raises(StorageError, match="could not write"):
        write_run(RUN, tmp_path / "none" / "run.jsonl")


def test_what_cannot_be_written_is_known_before_there_is_a_run(tmp_path):
    check_run_file(tmp_path / "run.jsonl", ["q 1"], ["d 1"])
    check_run_file(tmp_path / "run.trec", ["q1"], ["d1"])
    assert list(tmp_path.iterdir()) == []
    for queries, documents, message in (
        (["q 1"], [], "query id 'q 1'"),
        (["q1"], ["d1", "d\t2"], r"document id 'd\\t2'"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"{message} cannot be written to a TREC file"):
            check_run_file(tmp_path / "run.trec", queries, documents)
    with pytest.raises(StorageError, match=r"there is no folder '.*none'; make it, or name another file"):
        check_run_file(tmp_path / "none" / "run.jsonl", ["q1"], ["d1"])
    with pytest.raises(StorageError, match="it is a folder; name a file"):
        check_run_file(tmp_path, ["q1"], ["d1"])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user whom permissions restrict")
def test_a_run_file_without_permission_is_known_before_there_is_a_run(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no permission to write"):
        check_run_file(tmp_path / "run.jsonl", ["q1"], ["d1"])
