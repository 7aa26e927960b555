"""The one reader of rows: what each format gives, where each row stands, and which cannot be read."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.errors import InvalidArgumentError
from latelier.reading.rows import Fault, Header, Row, Source, checked_rows, names_of, read_rows, value_of

FORMATS = ("columns", "jsonl", "trec", "csv", "tsv", "txt")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('{"id": 1}\n\n{"id": 2}\n', [Row("f:1", {"id": 1}), Row("f:3", {"id": 2})]),
        ('{"id": 1}\n{"id"\n[3]\n', [Row("f:1", {"id": 1}), "malformed JSON", Row("f:3", [3])]),
        ('[{"id": 1},\n {"id": 2}]', [Row("f:1", {"id": 1}), Row("f:2", {"id": 2})]),
        ("id,text\n1,a\n\n2,b,c\n3\n", [Row("f:2", {"id": "1", "text": "a"}), "3 cells", Row("f:5", {"id": "3"})]),
        ('id\ttext\n1\t"a\n', [Row("f:2", {"id": "1", "text": '"a'})]),
        ("q1 Q0 d1 1 2.5 x\nq1 Q0\n", ["2 cells"]),
        ("{two} of them\n[x]\n", [Row("f:1", "{two} of them"), Row("f:2", "[x]")]),
        ("<DOC><DOCNO>1</DOCNO>a</DOC>\n<DOC>", [Row("f:1", {"id": "1", "title": "", "text": "a"}), "no </DOC>"]),
        ("", []),
    ],
    ids=["JSON lines", "faulty line", "array", "CSV", "tabs", "columns", "texts", "TREC", "empty"],
)
def test_the_first_line_tells_the_format_and_each_row_where_it_stands(text, rows):
    found = list(read_rows(Source(text.encode(), "f"), FORMATS))
    assert len(found) == len(rows)
    for row, expected in zip(found, rows, strict=True):
        if isinstance(expected, str):
            assert isinstance(row, Fault)
            assert expected in row.reason
        else:
            assert row == expected


def test_a_row_that_cannot_be_read_is_an_error_where_all_are_needed():
    with pytest.raises(InvalidArgumentError, match="f:2: malformed JSON"):
        list(checked_rows(read_rows(Source(b'{"id": 1}\n{"id"\n', "f"), ("jsonl",))))
    with pytest.raises(InvalidArgumentError, match="f is empty"):
        list(checked_rows(read_rows(Source(b" \n", "f"), ("jsonl",))))


def test_names_are_found_in_the_order_of_one_table():
    assert value_of({"docid": 7, "docno": "d7"}, "document_id") == "d7"
    assert value_of({"id": None, "docid": 7}, "id", "document_id") == 7
    assert value_of({"other": 7}, "id") is None
    assert {*names_of("id")} & {*names_of("document_id")} == set()


cells = st.text(st.characters(codec="utf-8", exclude_characters="\\\r\x00"), max_size=8)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(cells, cells), max_size=6), st.sampled_from([",", ";", "\t", "|"]))
def test_a_table_that_python_writes_is_read_as_it_was(rows, delimiter):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("first", "second"), *rows])
    found = read_rows(Source(file.getvalue().encode(), "f"), ("csv",))
    assert found.columns == ["first", "second"]
    expected = [{name: cell for name, cell in zip(found.columns, row, strict=True) if cell} for row in rows]
    assert [row.values for row in found] == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(cells, st.none() | st.integers() | cells, max_size=3), min_size=1, max_size=5))
def test_json_lines_that_python_writes_are_read_as_they_were(records):
    text = "".join(json.dumps(each) + "\n" for each in records)
    assert list(read_rows(Source(text.encode(), "f"), ("jsonl",))) == [
        Row(f"f:{number}", each) for number, each in enumerate(records, start=1)
    ]


def test_a_first_line_may_be_a_row_and_columns_may_be_repeated():
    rows = read_rows(Source(b"1,a\n2,b\n", "f"), ("csv",), lambda cells: Header(("id", "text"), is_row=True))
    assert (rows.columns, rows.has_header, [row.values["text"] for row in rows]) == (["id", "text"], False, ["a", "b"])
    assert [row.values["id"] for row in rows] == ["1", "2"]  # as often as it is iterated
    with pytest.raises(InvalidArgumentError, match="f:1: the header has the column 'a' 2 times"):
        read_rows(Source(b"a,a\n1,2\n", "f"), ("csv",))
