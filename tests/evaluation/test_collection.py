"""Reading BEIR folders: what comes out of sound files, and every fault named with file and line."""

import gzip
import json

import pytest

from latelier.errors import InvalidArgumentError
from latelier.evaluation import Collection, load_beir

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
    """A sound collection; tests overwrite one of its files."""
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "queries.jsonl", QUERIES)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(QRELS)
    return tmp_path


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def test_sound_folder(folder):
    collection = load_beir(folder)
    assert collection.documents["d1"] == {"title": "Paris", "text": "Capital of France."}
    assert collection.texts() == {"d1": "Paris Capital of France.", "d2": "Berlin is in Germany.", "d3": "Rome."}
    assert collection.queries == {"q1": "capital of france", "q2": "germany"}  # q3 has no qrel in this split
    assert collection.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}
    assert repr(collection) == "Collection(3 documents, 2 queries, 3 qrels)"
    assert repr(Collection({}, {}, {})) == "Collection(0 documents, 0 queries, 0 qrels)"


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


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_missing_file_lists_what_is_there(folder, name):
    (folder / name).unlink()
    present = {"corpus.jsonl", "queries.jsonl", "qrels"} - {name}
    with pytest.raises(
        InvalidArgumentError, match=rf"has no {name} or {name}.gz \(it holds: {', '.join(sorted(present))}"
    ):
        load_beir(folder)


def test_missing_folder(tmp_path):
    with pytest.raises(InvalidArgumentError, match="it is not a folder"):
        load_beir(tmp_path / "absent")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"_id": "d9", "text"', r"corpus.jsonl:4: malformed JSON"),
        ('["d9"]', r"corpus.jsonl:4: expected a JSON object, received list"),
        ('{"id": "d9", "text": "x"}', r"corpus.jsonl:4: no '_id' field; its fields are 'id', 'text'"),
        ('{"_id": "d9", "title": "x"}', r"corpus.jsonl:4: no 'text' field; its fields are '_id', 'title'"),
        ('{"_id": true, "text": "x"}', r"corpus.jsonl:4: _id is True; expected a string"),
        ('{"_id": "d9", "text": ["x"]}', r"corpus.jsonl:4: text is list; expected a string"),
        ('{"_id": "d9", "title": " ", "text": null}', r"corpus.jsonl:4: text and title are empty \(_id 'd9'\)"),
        ('{"_id": "d2", "text": "x"}', r"corpus.jsonl:4: duplicate _id 'd2', first on line 2"),
    ],
)
def test_faulty_documents(folder, line, message):
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InvalidArgumentError, match=message):
        load_beir(folder)
    with pytest.warns(UserWarning, match=message):
        assert list(load_beir(folder, on_problem="warn").documents) == ["d1", "d2", "d3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q9\td1\t1", r"qrels/test.tsv:5: unknown query id 'q9'"),
        ("q1\td9\t1", r"qrels/test.tsv:5: unknown document id 'd9'"),
        ("q1\td1\t1", r"qrels/test.tsv:5: duplicate qrel of document 'd1' for query 'q1'"),
        ("q1\td3\t4294967296", r"qrels/test.tsv:5: relevance 4294967296 is not from -1,000,000 to 1,000,000"),
        ("q1\td3\t0.5", r"qrels/test.tsv:5: relevance '0.5' is not an integer"),
        ("q1 0 d3 1", r"qrels/test.tsv:5: 1 columns; expected query id, document id and relevance, separated by tabs"),
    ],
)
def test_faulty_qrels(folder, line, message):
    (folder / "qrels" / "test.tsv").write_text(QRELS + line + "\n")
    with pytest.raises(InvalidArgumentError, match=message):
        load_beir(folder)
    with pytest.warns(UserWarning, match=message):
        assert load_beir(folder, on_problem="warn").qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}


@pytest.mark.parametrize(("query", "relevance"), [("q1", "yes"), ("unknown", "0.7"), ("unknown", "")])
def test_faulty_first_qrel_is_not_taken_for_a_header(folder, query, relevance):
    (folder / "qrels" / "test.tsv").write_text(f"{query}\td1\t{relevance}\nq2\td2\t1\n")
    with pytest.raises(InvalidArgumentError, match=rf"qrels/test.tsv:1: relevance '{relevance}' is not an integer"):
        load_beir(folder)


def test_all_problems_are_counted_and_ten_are_listed(folder):
    write(folder / "queries.jsonl", [*QUERIES, *({"_id": f"x{i}", "text": ""} for i in range(1_200))])
    with pytest.raises(
        InvalidArgumentError, match=r"has 1,200 problems:(?s:.*):13: text is empty.*\n  and 1,190 more\n"
    ):
        load_beir(folder)


def test_unreadable_files(folder):
    (folder / "corpus.jsonl").write_bytes('{"_id": "d1", "text": "café"}'.encode("latin-1"))
    with pytest.raises(InvalidArgumentError, match=r"corpus.jsonl is not UTF-8 text"):
        load_beir(folder)
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(b'{"_id": "d1", "text": "x"}' * 100)[:30])
    with pytest.raises(InvalidArgumentError, match=r"cannot read .*corpus.jsonl.gz"):
        load_beir(folder)


def test_unknown_way_to_treat_problems(folder):
    with pytest.raises(InvalidArgumentError, match="on_problem='ignore'; expected 'error' or 'warn'"):
        load_beir(folder, on_problem="ignore")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (({1: {}}, {"q": "text"}, {"q": {"1": 1}}), r"received 1 \(int\) as a document id of the documents; .* as str"),
        (({"1": {}}, {2: "text"}, {"2": {"1": 1}}), r"received 2 \(int\) as a query id of the queries"),
        (({"1": {}}, {"q": "text"}, {"q": {1: 1}}), r"received 1 \(int\) as a document id of the qrels"),
        (({"1": {}}, {"q": "text"}, {"q": {"1": 2**32}}), "relevance of document '1' for query 'q' is not from"),
        (([], {"q": "text"}, {"q": {"1": 1}}), r"received \[\] \(list\) as documents; expected a dict"),
    ],
)
def test_what_cannot_be_evaluated_is_known_before_anything_is_encoded(parts, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Collection(*parts)
