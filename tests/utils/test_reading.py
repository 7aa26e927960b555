"""Faults of files are found where they are: the line of a wrong byte, and the column of malformed JSON."""

import io
import re

import pytest

from latelier.errors import InvalidArgumentError
from latelier.utils.files import parse_json, text_lines


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("number", [0, 51, 2000])  # files are decoded in blocks of some thousands of bytes
def test_a_byte_that_is_not_utf8_is_named_with_its_line(end, mark, number):
    lines = [f"líne {i}".encode() for i in range(3000)]
    lines[number] += b" caf\xe9"
    message = f"a.txt is not UTF-8 text (byte 0xe9 after line {number}); convert it to UTF-8."
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        list(text_lines(io.BytesIO(mark + end.join(lines)), "a.txt"))


def test_a_text_that_ends_within_a_character():
    with pytest.raises(InvalidArgumentError, match=r"\(byte 0xc3 after line 1\)"):
        list(text_lines(io.BytesIO(b"one\ncaf\xc3"), "a.txt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id":"a","text":"x"\n', "Expecting ',' delimiter: column 21."),
        ('{"id":"a","text":"x"\r\n', "Expecting ',' delimiter: column 21."),
        ('{"id":"a",}\n', "Expecting property name enclosed in double quotes: column 11."),
        ('{"id":\n"a"\n"text": 1}', "Expecting ',' delimiter: line 3, column 1."),
        ("", "Expecting value: column 1."),
    ],
)
def test_malformed_json_of_a_record_has_a_column_and_no_line(text, message):
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(f'malformed JSON: {message}')}$"):
        parse_json(text)
