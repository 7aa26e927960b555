"""Reading documents from a file or standard input, line by line, with the line named where one is faulty."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

import typer

from latelier.errors import InvalidArgumentError, StorageError

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


def read_file(name: str, format: Format) -> Iterator[Any]:
    """Yield the documents of a file.

    Parameters
    ----------
    name
        The file; ``"-"`` is standard input.
    format
        ``AUTO`` goes by the file's name, and where that says nothing by its first line: JSON or plain text.

    Raises
    ------
    typer.BadParameter
        If there is no such file.
    InvalidArgumentError
        When a faulty line is reached; the message names it.
    """
    if name != "-" and not Path(name).is_file():
        raise typer.BadParameter(f"there is no file {name!r}.", param_hint="FILE")
    return _documents(name, format)


def number_or_text(text: str) -> int | float | str:
    """Return the number that a text is, else the text; what merely resembles a number (``007``) stays text.

    Examples
    --------
    >>> [number_or_text(text) for text in ("2020", "-1.5", "007", "1e3x", "NaN")]
    [2020, -1.5, '007', '1e3x', 'NaN']
    """
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text


def _documents(name: str, format: Format) -> Iterator[Any]:
    from latelier.retrieve.documents import read_document

    source = "standard input" if name == "-" else name
    with _open(name) as file:
        format, lines = _settle(format, name, file)
        reader = {Format.JSONL: _jsonl, Format.CSV: _csv, Format.TXT: _txt}[format]
        for number, item in reader(lines, source):
            try:
                yield read_document(item)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{source}:{number}: {error}") from error


@contextmanager
def _open(name: str) -> Iterator[TextIO]:
    try:
        if name == "-":
            yield sys.stdin
            return
        opener = gzip.open if name.endswith(".gz") else open
        # utf-8-sig drops the byte order mark of Windows editors; newline="" leaves quoted line ends to csv.
        with opener(name, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{name} is not UTF-8 text ({error}); convert it to UTF-8.") from error
    except (OSError, EOFError) as error:
        raise StorageError(f"cannot read {name}: {error}.") from error


def _settle(format: Format, name: str, file: TextIO) -> tuple[Format, Iterator[str]]:
    """Return the format, and the lines from the first that is not blank or, for names that say it, all of them."""
    if format is Format.AUTO:
        format = _SUFFIXES.get(Path(name.removesuffix(".gz")).suffix.lower(), Format.AUTO)
    if format is not Format.AUTO:
        return format, iter(file)
    head: list[str] = []
    for line in file:
        head.append(line)
        if line.strip():
            break
    looks_like_json = bool(head) and head[-1].lstrip().startswith("{")
    return Format.JSONL if looks_like_json else Format.TXT, itertools.chain(head, file)


def _jsonl(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise InvalidArgumentError(f"{source}:{number}: malformed JSON: {error}.") from error


def _txt(lines: Iterable[str], source: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.strip()


def _csv(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    """Yield rows as dicts: empty cells left out, and numbers made of metadata that are numbers."""
    rows = csv.DictReader(lines, delimiter="\t" if ".tsv" in Path(source).suffixes else ",")
    if "text" not in (rows.fieldnames or ()):
        raise InvalidArgumentError(
            f"{source}:1: expected a header with a column 'text'; received {', '.join(rows.fieldnames or ())!r}."
        )
    for row in rows:
        if None in row:
            raise InvalidArgumentError(f"{source}:{rows.line_num}: more cells than the header has columns.")
        plain = {key: value for key, value in row.items() if value}
        texts = {key: plain.pop(key) for key in ("id", "_id", "title", "text") if key in plain}
        yield rows.line_num, {"text": "", **texts, **{key: number_or_text(value) for key, value in plain.items()}}
