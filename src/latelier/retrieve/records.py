"""Documents as records: Python values, tables, JSON, CSV and Parquet, whatever program wrote them.

Files that are one text each are in `latelier.retrieve.files`, folders in `latelier.retrieve.folders`.
"""

from __future__ import annotations

import codecs
import csv
import datetime
import decimal
import io
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

from latelier.errors import EmptyTextError, InvalidArgumentError, StorageError
from latelier.indexes import Id
from latelier.indexes.results import as_id
from latelier.indexes.store.rows import encode_metadata
from latelier.utils.checks import check_unicode, cut, describe, short
from latelier.utils.files import (
    LONGEST_LINE,
    is_file,
    number_or_text,
    open_binary,
    parse_json,
    text_lines,
)
from latelier.utils.misc import needs_extra, warn_caller


class Part(NamedTuple):
    """A part of a text from `start` on: the headings above it, its page, and whether a passage has to begin there."""

    start: int
    headings: str = ""
    page: int | None = None
    is_apart: bool = False


class InputDocument(NamedTuple):
    """One document to store; what stands before the first of its `parts`, such as front matter, is not indexed.

    `image` is a picture as it was given, and a `Picture` once it is known that the model reads pictures.
    """

    id: Id | None
    text: str
    metadata: dict[str, Any]
    title: str = ""
    parts: tuple[Part, ...] = ()
    image: Any = None

    def values(self) -> list[Any]:
        """Return all but the picture in JSON's types, see `of_values`."""
        return [self.id, self.text, self.metadata, self.title, self.parts]

    @classmethod
    def of_values(cls, id: Id | None, text: str, metadata: dict[str, Any], title: str, parts: Any) -> InputDocument:
        """Return the document of its `values`."""
        return cls(id, text, metadata, title, tuple(Part(*part) for part in parts))

    def with_title(self, part: str | None = None, title: str | None = None) -> str:
        """Return the text, or a part of it, after the title; a part that begins with it as a heading stays as it is."""
        title = self.title if title is None else title
        if part is None:
            part = self.text[self.parts[0].start if self.parts else 0 :]
        if not title:
            return part
        if HEADINGS not in title and _begins_with(part, title):
            return part
        return f"{title} {part}".strip()


# Between the title of a document and the headings above a passage.
HEADINGS = " > "
_FIRST_LINES = re.compile(r"\s*([^\r\n]*)(?:\r\n|[\r\n]|\Z)(?: {0,3}(=+|-+)[ \t]*(?:[\r\n]|\Z))?")


def _begins_with(part: str, title: str) -> bool:
    """Whether a part begins with its title as a heading of Markdown: after #, or underlined."""
    found = _FIRST_LINES.match(part)
    if found is None:
        return False
    line = found[1].rstrip(" \t")
    if found[2] and line == title:
        return True
    name = line.lstrip("#")
    return name != line and title in (name.lstrip(), name.rstrip("#").strip())


class SkipReason(str, Enum):
    """Why a file, a folder, a record or a document was left out."""

    EMPTY = "empty"  # it was read, and holds no text
    RECORDS = "records"  # it was read; some or all of its records, mails or pages cannot be stored
    UNREADABLE = "unreadable"  # it could not be listed or read
    EXCLUDED = "excluded"  # its kind, a link, an ignore file or a pattern leaves it out
    ID = "id"  # a document has its id already
    KEPT = "kept"  # what is stored of it is kept, as nobody knows yet whether it is gone


class Skipped(NamedTuple):
    """A file or folder that was left out as a whole or in part, or a record of a file (``FILE:LINE``).

    Examples
    --------
    >>> Skipped("a.md", "it is empty", SkipReason.EMPTY).reason.value
    'empty'
    """

    path: str
    message: str
    reason: SkipReason


class FileDocuments:
    """Documents that are read from files: records, or with `are_texts` files that are one text each.

    `skipped` names each file, line or row that was left out so far; `path` is that of a file or folder that can be read
    again.
    """

    def __init__(
        self,
        documents: Iterator[InputDocument],
        skipped: list[Skipped],
        path: Path | None = None,
        *,
        are_texts: bool = False,
    ) -> None:
        self._documents = documents
        self.skipped = skipped
        self.path = path
        self.are_texts = are_texts

    def __iter__(self) -> Iterator[InputDocument]:
        yield from self._documents
        if self.skipped and self.path:
            first = self.skipped[0]
            plural = "" if len(self.skipped) == 1 else "s"
            warn_caller(f"left out {len(self.skipped):,} record{plural}; the first is {first.path}: {first.message}")


def parse_documents(documents: Any) -> Iterator[InputDocument]:
    """Yield documents while the iterable is read, see `Retriever.add`; errors name the position."""
    rows = _table_rows(documents)
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise InvalidArgumentError(
            f"received documents of type {type(documents).__name__}; expected an iterable of texts, of (id, text) "
            "pairs, or of dicts with 'id' and 'text'. For one document, give a list; for a dict of texts, its .items()."
        )
    for position, item in enumerate(rows):
        try:
            document = parse_document(item, position)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"documents[{position}]: {error.fact}", advice=error.advice) from None
        yield document


def _table_rows(documents: Any) -> Any:
    """Return the rows of a table of pandas, polars, pyarrow or DuckDB as records; any other iterable as it is."""
    rows: Iterable[dict[str, Any]]
    if hasattr(documents, "itertuples"):
        if documents.index.names == [None]:
            frame = documents
        else:
            frame = documents.reset_index()
        names = list(frame.columns)
        rows = (dict(zip(names, row, strict=True)) for row in frame.itertuples(index=False, name=None))
    elif hasattr(documents, "n_chunks"):  # of polars alone
        rows = documents.iter_rows(named=True)
    elif hasattr(documents, "to_batches") or (
        hasattr(documents, "__arrow_c_stream__") and (hasattr(documents, "schema") or hasattr(documents, "columns"))
    ):
        rows = (row for batch in _batches(documents) for row in _rows(batch))
    else:
        return documents
    return (
        dict.fromkeys({"text"} & {*map(str, row)})
        | {str(name): _json_value(value) for name, value in row.items() if not _is_missing(value)}
        for row in rows
    )


def _batches(table: Any) -> Iterator[Any]:
    """Yield the record batches of what pyarrow reads, a few rows each."""
    import pyarrow

    if hasattr(table, "to_batches"):
        found = table.to_batches()
    else:
        found = pyarrow.RecordBatchReader.from_stream(table)
    return (batch.slice(start, _ROWS) for batch in found for start in range(0, batch.num_rows, _ROWS))


def _is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or what pandas has for a missing time or value."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def parse_document(item: Any, position: int | str, *, with_image: bool = True) -> InputDocument:
    """Return one document of any form; errors name its position only in place of an id.

    `with_image`: whether a field ``image`` is a picture; else it is metadata.
    """
    if isinstance(item, InputDocument):
        return item
    if isinstance(item, str):
        return InputDocument(None, _checked_text(item, None), {})
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return InputDocument(as_id(item[0]), _checked_text(item[1], item[0]), {})
    record = _as_record(item)
    image = record.get("image") if with_image else None
    if isinstance(image, (str, bytes, os.PathLike)) or hasattr(image, "getbands"):
        del record["image"]
    else:
        image = None
    if image is not None:
        record = {**record, "text": record.get("text") or ""}
    if "text" not in record:
        raise InvalidArgumentError(f"it has no 'text'; its keys are {_listed(record)}.", advice="name-fields")
    given = [name for name in ("id", "_id") if record.get(name) is not None]
    if len(given) > 1:
        raise InvalidArgumentError(
            f"it has both 'id' {short(record['id'])} and '_id' {short(record['_id'])}; give one."
        )
    id_ = as_id(record[given[0]]) if given else None
    text = record.pop("text")
    title = record.pop("title", None)
    if title is not None and not isinstance(title, str):
        raise InvalidArgumentError(f"it has a title of type {type(title).__name__}; expected str.")
    rest = {name: value for name, value in record.items() if name not in ("id", "_id")}
    document = InputDocument(id_, text, _merged_metadata(rest), title or "", image=image)
    if image is None or text != "":
        _checked_text(document.with_title() if isinstance(text, str) else text, id_)
    # The index makes the same check, but after the chunk is encoded.
    encode_metadata(document.metadata, position if id_ is None else id_)
    return document


def _as_record(item: Any) -> dict[str, Any]:
    """Return a dict with ``text``, of a dict or of a document of LangChain, LlamaIndex or Haystack."""
    if hasattr(item, "page_content"):
        return {"id": item.id, "text": item.page_content, "metadata": item.metadata}
    if hasattr(item, "node_id") and hasattr(item, "get_content"):
        return {"id": item.node_id, "text": item.get_content(), "metadata": item.metadata}
    if hasattr(item, "content") and hasattr(item, "meta"):
        return {"id": item.id, "text": item.content, "metadata": item.meta}
    if not hasattr(item, "keys"):  # a mapping, or a row of a database
        raise InvalidArgumentError(
            f"received {describe(item)}; expected a text, an (id, text) pair, or a dict with 'text'."
        )
    return _plain(item)


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its text at the top, also as Elasticsearch, Qdrant and Anserini write it."""
    record = dict(item)
    if "text" in record:
        return record
    for outer in ("_source", "payload"):
        inner = record.get(outer)
        if isinstance(inner, Mapping) and (outer == "_source" or "text" in inner):
            return {key: record[key] for key in ("_id", "id") if key in record} | dict(inner)
    if "contents" in record:
        record["text"] = record.pop("contents")
    return record


def _merged_metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, those of a dict under ``"metadata"`` among them."""
    rest = dict(record)
    nested = rest.pop("metadata", None) or {}
    if not isinstance(nested, Mapping):
        raise InvalidArgumentError(
            f"it has metadata of type {type(nested).__name__}; expected a dict. A field of another kind needs another "
            "name."
        )
    twice = next((key for key in nested if key in rest), None)
    if twice is not None:
        raise InvalidArgumentError(f"it has the key {short(twice)} both at the top and in 'metadata'; give one.")
    return {**nested, **rest}


def _checked_text(value: Any, id_: Any) -> str:
    if id_ is None:
        name = "the text"
    else:
        name = f"the text of {short(id_)}"
    if not isinstance(value, (str, type(None))):
        raise InvalidArgumentError(f"{name} is of type {type(value).__name__}; expected str.")
    if value is None or not value.strip():
        raise EmptyTextError(f"{name} is empty: nothing to index.")
    check_unicode(value, name)
    return value


# Records in which a field that need not be in each of them has to appear once: enough to tell a field that few records
# have from a misspelt one, before anything is encoded.
_FIRST_RECORDS = 100


class DocumentFields(NamedTuple):
    """The names of the fields that documents are made of; ``meta.year`` is a field inside of another one.

    By default, the id is ``id`` or ``_id``, the text ``text``, the title ``title``, and all others are metadata. The
    fields of a text are joined by line ends.
    """

    id: str | None = None
    text: tuple[str, ...] = ()
    title: str | None = None
    metadata: tuple[str, ...] | None = None

    @classmethod
    def of(cls, id: Any, text: Any, title: Any, metadata: Any) -> DocumentFields:
        """Return the fields that a user names: single names, or for text and metadata several."""
        fields = cls(
            None if id is None else _names("id", id)[0],
            () if text is None else _names("text", text),
            None if title is None else _names("title", title)[0],
            None if metadata is None else _names("metadata", metadata),
        )
        roles = [name for name in (id, title, *fields.text) if name is not None]
        twice = next((name for name in roles if roles.count(name) > 1), None)
        if twice is not None:
            raise InvalidArgumentError(
                f"received the field {short(twice)} for two of id, text and title; name it once."
            )
        return fields

    @property
    def are_named(self) -> bool:
        """Whether any field is named, so that records have to be converted by `select`."""
        return self != DocumentFields()

    @property
    def text_names(self) -> tuple[str, ...]:
        """The fields of the text."""
        return self.text or ("text",)

    @property
    def columns(self) -> list[str] | None:
        """The columns of a table that are needed, if there are any; None: all."""
        if self.metadata is None:
            return None
        ids = ("id", "_id") if self.id is None else (self.id,)
        return [*dict.fromkeys([*ids, *self.text_names, self.title or "title", *self.metadata])]

    def check_names(self, found: Iterable[str], where: str) -> None:
        """Check that all named fields, and those of the text, are among those of a table or of some records."""
        known = dict.fromkeys(found)
        single = [name for name in (self.id, self.title) if name is not None]
        unknown = [name for name in (*single, *self.text_names, *(self.metadata or ())) if name not in known]
        if unknown:
            listed = cut(", ".join(known) or "none", 200)
            raise InvalidArgumentError(
                f"{where} no field {short(unknown[0])}; the fields are: {listed}.", advice="name-fields"
            )

    def select(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the keys ``id``, ``title``, ``text`` and ``metadata``, as `parse_document` takes it."""
        plain = _plain(item)
        record = {**_flat(item), **plain}
        for name in (self.id, *self.text):
            if name is not None and name not in record:
                raise InvalidArgumentError(f"it has no field {short(name)}; its fields are {_listed(item)}.")
        selected: dict[str, Any] = {"text": _joined({name: record.get(name) for name in self.text_names})}
        ids = ("id", "_id") if self.id is None else (self.id,)
        selected |= {name if self.id is None else "id": record[name] for name in ids if name in record}
        selected["title"] = record.get(self.title or "title")
        if self.metadata is None:
            roles = {*ids, *self.text_names, self.title or "title"}
            used = roles | {name.split(".")[-1] for name in roles - item.keys()} | ({"id", "text"} - item.keys())
            selected["metadata"] = _merged_metadata({name: plain[name] for name in plain if name not in used})
        else:
            names = [name for name in self.metadata if name in record]
            selected["metadata"] = {name if name in item else name.split(".")[-1]: record[name] for name in names}
        return selected

    def checked_records(self, records: Iterable[tuple[int, Any]], source: str) -> Iterator[tuple[int, Any]]:
        """Yield numbered records, after a check that each named field is in one of the first hundred."""
        remaining = iter(records)
        first = list(itertools.islice(remaining, _FIRST_RECORDS))
        if first:
            keys = [key for _, item in first if isinstance(item, Mapping) for key in {**_plain(item), **_flat(item)}]
            self.check_names(keys, f"{source}: its first records have")
        return itertools.chain(first, remaining)


def _flat(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the fields inside of its fields beside them: ``_source.body``."""
    nested = [(name, value) for name, value in item.items() if isinstance(value, Mapping)]
    return {**item, **{f"{name}.{inner}": each for name, value in nested for inner, each in _flat(value).items()}}


def _names(option: str, value: Any) -> tuple[str, ...]:
    names: tuple[Any, ...] = (None,)
    if isinstance(value, str):
        names = (value,)
    elif isinstance(value, Sequence):
        names = tuple(value)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"received {describe(value)} as {option}; expected the name of a field or several.")
    return names


def _joined(parts: Mapping[str, Any]) -> Any:
    """Return the texts of several fields on lines of their own; None and empty ones are left out."""
    if len(parts) == 1:
        if (only := next(iter(parts.values()))) is None:
            return ""
        return only
    for name, value in parts.items():
        if not (value is None or isinstance(value, str)):
            raise InvalidArgumentError(f"its field {short(name)} is of type {type(value).__name__}; expected str.")
    return "\n".join(value for value in parts.values() if value)


def _listed(record: Mapping[str, Any]) -> str:
    return cut(", ".join(map(short, record)) or "none", 200)


RecordFormat: TypeAlias = Literal["jsonl", "csv", "parquet", "txt"]
OnProblem: TypeAlias = Literal["stop", "skip"]
Pages: TypeAlias = Literal["texts", "images"]
RECORD_FORMATS: dict[str, RecordFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "txt",
}
_LONGEST_MESSAGE = 500
_MOST_CHARACTERS = 1 << 28  # of a file whose records are one JSON value
_GZIP = b"\x1f\x8b"


class Reading(NamedTuple):
    """How a file is read: names of fields, encoding and delimiter (None: detected), faulty records, pages."""

    fields: DocumentFields = DocumentFields()
    encoding: str | None = None
    delimiter: str | None = None
    on_problem: OnProblem = "stop"
    pages: Pages = "texts"

    def check_of_text(self, source: str) -> None:
        """Refuse names of fields for a file that is no records."""
        if self.fields.are_named:
            raise InvalidArgumentError(
                f"received names of fields for {source}, which is one text; fields are those of jsonl, csv and parquet."
            )


def read_records(
    file: str | Path | BinaryIO, format: Literal["auto", RecordFormat], source: str, reading: Reading
) -> FileDocuments:
    """Return the documents of a path, a pipe, a device or an open file, which messages call `source`."""
    if format == "txt":
        reading.check_of_text(source)
    records: Iterator[tuple[int | str, Any]]
    if format == "parquet":
        if not isinstance(file, (str, Path)):
            raise InvalidArgumentError(f"the format {format!r} needs a file with a name; received {source}.")
        records = _parquet_records(file, source, reading.fields)
    elif format == "csv":
        records = _csv_records(file, source, reading)
    else:
        if isinstance(file, (str, Path)):
            opened = open_binary(file)
        else:
            opened = file
        records = _line_records(_lines(opened, source, reading.encoding), source, format, reading)
    skipped: list[Skipped] = []
    if isinstance(file, (str, Path)) and is_file(Path(file)):
        path = Path(file)
    else:
        path = None
    return FileDocuments(_documents(records, source, reading, skipped), skipped, path)


def _documents(
    records: Iterator[tuple[int | str, Any]], source: str, reading: Reading, skipped: list[Skipped]
) -> Iterator[InputDocument]:
    """Yield the documents of numbered lines or rows, checked; errors name the file and the line."""
    for number, item in records:
        try:
            if isinstance(item, InvalidArgumentError):
                raise item
            if reading.fields.are_named:
                if not isinstance(item, dict):
                    raise InvalidArgumentError("it is not a record, but fields are named; expected a JSON object.")
                item = reading.fields.select(item)
            document = parse_document(item, number, with_image=reading.pages == "images")
        except InvalidArgumentError as error:
            if reading.on_problem == "stop" and not isinstance(error, EmptyTextError):
                fact = f"{source}:{number}: {cut(error.fact, _LONGEST_MESSAGE)}"
                raise InvalidArgumentError(fact, advice=error.advice) from error
            skipped.append(Skipped(f"{source}:{number}", cut(error.fact, _LONGEST_MESSAGE), SkipReason.RECORDS))
        else:
            yield document


def _lines(opened: BinaryIO, source: str, encoding: str | None) -> Iterator[str]:
    """Yield the lines of a file; the error for one that is gzip but has another name says so."""
    is_first = True
    try:
        for line in text_lines(opened, source, compressed=source.endswith(".gz"), encoding=encoding or "utf-8-sig"):
            is_first = False
            yield line
    except InvalidArgumentError as error:
        cause = error.__cause__
        if is_first and isinstance(cause, UnicodeDecodeError) and cause.object.startswith(_GZIP):
            raise InvalidArgumentError(
                f"{source} is compressed with gzip, which is decompressed only in a file whose name ends in .gz, not "
                "on standard input; name such a file, or decompress it first: gunzip -c FILE.gz"
            ) from error
        raise


def _line_records(lines: Iterator[str], source: str, format: str, reading: Reading) -> Iterator[tuple[int, Any]]:
    """Yield line numbers, and texts or what `parse_document` takes; `auto` looks at the first line with a text."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    lines = itertools.chain(head, lines)
    if format == "txt" or (format == "auto" and not (head and head[-1].lstrip().startswith(("{", "[")))):
        yield from ((number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip())
        return
    is_array = source.removesuffix(".gz").endswith(".json")
    values = _unwrapped(_bulk(_json_values(lines, head[-1].strip() if head else "", is_array)), reading.fields)
    yield from reading.fields.checked_records(values, source) if reading.fields.are_named else values


def _json_values(lines: Iterator[str], first: str, is_array: bool) -> Iterator[tuple[int, Any]]:
    """Yield the values of JSON lines, or of one array or objects over several lines; errors as values too.

    A line of its own may be a pair of an id and a text; in a file that is called .json, an array holds documents.
    """
    try:
        value = parse_json(first) if first else None
        is_whole = isinstance(value, list) and (is_array or all(isinstance(each, (dict, list)) for each in value))
    except InvalidArgumentError:
        is_whole = first.startswith(("[", "{"))
    read: list[str] = []
    if is_whole:
        size = 0
        for line in lines:
            size += len(line)
            if size > _MOST_CHARACTERS:
                raise InvalidArgumentError(
                    f"it is one value of more than {_MOST_CHARACTERS:,} characters; write one record a line (.jsonl)."
                )
            read.append(line)
        try:
            value = parse_json("".join(read))
        except InvalidArgumentError:  # JSON lines of which the first is faulty, or objects over several lines
            lines = iter(re.split(r"(?m)^(?=\{)", "".join(read)) if first == "{" else read)
        else:
            values = value if isinstance(value, list) else [value]
            yield from enumerate(values, start=1)
            return
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except InvalidArgumentError as error:
                yield number, error


def _unwrapped(values: Iterator[tuple[int, Any]], fields: DocumentFields) -> Iterator[tuple[int, Any]]:
    """Yield the records in the only value of a file: those of a list within it (hits.hits), or of an object of ids."""
    head = list(itertools.islice(values, 2))
    value = head[0][1] if len(head) == 1 else None
    if isinstance(value, dict) and not {*fields.text_names} & {*_plain(value), *_flat(value)}:
        inner = [*_flat(value).values()]
        lists = [
            each for each in inner if isinstance(each, list) and each and all(isinstance(one, dict) for one in each)
        ]
        if len(lists) == 1:
            head = list(enumerate(lists[0], start=1))
        elif value and all(isinstance(each, dict) for each in value.values()):
            head = list(enumerate(({"id": name, **each} for name, each in value.items()), start=1))
    return itertools.chain(head, values)


def _bulk(values: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Put the ids of Elasticsearch's bulk actions, which stand on lines of their own, into the records after them."""
    for number, value in values:
        if isinstance(value, dict) and len(value) == 1:
            action = next(iter(value.values()))
        else:
            action = None
        if isinstance(action, dict) and next(iter(value)) in ("index", "create") and {*action} <= _BULK:
            number, record = next(values, (number, {}))
            yield number, {"_id": action.get("_id"), **record} if isinstance(record, dict) else record
        elif not (isinstance(action, dict) and next(iter(value)) == "delete" and {*action} <= _BULK):
            yield number, value


_BULK = {"_id", "_index", "_type", "routing", "version", "version_type", "pipeline", "require_alias"}
_DELIMITERS = (",", ";", "\t", "|")


def _csv_records(file: str | Path | BinaryIO, source: str, reading: Reading) -> Iterator[tuple[int, Any]]:
    """Return an iterator over rows as dicts; a column has the type of all its cells, so the file is read twice.

    The first reading starts again if it meets a byte that is not UTF-8, or an escaped quote.
    """
    if isinstance(file, (str, Path)) and is_file(Path(file)):
        path = file
        contents = b""
    else:
        path = None
        contents = (open_binary(file) if isinstance(file, (str, Path)) else file).read()
    encoding = reading.encoding or "utf-8-sig"
    has_escapes = False

    def table() -> _CsvTable:
        binary = open_binary(path) if path else io.BytesIO(contents)
        return _CsvTable(_lines(binary, source, encoding), source, reading.delimiter, has_escapes=has_escapes)

    found = None
    while found is None:
        try:
            found = table().columns(reading.fields)
        except InvalidArgumentError as error:
            if reading.encoding is not None or not _may_be_cp1252(error):
                raise
            encoding = "cp1252"
        else:
            has_escapes = has_escapes or found is None
    names, numeric = found
    return _typed_rows(itertools.islice(table().rows(), 1, None), names, numeric, reading.fields)


class _CsvTable:
    """One reading of a CSV file, with a delimiter as its header has it.

    `has_escapes`: a quote within quotes is written as a backslash and a quote, as MySQL and others do, not twice.
    """

    def __init__(self, lines: Iterator[str], source: str, delimiter: str | None, *, has_escapes: bool) -> None:
        first = next(lines, "")
        named = _SEPARATOR.fullmatch(first.strip())
        header = next(lines, "") if named else first
        if delimiter is None and named:
            delimiter = named[1]
        elif delimiter is None and ".tsv" in Path(source).suffixes and "\t" in header:
            delimiter = "\t"
        elif delimiter is None:
            delimiter = _sniffed(header)
        self._lines = itertools.chain([header] if header else [], lines)
        self._source = source
        self._has_escapes = has_escapes
        self._before = 1 if named else 0  # lines before the header
        self._dialect = {
            "delimiter": delimiter,
            "escapechar": "\\" if has_escapes else None,
            "skipinitialspace": f"{delimiter} " in header,
        }
        self._escape = re.compile(rf'\\"(?=[^"\r\n{re.escape(delimiter)}])')
        self._met_escape = False
        self._null = re.compile(rf"(?:^|(?<={re.escape(delimiter)})) {{0,8}}\\N(?=[{re.escape(delimiter)}\r\n]|\Z)")

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows that are not blank, the header first, each with the number of its first line."""
        return _csv_rows(self._cleaned_lines(), self._source, self._dialect, self._before)

    def columns(self, fields: DocumentFields) -> tuple[list[str], set[str]] | None:
        """Return the names of all columns, and of those of numbers; None if it has escapes that were read without."""
        rows = self.rows()
        try:
            number, names = next(rows, (1, []))
            _check_columns(names, fields, f"{self._source}:{number}: ")
            ids = ("id", "_id") if fields.id is None else (fields.id,)
            as_texts = {*ids, fields.title or "title", *fields.text_names}
            numeric = {i for i, name in enumerate(names) if name not in as_texts}
            for _, row in rows:
                numeric -= {i for i, cell in enumerate(row) if i in numeric and cell and not _is_number(cell)}
        except _MalformedCsvError:
            if self._has_escapes or not (self._met_escape or any(map(self._escape.search, self._lines))):
                raise
            return None
        if self._met_escape and not self._has_escapes:
            return None
        return names, {names[i] for i in numeric}

    def _cleaned_lines(self) -> Iterator[str]:
        """Yield the lines without the NULL of databases."""
        for line in self._lines:
            self._met_escape = self._met_escape or self._escape.search(line) is not None
            yield self._null.sub("", line)


def _is_number(cell: str) -> bool:
    """Whether a cell is a number that has the same text when it is written again: 1.5, but neither 1.50 nor 7e10."""
    value = number_or_text(cell)
    return not isinstance(value, str) and str(value) == cell


def _typed_rows(
    rows: Iterator[tuple[int, list[str]]], names: list[str], numeric: set[str], fields: DocumentFields
) -> Iterator[tuple[int, Any]]:
    for number, row in rows:
        cells = {name: cell for name, cell in zip(names, row, strict=False) if cell}
        if len(row) > len(names):
            yield number, InvalidArgumentError("more cells than the header has columns.")
        elif "" in cells and fields.metadata is None:
            fact = (
                f"column {names.index('') + 1} has no name in the header, so its value {short(cells[''])} cannot be "
                "stored; name the column, choose others with metadata, or leave it out (pandas: to_csv(index=False))."
            )
            yield number, InvalidArgumentError(fact)
        else:
            values = {name: number_or_text(cell) if name in numeric else cell for name, cell in cells.items()}
            yield number, dict.fromkeys(fields.text_names, "") | values


# Excel names the delimiter on a first line of its own.
_SEPARATOR = re.compile(r"sep=(.)")


def _may_be_cp1252(error: InvalidArgumentError) -> bool:
    """Whether a text that is not UTF-8 may have the encoding of spreadsheets on Windows, so is not binary."""
    cause = error.__cause__
    if not isinstance(cause, UnicodeDecodeError) or cause.encoding != "utf-8":
        return False
    return b"\0" not in cause.object and not cause.object.startswith(_GZIP)


def _sniffed(header: str) -> str:
    """Return the delimiter of a header: the one that gives most columns."""
    return max(_DELIMITERS, key=lambda each: len(next(csv.reader([header[:100_000]], delimiter=each), [])))


def check_encoding(name: str | None) -> None:
    """Raise `InvalidArgumentError` if Python knows no encoding of a name."""
    try:
        codecs.lookup(name or "utf-8")
    except LookupError as error:
        raise InvalidArgumentError(f"received encoding={name!r}; expected one that Python knows, as cp1252.") from error


class _MalformedCsvError(InvalidArgumentError):
    """A row of a CSV file has a quote that is not closed, or a cell that is too long."""


def _csv_rows(
    lines: Iterable[str], source: str, dialect: Mapping[str, Any], before: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of `_CsvTable.rows`; an error names the line at which its row begins."""
    own: list[str] = []  # the lines of the current row

    def kept() -> Iterator[str]:
        for line in lines:
            own.append(line)
            yield line

    reader = csv.reader(kept(), **dialect)
    while True:
        own.clear()
        first = before + reader.line_num + 1
        # The csv module's limit on the length of a cell is global, so it is raised only while a row is read.
        limit = csv.field_size_limit(LONGEST_LINE)
        try:
            row = next(reader, None)
            if row is None:
                return
            # A quote that is not closed takes in the rows up to the next quote, which only a strict reader reports.
            # Strict on all rows, it would also reject stray quotes within a line, which do no harm.
            if len(own) > 1 or own[0].count('"') % 2:
                list(csv.reader(own, strict=True, **dialect))
        except csv.Error as error:
            raise _MalformedCsvError(
                f"{source}:{first}: malformed CSV: {error}; in the row that begins here a quote is not closed, or "
                f"stands within a cell (write it twice), or a cell has more than {LONGEST_LINE:,} characters."
            ) from error
        finally:
            csv.field_size_limit(limit)
        if row:
            yield first, row


def _check_columns(names: list[str], fields: DocumentFields, place: str) -> None:
    """Check that no column is repeated, and that there is a column of the text and those that are named."""
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        raise InvalidArgumentError(f"{place}the header has the column {short(name)} {count:,} times.")
    fields.check_names(names, f"{place}it has")


# Rows converted to Python objects at once; a row group is read page by page.
_ROWS = 1024


def _parquet_records(path: str | Path, source: str, fields: DocumentFields) -> Iterator[tuple[str, Any]]:
    """Return an iterator over the rows of a file; its columns are checked before the first row is read."""
    with needs_extra("Reading Parquet files", "parquet"):
        import pyarrow
        from pyarrow import parquet
    file = open_binary(path)
    try:
        opened = parquet.ParquetFile(file)
        names = list(opened.schema_arrow.names)
    except (pyarrow.ArrowException, OSError) as error:
        file.close()
        raise InvalidArgumentError(f"{path} is not a Parquet file: {_reason(error)}.") from error
    _check_columns(names, fields, f"{source}: ")
    if fields.columns is None:
        wanted = None
    else:
        wanted = [name for name in names if name in fields.columns]

    def records() -> Iterator[tuple[str, Any]]:
        number = 0
        with file:
            batches = opened.iter_batches(batch_size=_ROWS, columns=wanted)
            while True:
                try:
                    batch = next(batches, None)
                    rows = [] if batch is None else _rows(batch)
                except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: a time beyond Python's
                    raise StorageError(f"cannot read {path}: {_reason(error)}.") from error
                if batch is None:
                    return
                for row in rows:
                    number += 1
                    try:
                        # As in CSV: an empty cell is no value, so it is left out.
                        record = {key: _json_value(value) for key, value in row.items() if value is not None}
                    except InvalidArgumentError as error:
                        yield f"row {number}", error
                    else:
                        yield f"row {number}", dict.fromkeys(fields.text_names, "") | record

    return records()


def _rows(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a record batch as Python objects."""
    import pyarrow

    columns = []
    for column in batch.columns:
        kind = column.type
        if pyarrow.types.is_timestamp(kind) and kind.unit == "ns":  # datetime has microseconds: rounded down
            column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
        columns.append(column.to_pylist())
    return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _json_value(value: Any) -> Any:
    """Return a value of a table as JSON has it: times as ISO 8601, decimals as numbers, NaN as None, bytes as UTF-8."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    if value is None or isinstance(value, (str, int)):
        return value
    if hasattr(value, "tolist"):  # an array or a number of numpy
        return _json_value(value.tolist())
    if isinstance(value, dict):
        return {str(key): _json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(each) for each in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        if value.is_finite() and value == value.to_integral_value():
            return int(value)
        return _json_value(float(value))
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError("it holds bytes that are not UTF-8 text.") from error
    return str(value)  # a UUID, an interval


def _reason(error: Exception) -> str:
    """Return the message of pyarrow, which may end with a full stop or a line end."""
    return cut(str(error).strip().rstrip("."), 200)
