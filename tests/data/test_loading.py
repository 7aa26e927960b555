"""`load_training_set` reads every form that people have, and names the row where something is wrong."""

import gzip
import json

import numpy as np
import pytest
import torch
from datasets import Dataset

from latelier.data import TrainingSet, load_training_set
from latelier.errors import InvalidArgumentError

QUERIES = {1: "where is Rome?", 2: "what is rust?"}
DOCUMENTS = {"a": "On the Tiber.", "b": "In Georgia.", "c": "Iron oxide.", "7": "A novel."}
PYLATE = [
    {"query_id": 1, "document_ids": ["a", "b"], "scores": [0.9, 0.1]},
    {"query_id": 2, "document_ids": ["c", 7], "scores": [0.8, 0.2]},
]
AS_STRINGS = [{k: str(v) if k != "query_id" else v for k, v in row.items()} for row in PYLATE]
SCORED = TrainingSet(
    list(QUERIES.values()), [["On the Tiber.", "In Georgia."], ["Iron oxide.", "A novel."]], [[0.9, 0.1], [0.8, 0.2]]
)
FLAG = [
    {
        "query": "where is Rome?",
        "pos": ["On the Tiber."],
        "neg": ["In Georgia."],
        "pos_scores": [0.9],
        "neg_scores": [0.1],
    },
    {"query": "what is rust?", "pos": ["Iron oxide."], "neg": ["A novel."], "pos_scores": [0.8], "neg_scores": [0.2]},
]


def content(examples):
    scores = None if examples.scores is None else [list(row) for row in examples.scores]
    return list(examples.queries), [list(row) for row in examples.documents], scores


def write(path, rows):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


@pytest.mark.parametrize(
    "rows", [PYLATE, AS_STRINGS, Dataset.from_list(AS_STRINGS)], ids=["lists", "strings", "dataset"]
)
@pytest.mark.parametrize("texts", ["dicts", "rows", "dataset"])
def test_ids_with_texts(rows, texts):
    sides = {"queries": QUERIES, "documents": DOCUMENTS}
    if texts != "dicts":
        sides["queries"] = [{"query_id": id_, "text": text} for id_, text in QUERIES.items()]
        sides["documents"] = [{"document_id": id_, "document": text} for id_, text in DOCUMENTS.items()]
    if texts == "dataset":
        sides = {name: Dataset.from_list(value) for name, value in sides.items()}
    assert content(load_training_set(rows, **sides)) == content(SCORED)


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"query": "where is Rome?", "positive": "On the Tiber.", "negative": "In Georgia.", "scores": [0.9, 0.1]},
            {"query": "what is rust?", "positive": "Iron oxide.", "negative_1": "A novel.", "scores": "[0.8, 0.2]"},
        ],
        [
            {"query": "where is Rome?", "pos": ["On the Tiber.", "In Georgia."], "scores": [0.9, 0.1]},
            {
                "query": "what is rust?",
                "pos": ["Iron oxide."],
                "neg": ["A novel."],
                "scores": [0.8, 0.2],
                "labels": [1, 0],
            },
        ],
        [
            {"query": "where is Rome?", "pos": ["On the Tiber.", "In Georgia."], "pos_scores": [0.9, 0.1]},
            FLAG[1] | {"scores": None},
        ],
        [
            {
                "query": "where is Rome?",
                "document_2": "In Georgia.",
                "document_1": "On the Tiber.",
                "scores": [0.9, 0.1],
            },
            {"question": "what is rust?", "document_9": "Iron oxide.", "document_10": "A novel.", "scores": [0.8, 0.2]},
        ],
    ],
    ids=["triplets", "lists", "positives alone", "numbered"],
)
def test_scores_are_kept(rows):
    assert content(load_training_set(rows)) == content(SCORED)


def test_data_sets_for_the_trainer_load_again():
    assert content(load_training_set(SCORED.to_dataset())) == content(SCORED)
    pairs = TrainingSet(["q"], [["x", "n", "m"]])
    assert content(load_training_set(pairs.to_dataset())) == content(pairs)
    wide = TrainingSet(["q"], [[f"text {i}" for i in range(12)]], [list(range(12))])
    assert content(load_training_set(wide.to_dataset())) == content(wide)


def test_flagembedding_without_scores_has_a_row_for_each_positive():
    rows = [{"query": "q", "pos": ["x", "y"], "neg": ["n"], "pos_scores": None, "neg_scores": None}]
    assert content(load_training_set(rows)) == (["q", "q"], [["x", "n"], ["y", "n"]], None)


@pytest.mark.parametrize(
    "row",
    [
        {"anchor": "q", "positive": "x", "negatives": ["n", "m"]},
        {"question": "q", "answer": "x", "neg": ["n"], "negative": "m", "id": 3},
        {"query": "q", "pos": "x", "neg": ["n", "m"], "scores": None, "hard_negative": None, "neg_scores": None, 3: 4},
    ],
)
def test_pairs_with_several_negatives(row):
    assert content(load_training_set([row])) == (["q"], [["x", "n", "m"]], None)


def test_beir_folders(tmp_path):
    write(
        tmp_path / "corpus.jsonl", [{"_id": "d1", "title": "Rome", "text": "On the Tiber."}, {"_id": "d2", "text": "x"}]
    )
    write(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "where is Rome?"}])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n")
    assert content(load_training_set(tmp_path)) == (["where is Rome?"], [["Rome On the Tiber."]], None)
    with pytest.raises(InvalidArgumentError, match="no relevance judgements for split='dev'"):
        load_training_set(tmp_path, split="dev")


def test_unequal_rows_are_cut_where_asked():
    rows = [{"query": "q", "pos": ["x"], "neg": ["n", "m"]}, {"query": "r", "pos": ["y"], "neg": ["o"]}]
    message = r"row 1 has 2 documents, the rows before it have 3 each; .*candidates=n"
    with pytest.raises(InvalidArgumentError, match=message):
        load_training_set(rows)
    assert content(load_training_set(rows, candidates=2)) == (["q", "r"], [["x", "n"], ["y", "o"]], None)
    with pytest.raises(InvalidArgumentError, match="row 1 has 2 documents; candidates=3 needs as many"):
        load_training_set(rows, candidates=3)


GOOD = {"query": "q", "positive": "x"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "q"}, r"row 1 has the fields 'query'; expected \{query, positive"),
        ({"query": "", "positive": "x"}, "row 1: query is ''; expected a text that is not empty"),
        ({"query": "q", "pos": []}, "row 1 has no positive"),
        (
            {"query": "q", "pos": ["x"], "neg": ["n"], "neg_scores": [1.0]},
            "row 1 has neg_scores; give scores, or pos_scores and neg_scores",
        ),
        ({"query_id": 1, "document_ids": ["a"], "scores": [1]}, "row 1 holds ids; pass queries=... and documents=..."),
    ],
)
def test_faulty_rows_are_named(row, message):
    with pytest.raises(InvalidArgumentError, match=message):
        load_training_set([GOOD, row])


@pytest.mark.parametrize("score", ["sport", float("nan"), float("inf"), None])
def test_scores_that_are_no_numbers_are_named(score):
    rows = [{"query": "q", "positive": "x", "labels": [1]}, {"query": "r", "positive": "y", "labels": [score]}]
    with pytest.raises(InvalidArgumentError, match=f"row 1 has the score {score!r}; expected finite numbers"):
        load_training_set(rows)


LISTED = {"query": "q", "documents": ["x"]}


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (LISTED | {"negative": "n"}, "'documents' and 'negative'"),
        (GOOD | {"anchor": "r"}, "'query' and 'anchor'"),
        (GOOD | {"scores": [1.0], "score": [0.5]}, "'scores' and 'score'"),
    ],
)
def test_fields_of_which_one_would_be_ignored_are_refused(row, names):
    message = rf"row 0 has the fields {names}, of which only one can be read; expected \{{query, .*Remove one"
    with pytest.raises(InvalidArgumentError, match=message):
        load_training_set([row], queries=QUERIES, documents=DOCUMENTS)


@pytest.mark.parametrize(("name", "suggestion"), [("hard_negative", "negative"), ("negative_scores", "neg_scores")])
@pytest.mark.parametrize("row", [GOOD, {"query": "q", "documents": ["x"]}, {"query": "q", "document_1": "x"}])
def test_misspelled_fields_are_named(row, name, suggestion):
    message = f"row 0 has the field '{name}', which is no field of .*; did you mean '{suggestion}'"
    with pytest.raises(InvalidArgumentError, match=message):
        load_training_set([{**row, name: "y"}])


def test_numbers_and_their_digits_are_the_same_id_but_not_with_zeros_before():
    row = {"query_id": "7", "document_ids": [8, "9"], "scores": [1, 2]}
    found = load_training_set([row], queries={7: "q"}, documents={"8": "eight", 9: "nine"})
    assert content(found) == (["q"], [["eight", "nine"]], [[1.0, 2.0]])
    with pytest.raises(InvalidArgumentError, match="row 0: there is no text for the document '009'"):
        load_training_set([{**row, "document_ids": [8, "009"]}], queries={7: "q"}, documents={8: "eight", 9: "nine"})
    with pytest.raises(InvalidArgumentError, match="row 0: there is no text for the query '07'"):
        load_training_set([{**row, "query_id": "07"}], queries={7: "q"}, documents={8: "eight", 9: "nine"})


def test_ids_with_two_texts_are_named():
    row = {"query_id": 7, "document_ids": ["a"], "scores": [1]}
    documents = [{"document_id": "a", "text": "x"}, {"document_id": "a", "text": "x"}]
    queries = [{"query_id": 7, "text": "q"}, {"query_id": 7, "text": "q"}]
    assert content(load_training_set([row], queries=queries, documents=documents)) == (["q"], [["x"]], [[1.0]])
    message = (
        r"documents\[2\] has the id 'a' with the text 't x'; a row before it has this id with the text 'x'\. "
        "Give each document an id of its own"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        load_training_set([row], queries=queries, documents=[*documents, {"_id": "a", "title": "t", "text": "x"}])
    with pytest.raises(InvalidArgumentError, match=r"queries\[2\] has the id 7 with the text 'r'"):
        load_training_set([row], queries=[*queries, {"id": 7, "text": "r"}], documents=documents)


def test_faulty_lines_of_a_file_are_named(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"query": "q", "positive": "x"}\n\n{"query": "q"\n')
    with pytest.raises(InvalidArgumentError, match=r"pairs\.jsonl:3: malformed JSON"):
        load_training_set(path)
    path.write_text('{"query": "q", "positive": "x"}\n{"query": "r", "positive": " "}\n')
    with pytest.raises(InvalidArgumentError, match=r"pairs\.jsonl:2: document 0 is ' '"):
        load_training_set(path)
    path.write_bytes(b'{"query": "\xff"}')
    with pytest.raises(InvalidArgumentError, match="is not UTF-8 text"):
        load_training_set(path)
    for nothing in ("", "\n \n"):
        path.write_text(nothing)
        with pytest.raises(InvalidArgumentError, match=r"pairs\.jsonl is empty"):
            load_training_set(path)
    with pytest.raises(InvalidArgumentError, match=r"there is no file 'nowhere\.jsonl'"):
        load_training_set("nowhere.jsonl")


def test_rows_are_selected_by_position():
    for rows in ([1, -2], np.array([1, 0]), torch.tensor([1, 0]), range(1, -1, -1)):
        assert content(SCORED.select(rows)) == tuple(list(reversed(part)) for part in content(SCORED))
    assert len(SCORED.select([])) == 0


ROW = (["where is Rome?", "what is rust?"], [["On the Tiber.", "In Georgia."], ["Iron oxide.", "A novel."]], None)
ROWS = [[query, *documents] for query, documents in zip(*ROW[:2], strict=True)]
NUMBERED = {"10": "On the Tiber.", "11": "In Georgia.", "12": "Iron oxide.", "7": "A novel."}
IDS = [["1", "10", "11"], ["2", "12", "7"]]


def passages(*texts):
    return [{"docid": str(i), "title": text.split()[0], "text": text.split(" ", 1)[1]} for i, text in enumerate(texts)]


def tabs(rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


TEVATRON = [
    {"query_id": str(i), "query": query, "positive_passages": passages(good), "negative_passages": passages(bad)}
    for i, (query, good, bad) in enumerate(ROWS)
]


@pytest.mark.parametrize(
    ("contents", "by_id"),
    [
        (tabs(ROWS), False),  # triples.tsv
        ("anchor\tpositive\tnegative\n" + tabs(ROWS), False),
        (lines(ROWS), False),
        (lines([query, good, [bad]] for query, good, bad in ROWS), False),
        (lines(TEVATRON), False),
        (tabs(IDS), True),  # qidpidtriples
        (lines([[1, 10, 11], [2, "12", 7]]), True),  # ColBERT's triples.jsonl
        (lines({"query": query, "positive": good, "negative": bad} for query, good, bad in IDS), True),
    ],
    ids=["triples.tsv", "header", "lists", "lists in lists", "tevatron", "qidpidtriples", "triples.jsonl", "id fields"],
)
@pytest.mark.parametrize("end", [".txt", ".gz"])
def test_files_of_the_field(tmp_path, contents, by_id, end):
    file = tmp_path / f"triples{end}"
    opener = gzip.open if end == ".gz" else open
    with opener(file, "wt", encoding="utf-8") as opened:
        opened.write(contents)
    sides = {}
    if by_id:
        with pytest.raises(InvalidArgumentError, match=r"triples\..*:1 holds ids; pass queries=.* and documents="):
            load_training_set(file)
        (tmp_path / "queries.tsv").write_text(tabs([str(id_), text] for id_, text in QUERIES.items()))
        (tmp_path / "collection.tsv").write_text(tabs(NUMBERED.items()))
        sides = {"queries": tmp_path / "queries.tsv", "documents": tmp_path / "collection.tsv"}
    assert content(load_training_set(file, **sides)) == ROW


def test_a_quote_is_a_letter_in_tables_with_tabs_and_not_in_csv(tmp_path):
    (tmp_path / "rows.tsv").write_text('say "no\t"No" means no.\n"yes\tIt does.\n')
    assert content(load_training_set(tmp_path / "rows.tsv"))[:2] == (
        ['say "no', '"yes'],
        [['"No" means no.'], ["It does."]],
    )
    (tmp_path / "rows.csv").write_text('query,positive\n"a, b","He said ""no""."\n')
    assert content(load_training_set(tmp_path / "rows.csv"))[:2] == (["a, b"], [['He said "no".']])
    (tmp_path / "rows.tsv").write_text("query\tpositive\nq\tx\ty\n")
    with pytest.raises(InvalidArgumentError, match=r"rows\.tsv:2: 3 cells; the first line has 2 columns"):
        load_training_set(tmp_path / "rows.tsv")


@pytest.mark.parametrize(
    "rows",
    [
        TEVATRON,
        [{"anchor": query, "positive": good, "negative": bad} for query, good, bad in ROWS],
        [{"query": query, "pos": [good], "neg": [bad]} for query, good, bad in ROWS],
    ],
    ids=["tevatron", "sentence-transformers", "FlagEmbedding"],
)
def test_parquet_also_as_the_shards_of_a_hub_folder(tmp_path, rows):
    Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    assert content(load_training_set(tmp_path / "rows.parquet")) == ROW
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for shard, row in enumerate(rows):
        Dataset.from_list([row]).to_parquet(tmp_path / "hub" / "data" / f"train-{shard:05}-of-00002.parquet")
    assert content(load_training_set(tmp_path / "hub")) == ROW


def test_ids_and_texts_as_parquet(tmp_path):
    Dataset.from_list(PYLATE[:1] * 2).to_parquet(tmp_path / "rows.parquet")
    Dataset.from_list([{"query_id": 1, "text": QUERIES[1]}]).to_parquet(tmp_path / "queries.parquet")
    documents = [{"docno": id_, "contents": text} for id_, text in DOCUMENTS.items()]
    Dataset.from_list(documents).to_parquet(tmp_path / "documents.parquet")
    sides = {name: tmp_path / f"{name}.parquet" for name in ("queries", "documents")}
    assert content(load_training_set(tmp_path / "rows.parquet", **sides)) == content(SCORED.select([0, 0]))


def test_lists_of_ids_and_scores_are_those_of_colbert():
    row = [1, ["a", 0.9], ["b", 0.1]]
    found = load_training_set([row], queries=QUERIES, documents=DOCUMENTS)
    assert content(found) == content(SCORED.select([0]))


def test_texts_in_place_of_ids_are_named():
    with pytest.raises(InvalidArgumentError, match=r"no text for the query 'q'; with queries=.*, rows hold ids"):
        load_training_set([GOOD], queries=QUERIES, documents=DOCUMENTS)
    with pytest.raises(InvalidArgumentError, match=r"row 0 holds ids; pass queries=.* and documents="):
        load_training_set([GOOD], queries=QUERIES)


@pytest.mark.parametrize("scored", [False, True])
def test_rows_beyond_memory_are_read_from_a_file(tmp_path, scored):
    rows = [{"query": f"q{i % 7}", "documents": [f"d{i}", f"e{i}"]} for i in range(2500)]
    if scored:
        rows = [row | {"scores": [i, -0.5]} for i, row in enumerate(rows)]
    file = write(tmp_path / "rows.jsonl", rows)
    small = load_training_set(file, max_memory=100_000)
    whole = load_training_set(file, max_memory=None)
    assert type(small) is not type(whole)
    assert content(small) == content(whole)
    assert list(small.rows) == list(whole.rows)
    assert repr(small) == repr(whole)
    chosen = [2499, -2, 5, 5]
    assert content(small.select(chosen)) == content(whole.select(chosen))
    assert small.select(chosen).documents[1] == whole.documents[-2]
    assert small.select(chosen).to_dataset().to_list() == whole.select(chosen).to_dataset().to_list()
    rows[2400]["documents"] = ["d", " "]
    with pytest.raises(InvalidArgumentError, match=r"rows\.jsonl:2401: document 1 is ' '"):
        load_training_set(write(file, rows), max_memory=100_000)
    rows[2400]["documents"] = ["d", "e", "f"]
    rows[2400].pop("scores", None)
    with pytest.raises(InvalidArgumentError, match=r"rows\.jsonl:2401 has (3 documents, the rows|no scores)"):
        load_training_set(write(file, rows), max_memory=100_000)
