"""Which fields of records become ids, texts, titles and metadata, by name, in JSONL, CSV and Parquet alike."""

import datetime
import json

import pyarrow
import pyarrow.parquet
import pytest

from latelier.errors import InvalidArgumentError
from latelier.retrieve import read_documents

ROWS = [
    {"doi": "10/a", "head": "Pears", "abstract": "On pears.", "body": "They ripen.", "year": 1975, "pages": 7},
    {"doi": "10/b", "head": "Figs", "abstract": "On figs.", "body": "They dry.", "year": 2024, "pages": 12},
]
NAMES = {"id": "doi", "text": ["abstract", "body"], "title": "head", "metadata": "year"}


def write(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("\n".join(",".join(map(str, each)) for each in [rows[0], *(row.values() for row in rows)]))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_named_fields(tmp_path, suffix):
    path = write(tmp_path / f"papers{suffix}", ROWS)
    assert [tuple(document) for document in read_documents(path, **NAMES)] == [
        ("10/a", "On pears.\nThey ripen.", {"year": 1975}, "Pears"),
        ("10/b", "On figs.\nThey dry.", {"year": 2024}, "Figs"),
    ]
    [first, _] = read_documents(path, text="body")  # everything else is metadata, and there is no id
    assert first == (None, "They ripen.", {key: ROWS[0][key] for key in ROWS[0] if key != "body"}, "")
    [first, _] = read_documents(path, text="body", metadata=[])
    assert first == (None, "They ripen.", {}, "")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"text": "content"}, "no field 'content'; the fields are: doi, head, abstract, body, year, pages"),
        ({"text": "body", "id": "number"}, "no field 'number'"),
        ({"text": "body", "metadata": ["year", "yeer"]}, "no field 'yeer'"),
        ({"id": "doi"}, "no field 'text'"),
    ],
)
def test_unknown_fields_are_rejected_before_anything_is_read(tmp_path, suffix, names, message):
    path = write(tmp_path / f"papers{suffix}", ROWS)
    with pytest.raises(InvalidArgumentError, match=message):
        next(iter(read_documents(path, **names)))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"id": 5}, r"received 5 \(int\) as id; expected the name of a field"),
        ({"text": [""]}, r"received \[''\] \(list\) as text"),
        ({"metadata": {"year": 1}}, "as metadata; expected"),
        ({"id": "body", "text": "body"}, "received the field 'body' for two of id, text and title"),
        ({"format": "xml"}, "received format='xml'; expected 'auto', 'jsonl'"),
        ({"glob": "*.md"}, "received glob for .*which is not a folder"),
    ],
)
def test_names_that_cannot_be(tmp_path, names, message):
    path = write(tmp_path / "papers.jsonl", ROWS)
    with pytest.raises(InvalidArgumentError, match=message):
        read_documents(path, **names)


def test_plain_text_has_no_fields(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    for name in ("a.txt", "."):
        with pytest.raises(InvalidArgumentError, match="received names of fields for"):
            read_documents(tmp_path / name, text="body")


def test_json_that_is_no_record_has_no_fields(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n"two"\n{"other": "three"}')
    documents = iter(read_documents(tmp_path / "a.jsonl", text="body"))
    assert next(documents).text == "one"
    with pytest.raises(InvalidArgumentError, match=r"a.jsonl:2: it is not a record, but fields are named"):
        next(documents)
    documents = iter(read_documents(tmp_path / "a.jsonl", text=("body", "other")))
    with pytest.raises(InvalidArgumentError, match=r"a.jsonl:1: it has no field 'other'; its fields are 'body'"):
        next(documents)


def test_metadata_beside_named_fields_are_kept_or_refused(tmp_path):
    """As of records without named fields: nothing is left out or replaced in silence."""
    for metadata, message in (
        ("a text", "it has metadata of type str; expected a dict"),
        ({"year": 1}, "it has the key 'year' both at the top"),
    ):
        (tmp_path / "a.jsonl").write_text(json.dumps({"no": "7", "text": "x", "year": 2, "metadata": metadata}))
        with pytest.raises(InvalidArgumentError, match=rf"a.jsonl:1: {message}"):
            list(read_documents(tmp_path / "a.jsonl", id="no"))
    (tmp_path / "a.jsonl").write_text(json.dumps({"no": "7", "text": "x", "id": 3, "metadata": {"year": 1}}))
    assert tuple(*read_documents(tmp_path / "a.jsonl", id="no"))[:3] == ("7", "x", {"year": 1, "id": 3})


def test_values_of_parquet_become_json(tmp_path):
    table = pyarrow.table(
        {
            "id": pyarrow.array([1, 2, 3]),
            "text": ["one", "two", None],
            "at": pyarrow.array([0, 1_000_000_001, None], pyarrow.timestamp("ns")),
            "on": [datetime.date(2024, 5, 1), None, None],
            "tags": [["a", "b"], [], None],
            "author": [{"name": "Ada", "born": None}, None, None],
            "score": [float("nan"), 0.5, None],
            "raw": [b"text", b"caf\xe9", None],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    documents = iter(read_documents(tmp_path / "a.parquet", metadata=["at", "on", "tags", "author", "score"]))
    assert tuple(next(documents))[:3] == (
        1,
        "one",
        {
            "at": "1970-01-01T00:00:00",
            "on": "2024-05-01",
            "tags": ["a", "b"],
            "author": {"name": "Ada", "born": None},
            "score": None,
        },
    )
    assert next(documents).metadata == {"at": "1970-01-01T00:00:01", "tags": [], "score": 0.5}
    with pytest.raises(InvalidArgumentError, match=r"a.parquet:row 3: the text of 3 is empty"):
        next(documents)
    documents = iter(read_documents(tmp_path / "a.parquet", metadata="raw"))
    assert next(documents).metadata == {"raw": "text"}
    with pytest.raises(InvalidArgumentError, match=r"a.parquet:row 2: it holds bytes that are not UTF-8"):
        next(documents)


def test_damaged_parquet_is_named(tmp_path):
    write(tmp_path / "a.parquet", ROWS * 100)
    data = (tmp_path / "a.parquet").read_bytes()
    for damaged in (b"", b"PAR1", data[:-20], b"text\n" * 100):
        (tmp_path / "a.parquet").write_bytes(damaged)
        with pytest.raises(InvalidArgumentError, match=r"a.parquet is not a Parquet file"):
            read_documents(tmp_path / "a.parquet")
