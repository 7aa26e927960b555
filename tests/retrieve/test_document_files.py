"""Reading documents from files of every format, and the line that a message names."""

import csv
import gzip
import io
import os
import random
import threading
from pathlib import Path

import pytest

from input_fuzzer import make_case, run_case
from latelier.errors import InvalidArgumentError, StorageError
from latelier.retrieve import read_documents
from latelier.retrieve.readers import read_document_file
from latelier.utils.files import number_or_text


def read(path, format="auto"):
    documents = read_document_file(str(path), format)
    return [(document.id, document.with_title(), document.metadata) for document in documents]


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
    assert read(path, "jsonl") == [(None, "x", {})]
    assert read(path) == [(None, '{"text": "x"}', {})]


def test_an_opened_file():
    reading = read_document_file(io.BytesIO(b'{"text": "x"}\n{"text": ""}\n'), name="standard input")
    assert next(reading).text == "x"
    with pytest.raises(InvalidArgumentError, match="standard input:2: the text is empty"):
        next(reading)
    with pytest.raises(InvalidArgumentError, match="the file is not UTF-8 text"):
        list(read_document_file(io.BytesIO(b"caf\xe9\n")))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n\n{"text": \n', r"a.jsonl:3: malformed JSON"),
        ("a.jsonl", '{"text": "x"}\n{"id": "b"}\n', r"a.jsonl:2: it has no 'text'"),
        ("a.csv", "id,body\n1,x\n", r"a.csv:1: it has no field 'text'; the fields are: id, body"),
        ("a.csv", "", r"a.csv:1: it has no field 'text'; the fields are: none"),
        ("a.csv", "id,text\n1,x\n2,\n", r"a.csv:3: the text of '2' is empty"),
        ("a.csv", "id,text\n1,x,y\n", r"a.csv:2: more cells than the header has columns"),
        (
            "a.csv",
            'id,text\n1,"unclosed\n2,foo\n',
            r"a.csv:2: malformed CSV: a quote in the row that begins here is not",
        ),
        ("a.csv", 'id,text\n1,x\n\n2,"unclosed\n', r"a.csv:4: malformed CSV: a quote in the row .*unexpected end of"),
        ("a.csv", 'id,text\n1,"unclosed', r"a.csv:2: malformed CSV: a quote in the row that begins here is not closed"),
        (
            "a.csv",
            'id,text\n1,"unclosed\n2,"foo"\n3,x\n',
            r"a.csv:2: malformed CSV: a quote in the row that begins here",
        ),
        ("a.csv", 'id,"text\n1,x\n', r"a.csv:1: malformed CSV: a quote in the row that begins here is not closed"),
        ("a.csv", ",id,text\n0,1,x\n", r"a.csv:2: column 1 has no name in the header, so its value '0' cannot be"),
    ],
)
def test_faulty_lines_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidArgumentError, match=message):
        read(tmp_path / name)


def test_quotes_and_columns_without_a_name_that_do_no_harm(tmp_path):
    (tmp_path / "a.csv").write_text('id,text,\n1,"a" b,\n\n2,5" disk,\n3,"c\n\n""d""",\n4,"e"')
    texts = [("1", "a b", {}), ("2", '5" disk', {}), ("3", 'c\n\n"d"', {}), ("4", "e", {})]
    assert read(tmp_path / "a.csv") == texts
    (tmp_path / "b.csv").write_text(",text,year\n0,x,1975\n")
    [document] = read_documents(tmp_path / "b.csv", metadata="year")
    assert document.metadata == {"year": 1975}


def test_gzip_under_another_name_is_called_so(tmp_path):
    data = gzip.compress(b'{"text": "x"}\n')
    with pytest.raises(InvalidArgumentError, match=r"standard input is compressed with gzip, .* not on standard input"):
        list(read_document_file(io.BytesIO(data), name="standard input"))
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(InvalidArgumentError, match=r"a.jsonl is compressed with gzip, .* whose name ends in .gz"):
        read(tmp_path / "a.jsonl")


LONG = "x" * 200_000


@pytest.mark.parametrize(
    ("name", "content", "length"),
    [("a.csv", f"text\n{LONG}\n", 1), ("a.tsv", f'text\n"{LONG}\n{LONG}"\n', 1), ("a.jsonl", f'"{LONG}"', 1)],
)
def test_long_texts_are_read_whole(tmp_path, name, content, length):
    before = csv.field_size_limit()
    (tmp_path / name).write_text(content)
    [(_, text, _)] = read(tmp_path / name)
    assert text.count("x") == content.count("x") - content.startswith("text")
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n' + b"[" * 100_000, r"a.jsonl:2: malformed JSON: it is nested too deeply"),
        ("a.jsonl", b'{"text": "x", "n": ' + b"9" * 5000 + b"}", r"a.jsonl:1: malformed JSON: it holds an integer"),
        ("a.jsonl", b'{"text": "x", "n": NaN}', r"a.jsonl:1: the metadata of document 1 holds nan"),
        ("a.jsonl", b'{"text": "a \\ud800"}', r"a.jsonl:1: the text is not valid Unicode: '\\ud800' at position 2"),
        ("a.jsonl", b'{"id": "\\ud800", "text": "a"}', r"a.jsonl:1: received '\\ud800' \(str\) as an id"),
        ("a.jsonl", b'{"text": "a", "\\ud800": 1}', r"a.jsonl:1: the metadata of document 1 has the key"),
        (
            "a.jsonl",
            b'{"id": "' + b"i" * 70_000 + b'", "text": ""}',
            r"a.jsonl:1: the text of 'i+\.\.\.i+' is empty",
        ),
        ("a.jsonl", b'{"' + b"k" * 70_000 + b'": 1}', r"a.jsonl:1: it has no 'text'; its keys are 'k+\.\.\."),
        ("a.json", b'[\n{"text": "x"}\n]', r"a.json:1: a JSON array; expected one record per line"),
        ("a.json", b'[{"text": "x"}]', r"a.json:1: a JSON array; expected one record per line"),
        ("a.csv", b"text,n,n\nx,1,2\n", r"a.csv:1: the header has the column 'n' 2 times"),
        ("a.csv", b"," * 70_000, r"a.csv:1: the header has the column '' 70,001 times"),
        ("a.txt", b"one\ntwo\ncaf\xe9\n", r"a.txt is not UTF-8 text \(byte 0xe9 after line "),
        ("a.txt", b"x" * (2**24 + 1), r"a.txt:1: longer than 16,777,216 characters"),
        (
            "a.csv",
            b'text\n"' + b"x\n" * (2**23 + 1),
            r"a.csv:\d+: malformed CSV: field larger than field limit \(16777216\)",
        ),
    ],
)
def test_bad_input_is_rejected_by_name_and_in_few_words(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message) as raised:
        read(tmp_path / name)
    assert len(str(raised.value)) < 800


def test_every_flipped_bit_of_a_gzip_is_rejected_or_read(tmp_path):
    whole = gzip.compress("".join(f"line {i} {i * i}\n" for i in range(500)).encode(), mtime=0)
    path = tmp_path / "a.txt.gz"
    outcomes = set()
    for seed in range(400):
        damaged = bytearray(whole)
        at = random.Random(seed)
        damaged[at.randrange(len(damaged))] ^= 1 << at.randrange(8)
        path.write_bytes(damaged)
        try:
            outcomes.add(len(read(path)))
        except (StorageError, InvalidArgumentError):
            outcomes.add("refused")
    assert outcomes == {500, "refused"}  # the header holds a name and a time, which are not checked


@pytest.mark.skipif(os.name == "nt", reason="pipes with a name")
def test_whatever_can_be_opened_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    writer = threading.Thread(target=(tmp_path / "pipe.jsonl").write_text, args=('{"text": "through a pipe"}\n',))
    writer.start()
    assert read(tmp_path / "pipe.jsonl") == [(None, "through a pipe", {})]
    writer.join()
    assert read("/dev/null") == []
    with pytest.raises(InvalidArgumentError, match="/dev/zero:1: longer than"):
        read("/dev/zero")


def test_names_of_nothing(tmp_path):
    for name, message in (
        ("a\0b", "there is no file"),
        (tmp_path, "is a folder"),
        (Path("x" * 5000), "cannot read|no file"),
    ):
        with pytest.raises((InvalidArgumentError, StorageError), match=message):
            read(name)


def test_fuzzed_files_are_accepted_or_rejected(tmp_path):
    generator = random.Random(0)
    outcomes = [run_case(make_case(generator), tmp_path) for _ in range(400)]
    assert [outcome for outcome in outcomes if outcome.verdict == "wrong"] == []
    assert {outcome.verdict for outcome in outcomes} == {"accepted", "refused"}


def test_unreadable_files(tmp_path):
    with pytest.raises(InvalidArgumentError, match="there is no file"):
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
