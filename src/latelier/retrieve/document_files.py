"""Documents from JSONL, CSV, Parquet and text files, read line by line or row by row; errors name the faulty one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

from latelier.errors import InvalidArgumentError
from latelier.indexes.catalog.metadata import encode_metadata
from latelier.retrieve.csv_files import csv_rows
from latelier.retrieve.document_fields import DocumentFields
from latelier.retrieve.documents import InputDocument, parse_document
from latelier.retrieve.parquet_files import json_value, parquet_rows
from latelier.retrieve.whole_files import whole_file
from latelier.utils.checks import check_choice, cut, short
from latelier.utils.files import number_or_text, open_binary, parse_json, text_lines

__all__ = ["DocumentFormat", "check_format", "read_document_file"]

DocumentFormat: TypeAlias = Literal["auto", "jsonl", "csv", "parquet", "txt", "whole"]

_FORMATS: dict[str, DocumentFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "txt",
    ".md": "whole",
    ".markdown": "whole",
}
_LONGEST_MESSAGE = 500
_GZIP = b"\x1f\x8b"
_DEFAULT_FIELDS = DocumentFields()


def check_format(format: object) -> None:
    """Raise `InvalidArgumentError` for anything that is not the name of a format."""
    check_choice("format", format, get_args(DocumentFormat))


def read_document_file(
    file: str | Path | BinaryIO,
    format: DocumentFormat = "auto",
    *,
    name: str | None = None,
    fields: DocumentFields = _DEFAULT_FIELDS,
) -> Iterator[InputDocument]:
    r"""Yield the documents of a file.

    Parameters
    ----------
    file
        The path of a file, a pipe or a device (decompressed if it ends in ``.gz``), or a file opened for bytes.
    format
        ``"jsonl"``: a record, a pair or a text per line, as in `parse_documents`. ``"csv"``: a header with a column
        ``text``, and ``id``, ``title`` and metadata in others; ``.tsv`` files are separated by tabs. ``"parquet"``:
        columns as in CSV. ``"txt"``: a text per line. ``"whole"``: the file is one text, see
        `latelier.retrieve.whole_files`. ``"auto"``: by the file's extension; if that is unknown, by the first line,
        JSON or plain text.
    name
        Name of the file in messages; default: its path.
    fields
        Which fields of records, or columns, to take.

    Yields
    ------
    InputDocument
        Id, text and metadata of one document.

    Raises
    ------
    InvalidArgumentError
        Immediately, if there is no such file; while reading, at a faulty line or row, which the message names.
    MissingExtraError
        For a Parquet file, if pyarrow is not installed.
    StorageError
        If the file cannot be read.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO(b'{"id": "a", "text": "Rome.", "year": 2024}\n')
    >>> [document] = read_document_file(file, name="cities")
    >>> document.id, document.text, document.metadata
    ('a', 'Rome.', {'year': 2024})
    """
    source = str(file) if name is None and isinstance(file, (str, Path)) else name or "the file"
    if format == "auto":
        format = _FORMATS.get(Path(source.removesuffix(".gz")).suffix.lower(), "auto")
    if fields.are_named and format in ("txt", "whole"):
        raise InvalidArgumentError(
            f"received names of fields for {source}, which is plain text; fields are those of jsonl, csv and parquet."
        )
    if format in ("parquet", "whole"):
        if not isinstance(file, (str, Path)):
            raise InvalidArgumentError(f"the format {format!r} needs a file with a name; received {source}.")
        return _parquet(file, source, fields) if format == "parquet" else iter([whole_file(Path(file))])
    opened = open_binary(file) if isinstance(file, (str, Path)) else file
    return _documents(_lines(opened, source), source, format, fields)


def _lines(opened: BinaryIO, source: str) -> Iterator[str]:
    """Yield the lines of a file; the error for one that is gzip but has another name says so."""
    is_first = True
    try:
        for line in text_lines(opened, source, compressed=source.endswith(".gz")):
            is_first = False
            yield line
    except InvalidArgumentError as error:
        cause = error.__cause__
        if is_first and isinstance(cause, UnicodeDecodeError) and cause.object.startswith(_GZIP):
            raise InvalidArgumentError(
                f"{source} is compressed with gzip, which is decompressed only in a file whose name ends in .gz, not "
                "on standard input; name such a file, or decompress it before: gunzip -c FILE.gz | latelier index - ..."
            ) from error
        raise


def _documents(
    lines: Iterator[str], source: str, format: DocumentFormat, fields: DocumentFields
) -> Iterator[InputDocument]:
    if format == "auto":
        format, lines = _detect(lines)
    items = {"jsonl": _jsonl, "csv": _csv, "txt": _txt}[format](lines, source, fields)
    for number, item in items:
        yield _document(item, fields, source, number)


def _parquet(path: str | Path, source: str, fields: DocumentFields) -> Iterator[InputDocument]:
    """Return an iterator over the rows of a file; its columns are checked before the first row is read."""
    names, rows = parquet_rows(path, fields.columns)
    with _located(source):
        _check_columns(names, fields)

    def documents() -> Iterator[InputDocument]:
        for number, row in enumerate(rows, start=1):
            where = f"row {number}"
            with _located(source, where):
                # As in CSV: an empty cell is no value, so it is left out.
                record = {key: json_value(value) for key, value in row.items() if value is not None}
            yield _document(dict.fromkeys(fields.text_names, "") | record, fields, source, where)

    return documents()


def _document(item: Any, fields: DocumentFields, source: str, number: int | str) -> InputDocument:
    """Return the document of a line or a row, checked."""
    with _located(source, number):
        if fields.are_named:
            if not isinstance(item, dict):
                raise InvalidArgumentError("it is not a record, but fields are named; expected a JSON object.")
            item = fields.select(item)
        document = parse_document(item)
        # The index makes the same check, but after the chunk is encoded, and its error does not name the line.
        if document.metadata:
            encode_metadata(document.metadata, number if document.id is None else document.id)
    return document


@contextmanager
def _located(source: str, number: int | str | None = None) -> Iterator[None]:
    """Put the file, and the line or row, before the message of an error."""
    try:
        yield
    except InvalidArgumentError as error:
        where = source if number is None else f"{source}:{number}"
        raise InvalidArgumentError(f"{where}: {cut(str(error), _LONGEST_MESSAGE)}") from error


def _detect(lines: Iterator[str]) -> tuple[DocumentFormat, Iterator[str]]:
    """Return the format of the first line that is not blank, and an iterator over all lines."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    looks_like_json = bool(head) and head[-1].lstrip().startswith("{")
    return "jsonl" if looks_like_json else "txt", itertools.chain(head, lines)


def _jsonl(lines: Iterable[str], source: str, fields: DocumentFields) -> Iterator[tuple[int, Any]]:
    def values() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                with _located(source, number):
                    if line.strip() == "[" or line.lstrip().startswith("[{"):
                        raise InvalidArgumentError("a JSON array; expected one record per line (JSON Lines).")
                    value = parse_json(line)
                yield number, value

    return fields.checked_records(values(), source) if fields.are_named else values()


def _txt(lines: Iterable[str], source: str, fields: DocumentFields) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.strip()


def _csv(lines: Iterable[str], source: str, fields: DocumentFields) -> Iterator[tuple[int, Any]]:
    """Yield rows as dicts: empty cells are left out, and metadata that looks like a number becomes one."""
    names, rows = csv_rows(lines, source, delimiter="\t" if ".tsv" in Path(source).suffixes else ",")
    with _located(source, 1):
        _check_columns(names, fields)
    # Ids, titles and texts stay texts, whatever they look like.
    ids = {"id", "_id"} if fields.id is None else {fields.id}
    as_text = {*ids, fields.title or "title", *fields.text_names}
    for number, row in rows:
        cells = {key: value for key, value in row.items() if value}
        if "" in cells and fields.metadata is None:
            raise InvalidArgumentError(
                f"{source}:{number}: column {names.index('') + 1} has no name in the header, so its value "
                f"{short(cells[''])} cannot be stored; name the column, choose others with metadata (--metadata), or "
                "leave it out (pandas: to_csv(index=False))."
            )
        required = dict.fromkeys(fields.text_names, "")
        yield number, required | {k: v if k in as_text else number_or_text(v) for k, v in cells.items()}


def _check_columns(names: list[str], fields: DocumentFields) -> None:
    """Check that no column is repeated, and that there is a column of the text and those that are named."""
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        raise InvalidArgumentError(f"the header has the column {short(name)} {count:,} times.")
    fields.check_names(names, "it has")
