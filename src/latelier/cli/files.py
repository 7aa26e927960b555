"""Reading documents from a file or standard input, line by line, with the line named where one is faulty."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import typer

from latelier.errors import InvalidArgumentError, StorageError
from latelier.utils.describing import cut
from latelier.utils.reading import LONGEST_LINE, open_binary, parse_json, text_lines

__all__ = ["Format", "number_or_text", "read_file"]


class Format(str, Enum):
    """How documents are written in a file."""

    AUTO = "auto"
    JSONL = "jsonl"
    CSV = "csv"
    TXT = "txt"


_SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".txt": Format.TXT,
}

_LONGEST_MESSAGE = 500


def read_file(name: str, format: Format) -> Iterator[Any]:
    """Yield the documents of a file.

    Parameters
    ----------
    name
        Whatever can be opened and read: a file, a pipe, a device; ``"-"`` is standard input.
    format
        ``AUTO`` goes by the file's name, and where that says nothing by its first line: JSON or plain text.

    Raises
    ------
    typer.BadParameter
        If there is no such file.
    InvalidArgumentError
        When a faulty line is reached; the message names it.
    StorageError
        If the file cannot be read.
    """
    if name == "-":
        source = "standard input"
        return _documents(text_lines(_standard_input(), source), source, format)
    try:
        file = open_binary(name)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    if format is Format.AUTO:
        format = _SUFFIXES.get(Path(name.removesuffix(".gz")).suffix.lower(), Format.AUTO)
    return _documents(text_lines(file, name, compressed=name.endswith(".gz")), name, format)


def number_or_text(text: str) -> int | float | str:
    """Return the number that a text is, else the text; what merely resembles a number (``007``) stays text.

    Examples
    --------
    >>> [number_or_text(text) for text in ("2020", "-1.5", "007", "1e3x", "NaN", "1e999")]
    [2020, -1.5, '007', '1e3x', 'NaN', '1e999']
    """
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and not (isinstance(value, float) and math.isinf(value)) else text


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise StorageError("standard input is closed; name a file, or pipe the documents in.")
    # As bytes: the text layer above them decodes by the locale, and some locales let invalid bytes through.
    return sys.stdin.buffer


def _documents(lines: Iterator[str], source: str, format: Format) -> Iterator[Any]:
    from latelier.indexes.catalog.metadata import encode_metadata
    from latelier.retrieve.documents import read_document

    if format is Format.AUTO:
        format, lines = _settle(lines)
    reader = {Format.JSONL: _jsonl, Format.CSV: _csv, Format.TXT: _txt}[format]
    for number, item in reader(lines, source):
        with _at(source, number):
            document = read_document(item)
            # The index would refuse it too, but after the chunk is encoded, and without the line.
            if document.metadata:
                encode_metadata(document.metadata, number if document.id is None else document.id)
        yield document


@contextmanager
def _at(source: str, number: int) -> Iterator[None]:
    """Put the place before the message of an error."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}:{number}: {cut(str(error), _LONGEST_MESSAGE)}") from error


def _settle(lines: Iterator[str]) -> tuple[Format, Iterator[str]]:
    """Return the format that the first line which is not blank speaks for, and all of the lines."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    looks_like_json = bool(head) and head[-1].lstrip().startswith("{")
    return Format.JSONL if looks_like_json else Format.TXT, itertools.chain(head, lines)


def _jsonl(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with _at(source, number):
                value = parse_json(line)
            yield number, value


def _txt(lines: Iterable[str], source: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.strip()


def _csv(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    """Yield rows as dicts: empty cells left out, and numbers made of metadata that are numbers."""
    rows = csv.DictReader(lines, delimiter="\t" if ".tsv" in Path(source).suffixes else ",")
    names: list[str] = []
    for row in _rows(rows, source):
        names = names or _header(rows, source)
        if None in row:
            raise InvalidArgumentError(f"{source}:{rows.line_num}: more cells than the header has columns.")
        plain = {key: value for key, value in row.items() if value}
        texts = {key: plain.pop(key) for key in ("id", "_id", "title", "text") if key in plain}
        yield rows.line_num, {"text": "", **texts, **{key: number_or_text(value) for key, value in plain.items()}}
    if not names:
        _header(rows, source)


def _rows(rows: csv.DictReader[str], source: str) -> Iterator[dict[str | Any, str | Any]]:
    """Yield rows, with the longest cell of the csv module, which is one number for the whole process, raised."""
    while True:
        before = csv.field_size_limit(LONGEST_LINE)
        try:
            row = next(rows, None)
        except csv.Error as error:
            at = rows.line_num + 1
            raise InvalidArgumentError(
                f"{source}:{at}: malformed CSV: {error}; a cell has at most {LONGEST_LINE:,} characters."
            ) from error
        finally:
            csv.field_size_limit(before)
        if row is None:
            return
        yield row


def _header(rows: csv.DictReader[str], source: str) -> list[str]:
    """Return the names of the columns; there is one called "text", and none twice."""
    names = list(rows.fieldnames or ())
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    with _at(source, 1):
        if count > 1:
            raise InvalidArgumentError(f"the header has the column {name!r} {count:,} times.")
        if "text" not in names:
            received = cut(", ".join(names), 200)
            raise InvalidArgumentError(f"expected a header with a column 'text'; received {received!r}.")
    return names
