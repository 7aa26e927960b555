"""Reading BEIR folders: what comes out of sound files, and every fault named with file and line."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import ir_datasets
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQuery, TrecQrel
from ir_datasets.util import Registry
from pyarrow import parquet

from latelier.errors import InvalidArgumentError, StorageError
from latelier.evaluation import (
    Collection,
    evaluate,
    load_beir,
    ranking,
    read_excluded,
    read_qrels,
    read_run,
    write_run,
    write_trec_qrels,
)
from latelier.evaluation.files import check_run_file

CORPUS = [
    {"_id": "d1", "title": "Paris", "text": "Capital of France.", "metadata": {"lang": "en"}},
    {"_id": "d2", "title": "", "text": "Berlin is in Germany."},
    {"_id": "d3", "text": "Rome."},
]

QUERIES = [
    {"_id": "q1", "text": "capital of france"},
    {"_id": "q2", "text": "germany"},
    {"_id": "q3", "text": "unjudged"},
]

QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\n"


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "queries.jsonl", QUERIES)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(QRELS)
    return tmp_path


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def write(path, records):
    path.write_text(lines(records), encoding="utf-8")


def test_sound_folder(folder):
    collection = load_beir(folder)
    assert collection.documents["d1"] == {"title": "Paris", "text": "Capital of France."}
    assert collection.texts() == {"d1": "Paris Capital of France.", "d2": "Berlin is in Germany.", "d3": "Rome."}
    assert collection.queries == {"q1": "capital of france", "q2": "germany"}  # q3 has no qrel in this split
    assert collection.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}
    assert repr(collection) == "Collection(3 documents, 2 queries, 3 qrels)"
    assert repr(Collection({}, {}, {})) == "Collection(0 documents, 0 queries, 0 qrels)"


def tabs(rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


TEXTS = {
    "collection.tsv": tabs([row["_id"], row["text"], row.get("title", "")] for row in CORPUS),
    "questions.test.tsv": tabs([row["_id"], row["text"]] for row in QUERIES),
}
JUDGED = [("q1", "d1", 2), ("q1", "d2", 0), ("q2", "d2", 1)]
SHARDS = {
    "corpus": [{"_id": row["_id"], "text": row["text"], "title": row.get("title")} for row in CORPUS],
    "queries": [{"_id": row["_id"], "text": row["text"]} for row in QUERIES],
    "qrels": [{"query-id": query, "corpus-id": document, "score": score} for query, document, score in JUDGED],
}


@pytest.mark.parametrize(
    "layout",
    [
        TEXTS | {"qrels.test.tsv": tabs([query, 0, document, score] for query, document, score in JUDGED)},  # MS MARCO
        TEXTS | {"qas.test.jsonl": '{"qid": "q1", "answer_pids": ["d1"]}\n{"qid": "q2", "answer_pids": ["d2"]}\n'},
        {"corpus/corpus-{}": "corpus", "queries/queries-{}": "queries", "qrels/test-{}": "qrels"},
        {"corpus/test-{}": "corpus", "queries/test-{}": "queries", "queries/dev-{}": "qrels", "data/test-{}": "qrels"},
        {"corpus/corpus-{}": "corpus", "queries.jsonl": lines(QUERIES), "qrels/test.tsv": QRELS},
    ],
    ids=["MS MARCO", "LoTTE", "Hub", "mteb", "mixed"],
)
def test_a_collection_in_other_layouts(folder, tmp_path_factory, layout):
    other = tmp_path_factory.mktemp("other")
    for name, contents in layout.items():
        (other / name).parent.mkdir(exist_ok=True)
        if contents not in SHARDS:
            (other / name).write_text(contents, encoding="utf-8")
            continue
        rows = SHARDS[contents]
        for shard, part in enumerate((rows[:1], rows[1:])):
            parquet.write_table(
                pyarrow.Table.from_pylist(part), other / (name.format(f"{shard:05}-of-00002") + ".parquet")
            )
    collection = load_beir(other)
    expected = load_beir(folder)
    if "qas.test.jsonl" in layout:
        expected = replace(expected, qrels={"q1": {"d1": 1}, "q2": {"d2": 1}})
    assert collection == expected
    with pytest.raises(InvalidArgumentError, match=r"split='x'; splits available: .*test"):
        load_beir(other, "x")


def test_faults_of_tables_and_parquet_name_the_row(tmp_path):
    (tmp_path / "collection.tsv").write_text("1\tone\n1\ttwo\n\n2\t \n3\n")
    (tmp_path / "queries.tsv").write_text("7\tq\n")
    (tmp_path / "qrels.tsv").write_text("7\t0\t1\t1\n")
    for message in (
        r"collection.tsv:2: duplicate _id '1', first at collection.tsv:1",
        r"collection.tsv:4: text and title are empty \(_id '2'\)",
        r"collection.tsv:5: no 'text' field; its fields are '_id'",
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            load_beir(tmp_path)
    (tmp_path / "collection.tsv").unlink()
    (tmp_path / "corpus").mkdir()
    for shard in range(2):
        parquet.write_table(pyarrow.table({"_id": ["1"], "text": ["one"]}), tmp_path / "corpus" / f"{shard}.parquet")
    with pytest.raises(InvalidArgumentError, match=r"1.parquet:row 1: duplicate _id '1', first at 0.parquet:row 1"):
        load_beir(tmp_path)


def test_gzip_byte_order_mark_blank_lines_and_integer_ids(folder):
    (folder / "corpus.jsonl").unlink()
    lines = "\ufeff" + "\n\r\n".join(json.dumps(record) for record in [*CORPUS, {"_id": 7, "text": "seven"}])
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert list(load_beir(folder).documents) == ["d1", "d2", "d3", "7"]


def test_qrels_without_header_and_other_splits(folder):
    (folder / "qrels" / "dev.tsv").write_text("q3\td3\t1\n")
    collection = load_beir(folder, "dev")
    assert collection.qrels == {"q3": {"d3": 1}}
    assert collection.queries == {"q3": "unjudged"}
    with pytest.raises(InvalidArgumentError, match=r"split='train'; splits available: dev, test\."):
        load_beir(folder, "train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"_id": "d9", "text"', r"corpus.jsonl:4: malformed JSON"),
        ('{"name": "d9", "text": "x"}', r"corpus.jsonl:4: no '_id' field; its fields are 'name', 'text'"),
        ('{"_id": "d9", "title": "x"}', r"corpus.jsonl:4: no 'text' field; its fields are '_id', 'title'"),
        ('{"_id": "d9", "title": " ", "text": null}', r"corpus.jsonl:4: text and title are empty \(_id 'd9'\)"),
        ('{"_id": "d2", "text": "x"}', r"corpus.jsonl:4: duplicate _id 'd2', first at corpus.jsonl:2"),
    ],
)
def test_faulty_documents(folder, line, message):
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InvalidArgumentError, match=message):
        load_beir(folder)
    with pytest.warns(UserWarning, match=message):
        assert list(load_beir(folder, on_problem="skip").documents) == ["d1", "d2", "d3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q9\td1\t1", r"qrels/test.tsv:5: unknown query id 'q9'"),
        ("q1\td9\t1", r"qrels/test.tsv:5: unknown document id 'd9'"),
        ("q1\td3\t0.5", r"qrels/test.tsv:5: relevance '0.5' is not an integer"),
        ("q1 0 d3 1", r"qrels/test.tsv:5: 1 cell; the first line has 3 columns"),
    ],
)
def test_faulty_qrels(folder, line, message):
    (folder / "qrels" / "test.tsv").write_text(QRELS + line + "\n")
    with pytest.raises(InvalidArgumentError, match=message):
        load_beir(folder)
    with pytest.warns(UserWarning, match=message):
        assert load_beir(folder, on_problem="skip").qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}


@pytest.mark.parametrize(("query", "relevance"), [("q1", "yes"), ("unknown", "0.7"), ("unknown", "")])
def test_faulty_first_qrel_is_not_taken_for_a_header(folder, query, relevance):
    (folder / "qrels" / "test.tsv").write_text(f"{query}\td1\t{relevance}\nq2\td2\t1\n")
    with pytest.raises(InvalidArgumentError, match=rf"qrels/test.tsv:1: relevance '{relevance}' is not an integer"):
        load_beir(folder)


RUN = {"q1": {"d2": 1.25, "d1": 0.5}, "q2": {"d1": -3.0}}


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


def test_a_query_id_in_braces_is_no_json(tmp_path):
    run, qrels = {"{3f25}": {"a": 1.5}, "q": {"b": 0.5}}, {"{3f25}": {"a": 1}, "q": {"b": 0}}
    write_run(run, tmp_path / "run.trec")
    write_trec_qrels(qrels, tmp_path / "qrels.trec")
    (tmp_path / "qrels.tsv").write_text("{3f25}\ta\t1\nq\tb\t0\n")
    assert read_run(tmp_path / "run.trec") == run
    assert read_qrels(tmp_path / "qrels.trec") == read_qrels(tmp_path / "qrels.tsv") == qrels


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_run, "", "file is empty"),
        (read_run, '{"query_id": "q"', "file:1: malformed JSON"),
        (read_run, rows(RUN, "score") + "[]\n", "file:4: expected a JSON object, received list"),
        (read_run, rows(RUN, "value"), "file:1: no 'score' field; its fields are 'query_id', 'document_id', 'value'"),
        (read_qrels, rows({"q": {"d": 0.5}}, "relevance"), "file:1: relevance 0.5 is not an integer"),
        (read_qrels, "q\td\tscore\nq\td\tmuch\n", "file:2: relevance 'much' is not an integer"),
        (read_qrels, "q\td\t1\nq\td\n", "file:2: 2 cells; the first line has 3 columns"),
        (read_qrels, "q\td\t1\nq\td\t0\n", "file:2: document 'd' is repeated"),
    ],
)
def test_faults_name_the_line(tmp_path, read, text, message):
    (tmp_path / "file").write_text(text)
    with pytest.raises(InvalidArgumentError, match=message):
        read(tmp_path / "file")


@pytest.mark.parametrize(
    "text",
    [
        "q1\td2\t1\t1.25\nq1\td1\t2\t0.5\nq2\td1\t1\t-3\n",
        "# a run of ours\nq1 Q0 d2 1 1.25 x\n#q1 Q0 d9 1 9 x\nq1 Q0 d1 2 0.5 x\nq2 Q0 d1 1 -3.0 x\n",
        json.dumps(RUN),
        json.dumps(RUN, indent=2),
    ],
    ids=["ColBERT", "comments", "ranx", "indented"],
)
def test_runs_of_other_tools(tmp_path, text):
    (tmp_path / "run").write_text(text)
    assert read_run(tmp_path / "run") == RUN


def test_a_run_of_ranks_alone_is_one_of_ms_marco(tmp_path):
    (tmp_path / "run").write_text("q1\td2\t1\nq1\td1\t2\nq2\td1\t1\n")
    assert read_run(tmp_path / "run") == {"q1": {"d2": 1.0, "d1": 0.5}, "q2": {"d1": 1.0}}
    (tmp_path / "run").write_text("q1\td2\t7\nq1\td1\t5\n")
    with pytest.raises(InvalidArgumentError, match=r"run:1: the third of 3 columns is '7'; expected the rank, 1"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qrels/test.tsv", "corpus-id\tscore\tquery-id\nd1\t2\tq1\nd2\t0\tq1\nd2\t1\tq2\n"),
        ("qrels/test.tsv", "# judged in 2024\nq1 0 d1 2\nq1\t0\td2\t0\nq2 0 d2 1.0\n"),
        ("qrels/test.jsonl", rows({"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1.0}}, "score", "query-id", "corpus-id")),
        ("qrels.jsonl", rows({"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}, "score", "query-id", "corpus-id")),
        ("qrels/test.tsv", json.dumps({"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}, indent=1)),
    ],
    ids=["columns in another order", "TREC", "MTEB", "LIMIT", "pytrec_eval"],
)
def test_qrels_of_other_tools_are_read_alike_from_folders_and_files(folder, name, text):
    (folder / "qrels" / "test.tsv").unlink()
    (folder / name).write_text(text)
    expected = {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}
    assert load_beir(folder).qrels == read_qrels(folder) == read_qrels(folder / name) == expected


@pytest.mark.parametrize("value", ["null", "NaN", '"high"', "true", "0.5"])
@pytest.mark.parametrize("form", ['{{"query_id": "q1", "document_id": "d3", "score": {}}}', "q1\td3\t{}", "q1 0 d3 {}"])
def test_what_is_no_relevance_is_refused_by_every_reader(folder, value, form):
    (folder / "qrels" / "test.tsv").write_text(form.format(value))
    with pytest.raises(InvalidArgumentError, match=r":1: relevance .* is not an integer"):
        read_qrels(folder / "qrels" / "test.tsv")
    with pytest.raises(InvalidArgumentError, match=r"test.tsv:1: relevance .* is not an integer"):
        load_beir(folder)


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path):
    write_run(RUN, tmp_path / "run.jsonl")
    with pytest.raises(InvalidArgumentError, match="NaN"):
        write_run({"q": {"d": float("nan")}}, tmp_path / "run.jsonl")
    assert read_run(tmp_path / "run.jsonl") == RUN
    with pytest.raises(InvalidArgumentError, match="run name 'my run' cannot be written to a TREC file"):
        write_run(RUN, tmp_path / "run.trec", name="my run")
    with pytest.raises(StorageError, match="could not write"):
        write_run(RUN, tmp_path / "none" / "run.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]


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
    with pytest.raises(StorageError, match=r"there is no folder, or no permission to write, .*none; name a file"):
        check_run_file(tmp_path / "none" / "run.jsonl", ["q1"], ["d1"])
    with pytest.raises(StorageError, match="it is a folder; name a file"):
        check_run_file(tmp_path, ["q1"], ["d1"])


ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda s: s[0] != "#" and not any(c.isspace() for c in s)
)

scores = st.floats(allow_nan=False)
shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)


@shared_folder
@given(st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=5), min_size=1, max_size=4))
def test_run_round_trip(tmp_path, run):
    path = tmp_path / "run.trec"
    write_run(run, path, name="mine")
    read = read_run(path)
    assert read == run
    for query, documents in read.items():
        assert list(documents.items()) == ranking(run[query])  # in the order of the ranks


@shared_folder
@given(st.dictionaries(ids, st.dictionaries(ids, st.integers(-(10**6), 10**6), min_size=1), min_size=1, max_size=4))
def test_qrels_round_trip(tmp_path, qrels):
    path = tmp_path / "qrels.txt"
    write_trec_qrels(qrels, path)
    assert read_qrels(path) == qrels


def test_lines_ranks_and_ties(tmp_path):
    path = tmp_path / "run.trec"
    write_run({"q": {"a": 1, "c": 1.0, "b": 2.5, "z": -math.inf}}, path, name="r1")
    assert path.read_text() == "q Q0 b 1 2.5 r1\nq Q0 c 2 1.0 r1\nq Q0 a 3 1.0 r1\nq Q0 z 4 -inf r1\n"


def test_qrels_that_cannot_be_written(tmp_path):
    with pytest.raises(InvalidArgumentError, match="document id 'd 1' cannot be written to a TREC file"):
        write_trec_qrels({"q": {"d 1": 1}}, tmp_path / "qrels.txt")
    with pytest.raises(InvalidArgumentError, match="the relevance of document 'd' for query 'q'"):
        write_trec_qrels({"q": {"d": 0.5}}, tmp_path / "qrels.txt")
    with pytest.raises(InvalidArgumentError, match="relevance of document 'd' for query 'q' is"):
        write_trec_qrels({"q": {"d": 2**32}}, tmp_path / "qrels.txt")
    with pytest.raises(TypeError, match="not int"):
        write_trec_qrels({"q": {"d": 1}}, 5)
    with pytest.raises(StorageError, match=r"could not write .*absent"):
        write_trec_qrels({"q": {"d": 1}}, tmp_path / "absent" / "qrels.txt")


def test_predictions_that_mteb_saves_are_one_run(tmp_path):
    (tmp_path / "a.json").write_text(
        '{"mteb_model_meta": {"model_name": "m"}, "default": {"test": {"q1": {"d1": 2.0}}}}'
    )
    assert read_run(tmp_path / "a.json") == {"q1": {"d1": 2.0}}
    (tmp_path / "b.json").write_text('{"en": {"test": {"q1": {"d1": 2.0}}}, "de": {"test": {"q1": {"d1": 2.0}}}}')
    with pytest.raises(InvalidArgumentError, match="2 runs of mteb, of the subsets and splits en test, de test"):
        read_run(tmp_path / "b.json")


@pytest.mark.parametrize(
    "text",
    [
        'qid,docid,docno,rank,score,query\nq1,17,d1,0,2.5,"a, b"\nq1,3,d2,1,2.0,"a, b"\n',
        "qid\tdocno\trank\nq1\td1\t1\nq1\td2\t2\n",
        "query_id,doc_id,score\nq1,d2,1\nq1,d1,3\n",
    ],
)
def test_runs_with_a_header(tmp_path, text):
    (tmp_path / "run.csv").write_text(text)
    found = read_run(tmp_path / "run.csv")
    assert sorted(found["q1"], key=found["q1"].get, reverse=True) == ["d1", "d2"]


def test_runs_and_candidates_as_parquet(tmp_path):
    table = {"qid": ["q1", "q1"], "docno": ["d1", "d2"], "score": [1.5, 2.5]}
    parquet.write_table(pyarrow.table(table), tmp_path / "run.parquet")
    assert read_run(tmp_path / "run.parquet") == {"q1": {"d1": 1.5, "d2": 2.5}}


@pytest.mark.parametrize("name", ["answer_pids", "gold_ids"])
def test_lists_of_relevant_documents_are_judgements(tmp_path, name):
    (tmp_path / "qas.jsonl").write_text(f'{{"qid": 0, "query": "what ripens", "{name}": [31, 32]}}')
    assert read_qrels(tmp_path / "qas.jsonl") == {"0": {"31": 1, "32": 1}}


def test_documents_that_do_not_count_for_a_query(folder, tmp_path):
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "x", "excluded_ids": ["d2"], "negative_ids": [7]}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    collection = load_beir(folder)
    assert collection.excluded == read_excluded(folder) == {"q1": ["d2", "7"]}
    run = {"q1": {"d2": 2.0, "d1": 1.0}}
    assert evaluate(run, collection.qrels, ["RR"])["RR"] == 0.5
    assert evaluate(run, collection.qrels, ["RR"], excluded=collection.excluded)["RR"] == 1.0
    (tmp_path / "excluded").write_text("q1 d2\nq1 d3\n")
    assert read_excluded(tmp_path / "excluded") == {"q1": ["d2", "d3"]}
    (tmp_path / "excluded").write_text("q1 d2\nq1\n")
    with pytest.raises(InvalidArgumentError, match="excluded:2: 1 cell; the first line has 2"):
        read_excluded(tmp_path / "excluded")
    with pytest.raises(InvalidArgumentError, match="query 'q1'; expected a list"):
        evaluate(run, collection.qrels, ["RR"], excluded={"q1": "d2"})


class Document(NamedTuple):
    doc_id: str
    title: str
    text: str

    def default_text(self):
        return f"{self.title} {self.text}"


class Body(NamedTuple):
    doc_id: str
    title: str
    body: str

    def default_text(self):
        return f"{self.title} {self.body}"


class Documents(BaseDocs):
    def __init__(self, documents):
        self.documents = documents

    def docs_iter(self):
        return iter(self.documents)


class Queries(BaseQueries):
    def queries_iter(self):
        return iter(GenericQuery(row["_id"], row["text"]) for row in QUERIES)


class Judgements(BaseQrels):
    def qrels_iter(self):
        return iter(TrecQrel(query, document, score, "0") for query, document, score in JUDGED)


def test_data_sets_of_ir_datasets_by_name_and_as_objects(folder, monkeypatch):
    expected = load_beir(folder)
    documents = [Document(row["_id"], row.get("title", ""), row["text"]) for row in CORPUS]
    dataset = ir_datasets.Dataset(Documents(documents), Queries(), Judgements())
    registry = Registry()
    registry.register("small/test", dataset)
    registry.register("small", ir_datasets.Dataset(Documents(documents)))
    monkeypatch.setattr(ir_datasets, "registry", registry)
    for source in (dataset, "irds:small/test", Path("irds:small/test")):
        assert load_beir(source) == expected
        assert read_qrels(source) == expected.qrels
    with pytest.raises(InvalidArgumentError, match=r"ir_datasets has no data set 'big'"):
        load_beir("irds:big")
    with pytest.raises(InvalidArgumentError, match=r"'small' of ir_datasets has no queries and no qrels"):
        load_beir("irds:small")
    bodies = [Body(document.doc_id, document.title, document.text) for document in documents]
    found = load_beir(ir_datasets.Dataset(Documents(bodies), Queries(), Judgements()))
    assert found.texts() == expected.texts()
    empty = ir_datasets.Dataset(Documents([*documents, Document("d4", "", "")]), Queries(), Judgements())
    with pytest.raises(InvalidArgumentError, match=r"docs:4: text and title are empty"):
        load_beir(empty)
    with pytest.warns(UserWarning, match="docs:4"):
        assert load_beir(empty, on_problem="skip") == expected
