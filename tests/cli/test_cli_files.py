"""Reading documents from files of every format, and the line that a message names."""

import gzip
import io
import sys

import pytest
import typer

from latelier.cli.files import Format, number_or_text, read_file
from latelier.errors import InvalidArgumentError, StorageError


def read(path, format=Format.AUTO):
    return [tuple(document) for document in read_file(str(path), format)]


@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("a.jsonl", '{"id": 1, "text": "x", "n": 2}\n\n{"text": "y"}\n', [(1, "x", {"n": 2}), (None, "y", {})]),
        ("a.ndjson", '"only a text"\n["id", "text"]\n', [(None, "only a text", {}), ("id", "text", {})]),
        ("a.txt", " one \n\n{two}\r\n", [(None, "one", {}), (None, "{two}", {})]),
        ("a.csv", 'id,text,n,z\n1,"a, b\nc",2.5,\n', [("1", "a, b\nc", {"n": 2.5})]),
        ("a.tsv", "title\ttext\tyear\nT\tx\t007\n", [(None, "T x", {"year": "007"})]),
        ("no_suffix", '\n{"text": "x"}\n', [(None, "x", {})]),
        ("a.log", "\none\ntwo", [(None, "one", {}), (None, "two", {})]),
        ("empty.txt", "", []),
        ("empty", "\n", []),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_formats(tmp_path, name, content, documents, compressed):
    path = tmp_path / (name + ".gz" * compressed)
    data = ("\ufeff" + content).encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert read(path) == documents


def test_format_given_wins_over_the_name(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text('{"text": "x"}')
    assert read(path, Format.JSONL) == [(None, "x", {})]
    assert read(path) == [(None, '{"text": "x"}', {})]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"text": "x"}\n{"text": ""}\n'))
    reading = read_file("-", Format.AUTO)
    assert next(reading).text == "x"
    with pytest.raises(InvalidArgumentError, match="standard input:2: the text is empty"):
        next(reading)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n\n{"text": \n', r"a.jsonl:3: malformed JSON"),
        ("a.jsonl", '{"text": "x"}\n{"id": "b"}\n', r"a.jsonl:2: it has no 'text'"),
        ("a.csv", "id,body\n1,x\n", r"a.csv:1: expected a header with a column 'text'; received 'id, body'"),
        ("a.csv", "", r"a.csv:1: expected a header"),
        ("a.csv", "id,text\n1,x\n2,\n", r"a.csv:3: the text of '2' is empty"),
        ("a.csv", "id,text\n1,x,y\n", r"a.csv:2: more cells than the header has columns"),
    ],
)
def test_faulty_lines_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidArgumentError, match=message):
        read(tmp_path / name)


def test_unreadable_files(tmp_path):
    with pytest.raises(typer.BadParameter, match="there is no file"):
        read(tmp_path / "absent.txt")
    (tmp_path / "a.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(InvalidArgumentError, match="is not UTF-8 text"):
        read(tmp_path / "a.txt")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text" * 1000)[:20])
    with pytest.raises(StorageError, match=r"cannot read .*a.txt.gz"):
        read(tmp_path / "a.txt.gz")


def test_numbers_are_told_from_what_resembles_them():
    assert [number_or_text(t) for t in ("1", "-2.5", "1e3")] == [1, -2.5, 1000.0]
    texts = ["007", "true", "null", "NaN", "-Infinity", '"1"', "[1]", "", "1_000", "x"]
    assert [number_or_text(t) for t in texts] == texts
