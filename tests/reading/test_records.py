"""Reading documents from files of every format and from folders, and the line or file that a message names."""

import datetime
import decimal
import gzip
import json
import os
import random
import sys
import threading
import uuid
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from input_fuzzer import run_case
from latelier.errors import InvalidArgumentError, StorageError
from latelier.reading.records import parse_documents
from latelier.retrieve import read_documents
from latelier.retrieve.preparation import whole_text


def read(path, format="auto"):
    return [(document.id, whole_text(document), document.metadata) for document in read_documents(path, format=format)]


def read_folder(folder, **options):
    documents = read_documents(folder, **options)
    found = {document.id: document for document in documents}
    return found, {each.path: each.message for each in documents.skipped}


@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("a.jsonl", '{"id": 1, "text": "x", "n": 2}\n\n{"text": "y"}\n', [(1, "x", {"n": 2}), (None, "y", {})]),
        ("a.ndjson", '"only a text"\n["id", "text"]\n', [(None, "only a text", {}), ("id", "text", {})]),
        ("a.txt", " one \n\n{two}\r\n", [(None, "one", {}), (None, "{two}", {})]),
        ("a.csv", 'id,text,n,z\n1,"a, b\nc",2.5,\n', [("1", "a, b\nc", {"n": 2.5})]),
        ("a.tsv", "title\ttext\tyear\nT\tx\t007\n", [(None, "T x", {"year": "007"})]),
        ("no_suffix", '\n{"text": "x"}\n', [(None, "x", {})]),
        ("a.json", ' [ {"id": "a", "text": "x"},\n {"id": "b", "text": "y"} ]', [("a", "x", {}), ("b", "y", {})]),
        ("b.json", '{\n "id": "a",\n "text": "x"\n}', [("a", "x", {})]),
        ("a.csv", "id;text;v\n1;x;1.10\n2;y;1.5\n", [("1", "x", {"v": "1.10"}), ("2", "y", {"v": "1.5"})]),
        ("n.csv", "id, text, n\n1, x, \\N\n\\N, y, 3\n", [("1", "x", {}), (None, "y", {"n": 3})]),
        ("c.json", '["x", "y"]', [(None, "x", {}), (None, "y", {})]),
        ("d.json", '{\n "text": "x"\n}\n{\n "text": "y"\n}\n', [(None, "x", {}), (None, "y", {})]),
        ("e.json", '{"took": 1, "hits": {"hits": [{"_id": "1", "_source": {"text": "x"}}]}}', [("1", "x", {})]),
        ("f.json", '{"a": {"text": "x"}, "b": {"text": null}}', [("a", "x", {})]),
        ("scifact.jsonl", '{"doc_id": 7, "title": "T", "text": ["One.", "Two."]}', [(7, "T One.\nTwo.", {})]),
        ("solr.json", '{"add": {"doc": {"id": "1", "text": ["x"], "n": 2}}}', [("1", "x", {"n": 2})]),
        ("qdrant.jsonl", '{"id": 1, "payload": {"text": "x"}, "vector": [1]}\n', [(1, "x", {})]),
        ("b.csv", 'sep=;\nid;text\n1;"x, ""y"""\n', [("1", 'x, "y"', {})]),
        ("c.csv", 'id,text\n1,"He said \\"x\\" twice"\n', [("1", 'He said "x" twice', {})]),
        ("anserini.jsonl", '{"id": "a", "contents": "x"}\n', [("a", "x", {})]),
        ("es.jsonl", '{"_index": "s", "_id": "1", "_source": {"text": "x", "n": 1}}', [("1", "x", {"n": 1})]),
        (
            "bulk.jsonl",
            '{"index": {"_id": "1"}}\n{"text": "x"}\n{"delete": {"_id": "0"}}\n{"create": {}}\n{"text": "y"}\n',
            [("1", "x", {}), (None, "y", {})],
        ),
        ("empty.txt", "", []),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_formats(tmp_path, name, content, documents, compressed):
    path = tmp_path / (name + ".gz" * compressed)
    data = ("\ufeff" + content).encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert read(path) == documents


@pytest.mark.parametrize(
    ("record", "names", "document"),
    [
        (
            {"put": "id:n:doc::1", "fields": {"title": "T", "text": "x"}},
            {"id": "put", "text": "fields.text", "title": "fields.title", "metadata": []},
            ("id:n:doc::1", "T x", {}),
        ),
        (
            {"id": None, "metadata": {"n": 1}, "page_content": "x", "type": "Document"},
            {"text": "page_content"},
            (None, "x", {"n": 1, "type": "Document"}),
        ),
        (
            {"_id": {"$oid": "1a"}, "body": "x", "n": 1},
            {"id": "_id.$oid", "text": "body", "metadata": "n"},
            ("1a", "x", {"n": 1}),
        ),
    ],
)
def test_dumps_of_other_programs_by_the_names_of_their_fields(tmp_path, record, names, document):
    (tmp_path / "dump.jsonl").write_text(json.dumps(record))
    [read_one] = read_documents(tmp_path / "dump.jsonl", **names)
    assert (read_one.id, whole_text(read_one), read_one.metadata) == document
    with pytest.raises(InvalidArgumentError, match="no 'text'"):
        read(tmp_path / "dump.jsonl")


def test_a_csv_is_read_as_the_whole_file_is_written(tmp_path):
    """The first byte that is not UTF-8, the first escaped quote and the first text among numbers may come late."""
    rows = [f'{i},"5\\"",{i}\n{i}b,"other",3\n' for i in range(2_000)]
    (tmp_path / "a.csv").write_bytes(("id,text,n\n" + "".join(rows) + '4,"an \\"é\\" here",x\n').encode("cp1252"))
    documents = read(tmp_path / "a.csv")
    assert (documents[0], len(documents)) == (("0", '5"', {"n": "0"}), 4_001)
    assert documents[-1] == ("4", 'an "é" here', {"n": "x"})
    (tmp_path / "b.csv").write_bytes(("id,text,n\n" + "é,x,1\n" * 20_000 + "é,x,\n").encode("utf-16"))
    assert read(tmp_path / "b.csv")[-2:] == [("é", "x", {"n": 1}), ("é", "x", {})]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n\n{"text": \n', r"a.jsonl:3: malformed JSON"),
        ("a.jsonl", '{"text": "x"}\n{"id": "b"}\n', r"a.jsonl:2: it has no 'text'"),
        ("a.jsonl", '{"text": "x"}\n' + "[" * 100_000, r"a.jsonl:2: malformed JSON: .* nested too deeply"),
        ("a.jsonl", '{"text": "a \\ud800"}', r"a.jsonl:1: the text is not valid Unicode"),
        ("a.csv", "id,body\n1,x\n", r"a.csv:1: it has no field 'text'; the fields are: id, body"),
        ("a.csv", "id,text\n1,x,y\n", r"a.csv:2: 3 cells; the first line has 2 columns"),
        ("a.csv", 'id,text\n1,"unclosed\n2,foo\n', r"a.csv:2: malformed CSV"),
        ("a.csv", ",id,text\n0,1,x\n", r"a.csv:2: column 1 has no name"),
        ("a.csv", "text,n,n\nx,1,2\n", r"a.csv:1: the header has the column 'n' 2 times"),
        ("a.txt", b"one\ntwo\ncaf\xe9\n", r"a.txt is not UTF-8 text \(byte 0xe9 after line "),
        ("a.txt", "x" * (2**24 + 1), r"a.txt:1: longer than 16,777,216"),
    ],
)
def test_faulty_lines_are_named_in_few_words(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidArgumentError, match=message) as raised:
        read(tmp_path / name)
    assert len(str(raised.value)) < 800


def test_quotes_and_columns_without_a_name_that_do_no_harm(tmp_path):
    (tmp_path / "a.csv").write_text('id,text,\n1,"a" b,\n\n2,5" disk,\n3,"c\n\n""d""",\n4,"e"')
    texts = [("1", "a b", {}), ("2", '5" disk', {}), ("3", 'c\n\n"d"', {}), ("4", "e", {})]
    assert read(tmp_path / "a.csv") == texts
    (tmp_path / "b.csv").write_text(",text,year\n0,x,1975\n")
    [document] = read_documents(tmp_path / "b.csv", metadata="year")
    assert document.metadata == {"year": 1975}


@pytest.mark.parametrize(("name", "content"), [("a.csv", 'text\n"{0}\n{0}"\n'), ("a.jsonl", '"{0}{0}"')])
def test_long_texts_are_read_whole(tmp_path, name, content):
    (tmp_path / name).write_text(content.format("y" * 200_000))
    [(_, text, _)] = read(tmp_path / name)
    assert text.count("y") == 400_000


@pytest.mark.skipif(os.name == "nt", reason="pipes with a name")
def test_whatever_can_be_opened_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    writer = threading.Thread(target=(tmp_path / "pipe.jsonl").write_text, args=('{"text": "through a pipe"}\n',))
    writer.start()
    assert read(tmp_path / "pipe.jsonl") == [(None, "through a pipe", {})]
    writer.join()
    assert read("/dev/null") == []
    (tmp_path / "a.jsonl").write_text('{"text": "Größe"}\n', encoding="utf-16")  # as PowerShell writes it
    assert read(tmp_path / "a.jsonl") == [(None, "Größe", {})]


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"text": "x"}\n'))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text" * 1000)[:20])
    for path, message in (
        (tmp_path / "absent.txt", "there is no file"),
        (tmp_path / "a.jsonl", r"a.jsonl is compressed with gzip, .* ends in .gz"),
        (tmp_path / "a.txt.gz", r"cannot read .*a.txt.gz"),
    ):
        with pytest.raises((InvalidArgumentError, StorageError), match=message):
            read(path)


def test_fuzzed_files_are_accepted_or_rejected(tmp_path):
    generator = random.Random(0)
    assert {run_case(generator, tmp_path) for _ in range(200)} == {"accepted", "refused"}


ROWS = [
    {"doi": "10/a", "head": "Pears", "abstract": "On pears.", "body": "They ripen.", "year": 1975, "pages": 7},
    {"doi": "10/b", "head": "Figs", "abstract": "On figs.", "body": "They dry.", "year": 2024, "pages": 12},
]


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
    documents = read_documents(path, id="doi", text=["abstract", "body"], title="head", metadata="year")
    assert [document[:4] for document in documents] == [
        ("10/a", "On pears.\nThey ripen.", {"year": 1975}, "Pears"),
        ("10/b", "On figs.\nThey dry.", {"year": 2024}, "Figs"),
    ]
    [first, _] = read_documents(path, text="body")  # everything else is metadata, and there is no id
    assert first[:4] == (None, "They ripen.", {key: ROWS[0][key] for key in ROWS[0] if key != "body"}, "")
    [first, _] = read_documents(path, text="body", metadata=[])
    assert first[:4] == (None, "They ripen.", {}, "")
    for names, missing in (
        ({"text": "content"}, "'content'; the fields are: doi, head, abstract"),
        ({"text": "body", "id": "number"}, "'number'"),
        ({"text": "body", "metadata": ["year", "yeer"]}, "'yeer'"),
        ({"id": "doi"}, "'text'"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"no field {missing}"):
            next(iter(read_documents(path, **names)))


@pytest.mark.parametrize(
    "name", ["id", "_id", "docid", "docno", "doc_id", "pid", "document_id", "corpus-id", "DocNo", "ID"]
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_ids_have_the_names_of_the_field(tmp_path, name, suffix):
    path = tmp_path / f"a.{suffix}"
    record = {name: "007", "title": "Fruit", "contents" if suffix == "jsonl" else "text": "Pears."}
    path.write_text(json.dumps(record) if suffix == "jsonl" else ",".join(record) + "\n" + ",".join(record.values()))
    documents = read_documents(path)
    assert [(each.id, whole_text(each), each.metadata) for each in documents] == [("007", "Fruit Pears.", {})]
    text = "contents" if suffix == "jsonl" else "text"
    assert str(documents.taken) == f"1 record; id from '{name}', text from 'title' and '{text}'"


def test_a_chunk_has_an_id_of_its_own_and_two_ids_of_a_document_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"id": "c1", "doc_id": "d7", "text": "x"}\n{"text": "y"}\n{"docid": 1, "pid": 2, "text": "z"}'
    )
    documents = read_documents(tmp_path / "a.jsonl", on_problem="skip")
    with pytest.warns(UserWarning, match="a.jsonl:3: it has both 'docid' 1 and 'pid' 2"):
        assert [(each.id, each.metadata) for each in documents] == [("c1", {"doc_id": "d7"}), (None, {})]
    assert str(documents.taken) == "2 records; id of 1 from 'id', no id of 1, so numbered, text from 'text'"


QUOTED = 'id\ttext\ttitle\n1\t"Aaron ""A"" is"\tAaron\n2\t"two\nlines"\tB\n'
TREC = """<DOC>
<DOCNO> A-1 </DOCNO>
<DATE>1 May</DATE>
<HEADLINE>Salt &amp; pepper</HEADLINE>
<TEXT>
<P>A meal.</P>
</TEXT>
</DOC>
<doc><docno>A-2</docno>
The moon.
</doc><DOC><DOCNO>A-3</DOCNO> Bread. </DOC>
"""


@pytest.mark.parametrize(
    ("name", "content", "fields", "documents"),
    [
        ("collection.tsv", "0\tPears ripen.\n1\tMoon\n", {}, [("0", "Pears ripen.", {}), ("1", "Moon", {})]),
        ("c.tsv", "d-1\tPears ripen.\tFruit\n", {}, [("d-1", "Fruit Pears ripen.", {})]),
        ("docs.tsv", "D1\thttp://a.b\tFruit\tPears.\n", {}, [("D1", "Fruit Pears.", {"url": "http://a.b"})]),
        ("c.tsv", "x\ty\t7\n", {"id": "1", "text": "2"}, [("x", "y", {"3": 7})]),
        ("c.csv", "x,y,7\n", {"text": "2", "metadata": "3"}, [(None, "y", {"3": 7})]),
        (
            "c.tsv",
            'id\ttext\n0\t"Start\n1\tend"\n2\t"all"\n',
            {},
            [("0", '"Start', {}), ("1", 'end"', {}), ("2", '"all"', {})],
        ),
        ("c.tsv", QUOTED, {}, [("1", 'Aaron Aaron "A" is', {}), ("2", "B two\nlines", {})]),
        (
            "news.trec",
            TREC,
            {},
            [("A-1", "Salt & pepper A meal.", {"date": "1 May"}), ("A-2", "The moon.", {}), ("A-3", "Bread.", {})],
        ),
        (
            "FBIS-1",
            TREC,
            {"metadata": []},
            [("A-1", "Salt & pepper A meal.", {}), ("A-2", "The moon.", {}), ("A-3", "Bread.", {})],
        ),
        (
            "a.jsonl",
            '{"docid": "a", "contents": "x", "n": NaN, "m": [Infinity]}',
            {},
            [("a", "x", {"n": None, "m": [None]})],
        ),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_files_of_test_collections(tmp_path, name, content, fields, documents, compressed):
    path = tmp_path / (f"{name}.gz" if compressed else name)
    path.write_bytes(gzip.compress(content.encode()) if compressed else content.encode())
    read = read_documents(path, **fields)
    assert [(each.id, whole_text(each), each.metadata) for each in read] == documents


def test_a_table_in_a_file_of_texts_is_told_and_read_as_one_on_demand(tmp_path):
    (tmp_path / "a.txt").write_text("id\ttext\n1\tPears\n")
    with pytest.warns(UserWarning, match="a.txt' are rows with tabs"):
        assert len(list(read_documents(tmp_path / "a.txt"))) == 2
    with pytest.warns(UserWarning, match="a.txt' are rows with tabs"):
        assert len(list(read_documents(tmp_path))) == 1
    assert [each.id for each in read_documents(tmp_path / "a.txt", format="tsv")] == ["1"]


def test_an_element_of_trec_without_an_end_or_an_id_is_named(tmp_path):
    (tmp_path / "a.trec").write_text("<DOC>\nx\n</DOC>\n<DOC>\n<DOCNO>1</DOCNO>")
    read = read_documents(tmp_path / "a.trec", on_problem="skip")
    with pytest.warns(UserWarning, match="left out 2 records"):
        assert list(read) == []
    assert [each.message for each in read.skipped] == [
        "the <DOC> that begins here has no <DOCNO>.",
        "what begins here has no </DOC>.",
    ]


def test_records_that_do_not_fit_the_named_fields(tmp_path):
    """Nothing is left out or replaced in silence."""
    path = tmp_path / "a.jsonl"
    for content, names, message in (
        ('"two"', {"text": "body"}, "no field 'body'"),
        ('{"body": "one"}\n"two"', {"text": "body"}, "a.jsonl:2: it is not a record"),
        ('{"body": "one"}\n{"other": "x"}', {"text": ["body", "other"]}, "a.jsonl:1: it has no field 'other'"),
        ('{"no": "7", "text": "x", "metadata": "a text"}', {"id": "no"}, "a.jsonl:1: it has metadata of type str"),
        ('{"no": "7", "text": "x", "year": 2, "metadata": {"year": 1}}', {"id": "no"}, "'year' both at the top"),
    ):
        path.write_text(content)
        with pytest.raises(InvalidArgumentError, match=message):
            list(read_documents(path, **names))
    path.write_text(json.dumps({"no": "7", "text": "x", "id": 3, "metadata": {"year": 1}}))
    assert tuple(*read_documents(path, id="no"))[:3] == ("7", "x", {"year": 1, "id": 3})


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
    assert next(documents).metadata == {
        "at": "1970-01-01T00:00:00",
        "on": "2024-05-01",
        "tags": ["a", "b"],
        "author": {"name": "Ada", "born": None},
        "score": None,
    }
    assert next(documents).metadata == {"at": "1970-01-01T00:00:01", "tags": [], "score": 0.5}
    with pytest.warns(UserWarning, match=r"left out 1 record; the first is .*a.parquet:row 3: the text of 3 is empty"):
        assert next(documents, None) is None
    documents = iter(read_documents(tmp_path / "a.parquet", metadata="raw"))
    assert next(documents).metadata == {"raw": "text"}
    with pytest.raises(InvalidArgumentError, match=r"a.parquet:row 2: .* not UTF-8"):
        next(documents)


def test_damaged_parquet_is_named(tmp_path):
    data = write(tmp_path / "a.parquet", ROWS * 100).read_bytes()
    for damaged in (b"", b"PAR1", data[:-20], b"text\n" * 100):
        (tmp_path / "a.parquet").write_bytes(damaged)
        with pytest.raises(InvalidArgumentError, match=r"a.parquet is not a Parquet file"):
            read_documents(tmp_path / "a.parquet")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="this system limits no memory")
def test_parquet_that_unpacks_to_more_than_the_memory_is_an_error(tmp_path):
    values = pyarrow.DictionaryArray.from_arrays([0] * 400, ["x" * 2**24])  # 6.7 GB in 17 kB
    pyarrow.parquet.write_table(pyarrow.table({"text": values}), tmp_path / "a.parquet")
    with pytest.raises(InvalidArgumentError, match=r"a\.parquet: .* more memory"):
        list(read_documents(tmp_path / "a.parquet"))


def test_a_folder_of_notes(tmp_path):
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfPears\r\nripen.\r\n")
    (tmp_path / "work" / "a.MD").write_text("intro\n\n# On figs #\nThey dry.")
    (tmp_path / "work" / "deep" / "c.markdown").write_text("no heading")
    (tmp_path / ".git" / "d.txt").write_text("hidden")
    (tmp_path / ".hidden.txt").write_text("hidden")
    os.utime(tmp_path / "b.txt", (0, 0))
    found, skipped = read_folder(tmp_path)
    assert (list(found), skipped) == (["b.txt", "work/a.MD", "work/deep/c.markdown"], {})
    assert found["b.txt"].text == "Pears\r\nripen.\r\n"  # as in the file, so that offsets are those of the file
    assert found["b.txt"].metadata == {"path": "b.txt", "modified": "1970-01-01T00:00:00Z"}
    assert (found["work/a.MD"].title, found["work/a.MD"].metadata["title"]) == ("On figs", "On figs")
    assert found["work/deep/c.markdown"].title == "c"  # its name
    documents = read_documents(tmp_path)
    assert (len(documents), len(list(documents)), len(list(documents))) == (3, 3, 3)
    (tmp_path / "b.txt").unlink()
    with pytest.warns(UserWarning, match="skipped 1 file .*\n  b.txt: there is no file"):
        assert len(list(documents)) == 2


def test_patterns_of_files(tmp_path):
    (tmp_path / "docs" / "deep" / "er").mkdir(parents=True)
    for name in ("a.md", "a.rst", "docs/a.md", "docs/x.md", "docs/deep/er/x.md"):
        (tmp_path / name).write_text("text")
    for glob, expected in (
        ("*.rst", ["a.rst"]),
        (["docs/*.md", "*.rst"], ["a.rst", "docs/a.md", "docs/deep/er/x.md", "docs/x.md"]),
        ("**/*.md", ["a.md", "docs/a.md", "docs/deep/er/x.md", "docs/x.md"]),
        ("docs/**/x.md", ["docs/deep/er/x.md", "docs/x.md"]),
    ):
        assert [*read_folder(tmp_path, glob=glob)[0]] == expected


def test_folders_and_patterns_without_files(tmp_path):
    (tmp_path / "a.xyz").write_bytes("Größe".encode("latin-1"))
    with pytest.warns(UserWarning, match=r"looked for '\*\.rst', 'b/\*\*/\*\.org'") as caught:
        assert read_folder(tmp_path, glob=["*.rst", "b/**/*.org"]) == ({}, {})
    assert [each.filename for each in caught] == [__file__]
    with pytest.warns(UserWarning, match="looked for texts, and files of known formats"):
        found, skipped = read_folder(tmp_path)
    assert (found, skipped["a.xyz"]) == ({}, "no text in UTF-8; --encoding names that of a text")
    assert [*read_folder(tmp_path, glob="*.xyz")[0]] == ["a.xyz"]


def test_files_of_a_folder_that_cannot_be_read_are_skipped_and_named(tmp_path):
    (tmp_path / "good.txt").write_text("a good one")
    (tmp_path / "good.gz").write_bytes(gzip.compress(b"another"))
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "long.txt").write_text("x" * (2**24 + 1))
    (tmp_path / "zip.txt.gz").write_bytes(gzip.compress(b"text" * 1000)[:20])
    with pytest.warns(UserWarning, match=r"skipped 3 files of .*\n  empty.txt: it is empty") as caught:
        found, skipped = read_folder(tmp_path, glob=["*.txt", "*.gz"])
    assert [each.filename for each in caught] == [__file__]
    assert [*found] == ["good.gz", "good.txt", "latin.txt"]
    assert found["latin.txt"].text == "café"
    reasons = {"empty.txt": "empty", "long.txt": "longer than", "zip.txt.gz": "damaged gzip"}
    assert skipped.keys() == reasons.keys()
    assert [name for name, reason in reasons.items() if reason not in skipped[name]] == []


@pytest.mark.skipif(os.name == "nt", reason="links, pipes and names of bytes")
def test_links_pipes_and_odd_names(tmp_path):
    folder, outside = tmp_path / "notes", tmp_path / "secret.txt"
    (folder / "sub").mkdir(parents=True)
    outside.write_text("not in the folder")
    (folder / "sub" / "real.txt").write_text("here")
    (folder / "inside.txt").symlink_to(folder / "sub" / "real.txt")
    (folder / "outside.txt").symlink_to(outside)
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    (folder / "sub" / "up").symlink_to(folder)
    (folder / ".env").write_text("secret")
    (folder / "shown.txt").symlink_to(".env")
    os.mkfifo(folder / "pipe.txt")
    with open(os.fsencode(folder) + b"/caf\xe9.txt", "w") as file:  # noqa: PTH123 (a name that is not Unicode)
        file.write("text")
    (folder / "two\nlines.txt").write_text(" ")
    with pytest.warns(UserWarning, match="lines.txt': it is empty"):
        found, skipped = read_folder(folder)
    assert [*found] == ["inside.txt", "sub/real.txt"]
    assert "is empty" in skipped.pop("two\nlines.txt")
    assert "leads nowhere" in skipped.pop("loop.txt")
    assert "not valid Unicode" in skipped.pop("caf\udce9.txt")
    assert skipped == {
        "outside.txt": "a link to a file outside of the folder",
        "shown.txt": "a link to a hidden file",
        "sub/up": "a link to a folder",
        "pipe.txt": "not a regular file",
    }
    assert [*read_folder(folder / "sub" / "up" / "sub", glob="*.txt")[0]] == ["real.txt"]  # named, so followed


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("#hashtag\n####### seven\n    # code\n#\n", "a"),
        ("```\n# comment\n```\n~~~~\n# in\n~~~\n# in\n~~~~\n### Three", "Three"),
        ("---\n# a yaml comment\ntags: x\n---\n\n# One", "One"),
        ("One\n  =====  \n# Two", "One"),
        ("- item\n---\n> quote\n---\n| cell |\n---\n\n---\n***\n---\n# Two", "Two"),
    ],
)
def test_the_title_of_a_markdown_file_is_its_first_heading(tmp_path, text, title):
    (tmp_path / "a.md").write_bytes(text.encode())
    [document] = read_documents(tmp_path / "a.md")
    assert (document.id, document.title) == ("a.md", title)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([1.5, np.nan]), [1.5, None]),
        (np.datetime64("2020-01-01"), "2020-01-01"),
        (np.datetime64("2020-01-01T10:00:00.123456789"), "2020-01-01T10:00:00.123456"),
        (np.array(["2020-01-01", "NaT"], "datetime64[ns]"), ["2020-01-01T00:00:00", None]),
        (np.timedelta64(1500, "ms"), 1.5),
        (datetime.date(2020, 1, 1), "2020-01-01"),
        (datetime.datetime(2020, 1, 1, 10, tzinfo=datetime.timezone.utc), "2020-01-01T10:00:00+00:00"),
        (datetime.time(10, 30), "10:30:00"),
        (datetime.timedelta(minutes=2), 120.0),
        (decimal.Decimal("1.50"), 1.5),
        (decimal.Decimal("12345678901234567890"), 12345678901234567890),
        (decimal.Decimal("NaN"), None),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("a/b"), "a/b"),
        (float("nan"), None),
        (float("inf"), None),
        (("a", np.int8(1)), ["a", 1]),
        ({"at": datetime.date(2020, 1, 1)}, {"at": "2020-01-01"}),
        (b"text", "text"),
        (pd.NaT, None),
        (pd.Timestamp("2020-01-01"), "2020-01-01T00:00:00"),
        (pd.NA, None),
    ],
    ids=repr,
)
def test_values_of_metadata_are_stored_as_what_they_mean(value, stored):
    [document] = parse_documents([{"id": "a", "text": "Pears", "v": value}])
    assert document.metadata == {"v": stored}
    assert type(document.metadata["v"]) is type(stored)
    frame = pd.DataFrame({"id": ["a"], "text": ["Pears"], "v": pd.Series([value], dtype=object)})
    [document] = parse_documents(frame)
    assert document.metadata.get("v") == stored


@pytest.mark.parametrize("value", [{"a"}, object(), 1j, b"caf\xe9"])
def test_values_of_metadata_without_a_meaning_are_refused(value):
    with pytest.raises(InvalidArgumentError, match="the metadata of document 'a' cannot be stored as JSON: it holds"):
        list(parse_documents([{"id": "a", "text": "Pears", "v": value}]))


def test_files_that_cannot_be_read_are_named_before_those_of_other_kinds(tmp_path):
    for number in range(20):
        (tmp_path / f"a.{number}x").write_bytes(b"\0\1")
        (tmp_path / f"b.{number}x").write_bytes(b"\0\1")
    (tmp_path / "good.txt").write_text("a good one")
    (tmp_path / "long.txt").write_text("x" * (2**24 + 1))
    documents = read_documents(tmp_path)
    with pytest.warns(UserWarning, match=r"skipped 41 files of .*\n  long.txt: .*longer than") as caught:
        assert len(list(documents)) == 1
    assert "11 more kinds or reasons; latelier info INDEX --skipped, or the attribute skipped, lists all" in str(
        caught[0].message
    )
    assert len(documents.skipped) == 41
