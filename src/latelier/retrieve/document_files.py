"""Documents from JSONL, CSV and text files, read line by line; errors name the faulty line."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from latelier.errors import InvalidArgumentError
from latelier.indexes.catalog.metadata import encode_metadata
from latelier.retrieve.documents import InputDocument, parse_document
from latelier.utils.describing import cut
from latelier.utils.reading import LONGEST_LINE, number_or_text, open_binary, parse_json, text_lines

__all__ = ["DocumentFormat", "read_document_file"]

DocumentFormat: TypeAlias = Literal["auto", "jsonl", "csv", "txt"]

_FORMATS: dict[str, DocumentFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "txt",
}
_LONGEST_MESSAGE = 500


def read_document_file(
    file: str | Path | BinaryIO, format: DocumentFormat = "auto", *, name: str | None = None
) -> Iterator[InputDocument]:
    r"""Yield the documents of a file.

    Parameters
    ----------
    file
        The path of a file, a pipe or a device (decompressed if it ends in ``.gz``), or a file opened for bytes.
    format
        ``"jsonl"``: a record, a pair or a text per line, as in `parse_documents`. ``"csv"``: a header with a column
        ``text``, and ``id``, ``title`` and metadata in others; ``.tsv`` files are separated by tabs. ``"txt"``: a text
        per line. ``"auto"``: by the file's extension; if that is unknown, by the first line, JSON or plain text.
    name
        Name of the file in messages; default: its path.

    Yields
    ------
    InputDocument
        Id, text and metadata of one document.

    Raises
    ------
    InvalidArgumentError
        Immediately, if there is no such file; while reading, at a faulty line, which the message names.
    StorageError
        If the file cannot be read.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO(b'{"id": "a", "text": "Rome.", "year": 2024}\n')
    >>> list(read_document_file(file, name="cities"))
    [InputDocument(id='a', text='Rome.', metadata={'year': 2024})]
    """
    source = str(file) if name is None and isinstance(file, (str, Path)) else name or "the file"
    opened = open_binary(file) if isinstance(file, (str, Path)) else file
    if format == "auto":
        format = _FORMATS.get(Path(source.removesuffix(".gz")).suffix.lower(), "auto")
    return _documents(text_lines(opened, source, compressed=source.endswith(".gz")), source, format)


def _documents(lines: Iterator[str], source: str, format: DocumentFormat) -> Iterator[InputDocument]:
    if format == "auto":
        format, lines = _detect(lines)
    reader = {"jsonl": _jsonl, "csv": _csv, "txt": _txt}[format]
    for number, item in reader(lines, source):
        with _located(source, number):
            document = parse_document(item)
            # The index makes the same check, but after the chunk is encoded, and its error does not name the line.
            if document.metadata:
                encode_metadata(document.metadata, number if document.id is None else document.id)
        yield document


@contextmanager
def _located(source: str, number: int) -> Iterator[None]:
    """Put the file and the line before the message of an error."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}:{number}: {cut(str(error), _LONGEST_MESSAGE)}") from error


def _detect(lines: Iterator[str]) -> tuple[DocumentFormat, Iterator[str]]:
    """Return the format of the first line that is not blank, and an iterator over all lines."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    looks_like_json = bool(head) and head[-1].lstrip().startswith("{")
    return "jsonl" if looks_like_json else "txt", itertools.chain(head, lines)


def _jsonl(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with _located(source, number):
                value = parse_json(line)
            yield number, value


def _txt(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.strip()


def _csv(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    """Yield rows as dicts: empty cells are left out, and metadata that looks like a number becomes one."""
    rows = csv.DictReader(lines, delimiter="\t" if ".tsv" in Path(source).suffixes else ",")
    names: list[str] = []
    for row in _csv_rows(rows, source):
        names = names or _csv_header(rows, source)
        if None in row:
            raise InvalidArgumentError(f"{source}:{rows.line_num}: more cells than the header has columns.")
        cells = {key: value for key, value in row.items() if value}
        texts = {key: cells.pop(key) for key in ("id", "_id", "title", "text") if key in cells}
        yield rows.line_num, {"text": "", **texts, **{key: number_or_text(value) for key, value in cells.items()}}
    if not names:
        _csv_header(rows, source)


def _csv_rows(rows: csv.DictReader[str], source: str) -> Iterator[dict[str | Any, str | Any]]:
    """Yield rows; the csv module's limit on the length of a cell, which is global, is raised while a row is read."""
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


def _csv_header(rows: csv.DictReader[str], source: str) -> list[str]:
    """Return the names of the columns; one must be "text", and none may be repeated."""
    names = list(rows.fieldnames or ())
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    with _located(source, 1):
        if count > 1:
            raise InvalidArgumentError(f"the header has the column {name!r} {count:,} times.")
        if "text" not in names:
            received = cut(", ".join(names), 200)
            raise InvalidArgumentError(f"expected a header with a column 'text'; received {received!r}.")
    return names
