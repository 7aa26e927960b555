"""Documents of files of records: what the rows of JSON, tables, TREC and Parquet are taken for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

from latelier.errors import EmptyTextError, InvalidArgumentError, LatelierError
from latelier.reading.records import (
    DocumentFields,
    FieldsTaken,
    FileDocuments,
    InputDocument,
    Position,
    Reading,
    Skipped,
    SkipReason,
    flat_record,
    joined_text,
    parse_document,
    plain_record,
)
from latelier.reading.rows import (
    NAMES,
    Fault,
    Header,
    Row,
    RowFormat,
    Rows,
    Source,
    begins,
    first_line,
    names_of,
    read_rows,
)
from latelier.utils.checks import cut, short
from latelier.utils.files import is_file, number_or_text, open_binary, text_lines

_LONGEST_MESSAGE = 500
RECORD_FORMATS: Mapping[str, RowFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".trec": "trec",
    ".parquet": "parquet",
    ".txt": "txt",
}


def read_records(
    file: str | Path | BinaryIO, format: Literal["auto"] | RowFormat, name: str, reading: Reading
) -> FileDocuments:
    """Return the documents of a path, a pipe, a device or an open file, which messages call `name`."""
    fields = reading.fields
    formats: tuple[RowFormat, ...] = ("jsonl", "trec", "txt")  # by the first line; by default, each line is a text
    if format == "txt":
        reading.check_of_text(name)
    if format == "csv" and ".tsv" in Path(name).suffixes:
        format = "tsv"
    if format != "auto":
        formats = (format,)
    position = Position()
    source = Source(file, name, reading.encoding, reading.delimiter, on_open=position.opened)
    rows = read_rows(source, formats, lambda cells: _header(cells, fields))
    skipped: list[Skipped] = []
    taken = FieldsTaken()
    if rows.columns is not None and not rows.has_header:
        taken.remark = f"without a header: the columns are {', '.join(rows.columns)}"
    if isinstance(file, (str, Path)) and is_file(Path(file)):
        path = Path(file)
    else:
        path = None
    if rows.columns is None:
        records = _own_records(iter(rows), name, fields)
    else:
        fields.check_names(rows.columns, f"{rows.place}: it has")
        records = _table_records(rows, rows.columns, fields, has_types=formats == ("parquet",))
    documents = FileDocuments(_documents(records, reading, skipped, taken), skipped, path, taken=taken)
    documents.position = position
    return documents


def _documents(
    records: Iterable[Row | Fault], reading: Reading, skipped: list[Skipped], taken: FieldsTaken
) -> Iterator[InputDocument]:
    """Yield the documents of records, checked; errors name where they stand."""
    fields = reading.fields
    for row in records:
        try:
            if isinstance(row, Fault):
                raise InvalidArgumentError(row.reason)
            record = row.values
            if fields.are_named:
                if not isinstance(record, dict):
                    raise InvalidArgumentError("it is not a record, but fields are named; expected a JSON object.")
                record = fields.select(record)
            document = parse_document(record, row.place, with_image=reading.pages == "images")
        except InvalidArgumentError as error:
            message = cut(error.fact, _LONGEST_MESSAGE)
            if reading.on_problem == "stop" and not isinstance(error, EmptyTextError):
                raise InvalidArgumentError(f"{row.place}: {message}", advice=error.advice) from error
            skipped.append(Skipped(row.place, message, SkipReason.RECORDS))
        else:
            taken.add(*fields.taken_of(row.values))
            yield document


# Tables.

_NUMBERED = re.compile(r"[^\s]*\d[^\s]*")
_WORDS = re.compile(r"\w +\w")
_LETTER = re.compile(r"[^\W\d_]")


def _header(cells: list[str], fields: DocumentFields) -> Header:
    """Return the names of a table's columns; without a header, those of the field, or their numbers if these are named.

    Tables without a header have an id and a text, then a title, as passages and queries do, or an id, a URL, a title
    and a text, as MS MARCO's documents.
    """
    if fields.single_names:
        numbers = [str(number) for number in range(1, len(cells) + 1)]
        if {*fields.single_names} <= {*numbers} and not {*fields.single_names} & {*cells}:
            return Header(numbers, is_row=True)
        return Header(cells)
    is_id = "text" not in cells and len(cells) > 1 and _NUMBERED.fullmatch(cells[0]) is not None
    if is_id and len(cells) == 4 and cells[1].startswith(("http://", "https://")):
        return Header(("id", "url", "title", "text"), is_row=True)
    has_text = is_id and _WORDS.search(cells[1]) is not None
    if is_id and cells[0].isdecimal():
        has_text = _LETTER.search(cells[1]) is not None
    if has_text and len(cells) in (2, 3):
        return Header(("id", "text", "title")[: len(cells)], is_row=True)
    return Header(cells)


def _table_records(rows: Rows, columns: list[str], fields: DocumentFields, *, has_types: bool) -> Iterator[Row | Fault]:
    """Yield the rows of a table: an empty cell of its texts is an empty text, and a column of numbers has numbers."""
    empty = dict.fromkeys(fields.text_names, "")
    numbers = set()
    if not has_types:
        numbers = _number_columns(rows, {*columns} - {*fields.id_columns(columns), fields.title or "title", *empty})
    for row in rows.only(fields.columns_of(columns)):
        if isinstance(row, Fault):
            yield row
        elif "" in row.values and fields.metadata is None:
            fact = (
                f"column {columns.index('') + 1} has no name in the header, so its value {short(row.values[''])} "
                "cannot be stored; name the column, choose others with metadata, or leave it out (pandas: "
                "to_csv(index=False))."
            )
            yield Fault(row.place, fact)
        else:
            for name in numbers & row.values.keys():
                row.values[name] = number_or_text(row.values[name])
            yield row._replace(values=empty | row.values)


def _number_columns(rows: Rows, names: set[str]) -> set[str]:
    """Return those of some columns of which all cells are numbers, which takes a reading of all rows."""
    found = set(names)
    if not found:
        return found
    for row in rows:
        if isinstance(row, Row):
            found -= {name for name in found if name in row.values and not _is_number(row.values[name])}
    return found


def _is_number(cell: str) -> bool:
    """Whether a cell is a number that has the same text when it is written again: 1.5, but neither 1.50 nor 7e10."""
    value = number_or_text(cell)
    return not isinstance(value, str) and str(value) == cell


# Records that name their fields.


def _own_records(rows: Iterator[Row | Fault], name: str, fields: DocumentFields) -> Iterator[Row | Fault]:
    """Yield the records of JSON, TREC and texts, those within others too."""
    records = _unwrapped(_bulk(rows), fields, name)
    if fields.are_named:
        return fields.checked_records(records, name)
    return records


def _unwrapped(rows: Iterator[Row | Fault], fields: DocumentFields, name: str) -> Iterator[Row | Fault]:
    """Yield the records in the only value of a file: those of a list within it (hits.hits), or of an object of ids."""
    head = list(itertools.islice(rows, 2))
    value = None
    if len(head) == 1 and isinstance(head[0], Row):
        value = head[0].values
    if isinstance(value, dict) and not {*fields.text_names} & {*plain_record(value), *flat_record(value)}:
        inner = [*flat_record(value).values()]
        lists = [
            each for each in inner if isinstance(each, list) and each and all(isinstance(one, dict) for one in each)
        ]
        records: list[dict[str, Any]] = []
        if len(lists) == 1:
            records = lists[0]
        elif value and all(isinstance(each, dict) for each in value.values()):
            records = [{"id": key, **each} for key, each in value.items()]
        if records:
            head = [Row(f"{name}:{number}", record) for number, record in enumerate(records, start=1)]
    return itertools.chain(head, rows)


_BULK = {"_id", "_index", "_type", "routing", "version", "version_type", "pipeline", "require_alias"}


def _bulk(rows: Iterator[Row | Fault]) -> Iterator[Row | Fault]:
    """Put the ids of Elasticsearch's bulk actions, which stand on lines of their own, into the records after them."""
    for row in rows:
        kind = ""
        action: Any = None
        if isinstance(row, Row) and isinstance(row.values, dict) and len(row.values) == 1:
            kind, action = next(iter(row.values.items()))
        is_action = isinstance(action, dict) and {*action} <= _BULK
        if is_action and kind in ("index", "create"):
            record = next(rows, Row(row.place, {}))
            if isinstance(record, Row) and isinstance(record.values, dict):
                record = record._replace(values={"_id": action.get("_id"), **record.values})
            yield record
        elif not (is_action and kind == "delete"):
            yield row


# What a file looks like.

_BEGIN = 1 << 16  # characters of a file by which its format is known


def format_by_contents(path: Path) -> RowFormat | None:
    """Return the format that the first line of a file has, else None; a file that cannot be read has none."""
    return begins(first_line(_begin(path))[0])


def looks_like_a_table(path: Path) -> bool:
    """Whether the first lines of a text are several rows of the same number of cells, with tabs after short ids."""
    lines = [line.split("\t") for line in itertools.islice(_begin(path), 100) if line.strip()]
    rows = {len(cells) for cells in lines}
    return len(lines) > 1 and len(rows) == 1 and rows != {1} and all(len(cells[0].split()) == 1 for cells in lines)


def _begin(path: Path) -> Iterator[str]:
    """Return the lines at the beginning of a file."""
    lines = []
    size = 0
    with suppress(LatelierError):
        for line in text_lines(open_binary(path), str(path), compressed=path.suffix == ".gz"):
            lines.append(line)
            size += len(line)
            if size > _BEGIN:
                break
    return iter(lines)


# Texts by id: queries and documents of collections.

TEXT_FORMATS: tuple[RowFormat, ...] = ("parquet", "jsonl", "csv", "tsv", "jsonl")
# The columns of tables without a header: of passages and queries, of DPR's passages, and of MS MARCO's documents.
_COLUMNS_OF_TEXTS = {2: ("id", "text"), 3: ("id", "text", "title"), 4: ("id", "url", "title", "text")}


def texts_header(cells: list[str]) -> Header:
    """Return the names of the columns of a table of texts, which has a header if one of them is that of texts."""
    if {cell.lower() for cell in cells} & {*NAMES["text"], "query", "document"}:
        return Header(cells)
    return Header(_COLUMNS_OF_TEXTS.get(len(cells), ()), is_row=True)


def text_record(values: Any, own_id: str = "_id") -> Any:
    """Return the record of a text with its keys ``_id`` and ``text``, as far as it has them; what is none as it is.

    `own_id`: the name that goes before others, such as ``document_id``.
    """
    if not isinstance(values, Mapping):
        return values
    record = dict(values)
    spelt = {str(name).lower(): name for name in reversed([*record])}
    for key, names in (("_id", (own_id, *names_of("id", "document_id", "query_id"))), ("text", NAMES["text"])):
        name = next((spelt[name] for name in names if name in spelt), None)
        if key not in record and name is not None:
            record[key] = record.pop(name)
    if "text" in record:
        record["text"] = joined_text(record["text"])
    return record
