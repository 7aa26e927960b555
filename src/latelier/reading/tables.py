"""Files of records: JSON Lines, tables with a delimiter, TREC's SGML and Parquet; their declarations are at the end."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from html import unescape
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

from latelier.errors import EmptyTextError, InvalidArgumentError, LatelierError, StorageError
from latelier.reading.process import in_worker
from latelier.reading.records import (
    ROWS_AT_ONCE,
    DocumentFields,
    FieldsTaken,
    FileDocuments,
    InputDocument,
    Reading,
    Skipped,
    SkipReason,
    flat_record,
    json_value,
    parse_document,
    plain_record,
    rows_of,
)
from latelier.utils.checks import cut, short
from latelier.utils.files import LONGEST_LINE, is_file, number_or_text, open_binary, parse_json, text_lines
from latelier.utils.misc import needs_extra

RecordFormat: TypeAlias = Literal["jsonl", "csv", "tsv", "trec", "parquet", "txt"]
_LONGEST_MESSAGE = 500
_MOST_CHARACTERS = 1 << 28  # of a file whose records are one JSON value
_GZIP = b"\x1f\x8b"


class _Source(NamedTuple):
    """A path, a pipe, a device or an open file, its name in messages, and how it is read."""

    file: str | Path | BinaryIO
    name: str
    reading: Reading
    taken: FieldsTaken

    def lines(self) -> Iterator[str]:
        """Yield the lines of a text."""
        if isinstance(self.file, (str, Path)):
            opened = open_binary(self.file)
        else:
            opened = self.file
        return _lines(opened, self.name, self.reading.encoding)


def read_records(
    file: str | Path | BinaryIO, format: Literal["auto", RecordFormat], source: str, reading: Reading
) -> FileDocuments:
    """Return the documents of a path, a pipe, a device or an open file, which messages call `source`."""
    opened = _Source(file, source, reading, FieldsTaken())
    records: Iterator[tuple[int | str, Any]]
    if format == "auto":
        records = _records_by_first_line(opened)
    else:
        records = _FORMATS[format].read(opened)
    skipped: list[Skipped] = []
    if isinstance(file, (str, Path)) and is_file(Path(file)):
        path = Path(file)
    else:
        path = None
    documents = _documents(records, source, reading, skipped, opened.taken)
    return FileDocuments(documents, skipped, path, taken=opened.taken)


def _documents(
    records: Iterator[tuple[int | str, Any]],
    source: str,
    reading: Reading,
    skipped: list[Skipped],
    taken: FieldsTaken,
) -> Iterator[InputDocument]:
    """Yield the documents of numbered lines or rows, checked; errors name the file and the line."""
    for number, item in records:
        try:
            if isinstance(item, InvalidArgumentError):
                raise item
            record = item
            if reading.fields.are_named:
                if not isinstance(item, dict):
                    raise InvalidArgumentError("it is not a record, but fields are named; expected a JSON object.")
                record = reading.fields.select(item)
            document = parse_document(record, number, with_image=reading.pages == "images")
        except InvalidArgumentError as error:
            if reading.on_problem == "stop" and not isinstance(error, EmptyTextError):
                fact = f"{source}:{number}: {cut(error.fact, _LONGEST_MESSAGE)}"
                raise InvalidArgumentError(fact, advice=error.advice) from error
            skipped.append(Skipped(f"{source}:{number}", cut(error.fact, _LONGEST_MESSAGE), SkipReason.RECORDS))
        else:
            taken.add(*reading.fields.taken_of(item))
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


def _records_by_first_line(source: _Source) -> Iterator[tuple[int, Any]]:
    """Yield the records of lines in the format that the first line with a text has; by default, each is a text."""
    first, lines = _first_line(source.lines())
    if _FORMATS["jsonl"].begins(first):
        yield from _json_records_of(lines, first, source)
    elif _FORMATS["trec"].begins(first):
        yield from _trec_records_of(lines)
    else:
        yield from _texts_of(lines)


def _first_line(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Return the first line that is not blank, or an empty one, and all lines."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    first = "".join(head[-1:]).strip()
    return first, itertools.chain(head, lines)


def _text_records(source: _Source) -> Iterator[tuple[int, str]]:
    source.reading.check_of_text(source.name)
    return _texts_of(source.lines())


def _texts_of(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    return ((number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip())


def _json_records(source: _Source) -> Iterator[tuple[int, Any]]:
    first, lines = _first_line(source.lines())
    yield from _json_records_of(lines, first, source)


def _json_records_of(lines: Iterator[str], first: str, source: _Source) -> Iterator[tuple[int, Any]]:
    fields = source.reading.fields
    is_array = source.name.removesuffix(".gz").endswith(".json")
    values = _unwrapped(_bulk(_json_values(lines, first, is_array)), fields)
    if fields.are_named:
        yield from fields.checked_records(values, source.name)
    else:
        yield from values


# The elements of a document of TREC's collections: of its id, its title, its texts, and of the headers of web pages.
_TREC_ELEMENTS = {
    "id": ("docno",),
    "title": ("title", "headline", "head", "hl", "ttl", "ti"),
    "text": ("text", "leadpara", "lp"),
    "header": ("dochdr",),
}
_TREC_TAG = re.compile(r"</?[A-Za-z][^<>]{0,1000}>")
_TREC_END = re.compile(r"(?<=</DOC>)", re.IGNORECASE)
_TREC_LEAF = re.compile(r"<([A-Za-z]\w{0,99})>([^<>]*)</\1>")
_RESERVED = ("id", "_id", "text", "title", "metadata", "image")


def _trec_records(source: _Source) -> Iterator[tuple[int, Any]]:
    return _trec_records_of(source.lines())


def _trec_records_of(lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    """Yield the documents of TREC's SGML, with the numbers of their first lines."""
    begin = 0
    held: list[str] = []
    for number, line in enumerate(lines, start=1):
        for piece in _TREC_END.split(line):
            if not begin and piece.strip():
                begin = number
            held.append(piece)
            if begin and piece.lower().endswith("</doc>"):
                yield begin, _trec_record("".join(held))
                begin = 0
                held = []
    if begin:
        yield begin, InvalidArgumentError("what begins here has no </DOC>.")


def _trec_record(markup: str) -> dict[str, Any] | InvalidArgumentError:
    """Return a document as a record: its elements beside the text are metadata."""
    found: dict[str, list[str]] = {}
    rest = markup
    for role, names in _TREC_ELEMENTS.items():
        pattern = re.compile(rf"<({'|'.join(names)})>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
        found[role] = [_without_tags(match[2]) for match in pattern.finditer(rest)]
        rest = pattern.sub(" ", rest)
    if not found["id"]:
        return InvalidArgumentError("the <DOC> that begins here has no <DOCNO>.")
    record = {"id": found["id"][0], "title": " ".join(found["title"][:1]), "text": "\n".join(found["text"])}
    if not found["text"]:
        return {**record, "text": _without_tags(rest)}
    others = {name.lower(): _without_tags(value) for name, value in _TREC_LEAF.findall(rest)}
    return {name: value for name, value in others.items() if value and name not in _RESERVED} | record


def _without_tags(markup: str) -> str:
    lines = unescape(_TREC_TAG.sub(" ", markup)).splitlines()
    return "\n".join(" ".join(line.split()) for line in lines if line.strip())


def _json_values(lines: Iterator[str], first: str, is_array: bool) -> Iterator[tuple[int, Any]]:
    """Yield the values of JSON lines, or of one array or objects over several lines; errors as values too.

    A line of its own may be a pair of an id and a text; in a file that is called .json, an array holds documents.
    """
    try:
        if first:
            value = parse_json(first, nan_as_null=True)
        else:
            value = None
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
            value = parse_json("".join(read), nan_as_null=True)
        except InvalidArgumentError:  # JSON lines of which the first is faulty, or objects over several lines
            lines = iter(re.split(r"(?m)^(?=\{)", "".join(read)) if first == "{" else read)
        else:
            if isinstance(value, list):
                values = value
            else:
                values = [value]
            yield from enumerate(values, start=1)
            return
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, parse_json(line, nan_as_null=True)
            except InvalidArgumentError as error:
                yield number, error


def _unwrapped(values: Iterator[tuple[int, Any]], fields: DocumentFields) -> Iterator[tuple[int, Any]]:
    """Yield the records in the only value of a file: those of a list within it (hits.hits), or of an object of ids."""
    head = list(itertools.islice(values, 2))
    if len(head) == 1:
        value = head[0][1]
    else:
        value = None
    if isinstance(value, dict) and not {*fields.text_names} & {*plain_record(value), *flat_record(value)}:
        inner = [*flat_record(value).values()]
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


class _Layout(NamedTuple):
    """A table without a header: what its first line looks like, and what its columns are."""

    first_line: re.Pattern[str]
    columns: tuple[str, ...]


# The first cell is a number, or has a digit beside a text of several words.
_NUMBERED_TEXT = r"(?:\d+\t(?=[^\t]*[^\W\d_])|(?=[^\t]*\d)[^\s]+\t(?=[^\t]*\w +\w))[^\t]+"
_LAYOUTS = (
    _Layout(re.compile(r"[^\s]*\d[^\s]*\thttps?://[^\t]*\t[^\t]*\t[^\t]*"), ("id", "url", "title", "text")),
    _Layout(re.compile(_NUMBERED_TEXT), ("id", "text")),
    _Layout(re.compile(rf"{_NUMBERED_TEXT}\t[^\t]*"), ("id", "text", "title")),
)


def _columns_without_header(line: str, cells: list[str], fields: DocumentFields) -> tuple[str, ...]:
    """Return the names of the columns if a first line is no header; the user may give their numbers, from 1 on."""
    named = [name for name in (fields.id, *fields.text, fields.title, *(fields.metadata or ())) if name is not None]
    if not named:
        layouts = [layout for layout in _LAYOUTS if layout.first_line.fullmatch(line) and "text" not in cells]
        return next((layout.columns for layout in layouts), ())
    numbers = tuple(str(number) for number in range(1, len(cells) + 1))
    if {*named} <= {*numbers} and not {*named} & {*cells}:
        return numbers
    return ()


def _csv_records(source: _Source) -> Iterator[tuple[int, Any]]:
    return _delimited_records(source, by_tabs=".tsv" in Path(source.name).suffixes)


def _tsv_records(source: _Source) -> Iterator[tuple[int, Any]]:
    return _delimited_records(source, by_tabs=True)


def _delimited_records(source: _Source, *, by_tabs: bool) -> Iterator[tuple[int, Any]]:
    """Return an iterator over rows as dicts; a column has the type of all its cells, so the file is read twice.

    The first reading starts again if it meets a byte that is not UTF-8, or an escaped quote.
    """
    file = source.file
    reading = source.reading
    if isinstance(file, (str, Path)) and is_file(Path(file)):
        path = file
        contents = b""
    else:
        path = None
        contents = (open_binary(file) if isinstance(file, (str, Path)) else file).read()
    encoding = reading.encoding or "utf-8-sig"
    has_escapes = False
    has_quotes = True

    def table() -> _CsvTable:
        if path:
            binary = open_binary(path)
        else:
            binary = io.BytesIO(contents)
        lines = _lines(binary, source.name, encoding)
        return _CsvTable(lines, source.name, reading, by_tabs, has_quotes=has_quotes, has_escapes=has_escapes)

    found = None
    while found is None:
        try:
            has_quotes = table().has_quoted_cells()
            found = table().columns(reading.fields)
        except InvalidArgumentError as error:
            if reading.encoding is not None or not _may_be_cp1252(error):
                raise
            encoding = "cp1252"
        else:
            has_escapes = has_escapes or found is None
    names, numeric = found
    last = table()
    rows = last.rows()
    if last.names:
        source.taken.remark = f"without a header: the columns are {', '.join(last.names)}"
    else:
        rows = itertools.islice(rows, 1, None)
    return _typed_rows(rows, names, numeric, reading.fields)


_QUOTE = re.compile('"')
_CLOSED = re.compile(r'"(?:[^"]|"")*"')
_OPEN = re.compile(r'"(?:[^"]|"")*')


class _CsvTable:
    """One reading of a table with a delimiter, which its first line shows; `names` are its columns without a header.

    `has_quotes`: cells are quoted as in CSV; else a quote is a letter, as in the tables with tabs of this field.
    `has_escapes`: a quote within quotes is written as a backslash and a quote, as MySQL and others do, not twice.
    """

    def __init__(
        self,
        lines: Iterator[str],
        source: str,
        reading: Reading,
        by_tabs: bool,
        *,
        has_quotes: bool,
        has_escapes: bool,
    ) -> None:
        first = next(lines, "")
        named = _SEPARATOR.fullmatch(first.strip())
        header = next(lines, "") if named else first
        delimiter = reading.delimiter
        if delimiter is None and named:
            delimiter = named[1]
        elif delimiter is None and by_tabs and "\t" in header:
            delimiter = "\t"
        elif delimiter is None:
            delimiter = _sniffed(header)
        line = header.rstrip("\r\n")
        self.names = _columns_without_header(line, line.split(delimiter), reading.fields)
        self._lines = itertools.chain([header] if header else [], lines)
        self._source = source
        self._has_escapes = has_escapes
        # lines before the header
        if named:
            self._before = 1
        else:
            self._before = 0
        self._is_by_tabs = delimiter == "\t"
        quoting = csv.QUOTE_MINIMAL
        escape = rf'\\"(?=[^"\r\n{re.escape(delimiter)}])'
        if not has_quotes:
            quoting = csv.QUOTE_NONE
            escape = r"(?!)"
        self._dialect = {
            "delimiter": delimiter,
            "escapechar": "\\" if has_escapes else None,
            "quoting": quoting,
            "skipinitialspace": has_quotes and f"{delimiter} " in header,
        }
        self._escape = re.compile(escape)
        self._met_escape = False
        self._null = re.compile(rf"(?:^|(?<={re.escape(delimiter)})) {{0,8}}\\N(?=[{re.escape(delimiter)}\r\n]|\Z)")

    def has_quoted_cells(self) -> bool:
        """Whether cells are quoted as in CSV, if they are separated by tabs.

        Then a quote that opens a cell of a whole row is closed in that row, and others are written twice.
        """
        if not self._is_by_tabs:
            return True
        width = 0
        is_quoted = False
        is_open = False  # in the last line, which is a whole row
        for line in self._lines:
            cells = line.rstrip("\r\n").split("\t")
            is_first = not width
            width = width or len(cells)
            is_whole = len(cells) == width
            if is_open and is_whole:
                return False
            is_quoted = is_quoted or is_open
            is_open = False
            for cell in filter(_QUOTE.match, cells):
                if _CLOSED.fullmatch(cell):
                    is_quoted = is_quoted or '""' in cell[1:-1] or (is_first and not self.names)
                elif not is_whole:
                    is_quoted = True
                elif not _OPEN.fullmatch(cell):
                    return False
                else:
                    is_open = True
        return is_quoted and not is_open

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows that are not blank, the header first, each with the number of its first line."""
        return _csv_rows(self._cleaned_lines(), self._source, self._dialect, self._before)

    def columns(self, fields: DocumentFields) -> tuple[list[str], set[str]] | None:
        """Return the names of all columns, and of those of numbers; None if it has escapes that were read without."""
        rows = self.rows()
        try:
            if self.names:
                number = 1
                names = list(self.names)
            else:
                number, names = next(rows, (1, []))
            _check_columns(names, fields, f"{self._source}:{number}: ")
            as_texts = {*fields.id_columns(names), fields.title or "title", *fields.text_names}
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


def _parquet_records(source: _Source) -> Iterator[tuple[str, Any]]:
    """Return an iterator over the rows of a file; its columns are checked before the first row is read."""
    path = source.file
    fields = source.reading.fields
    if not isinstance(path, (str, Path)):
        raise InvalidArgumentError(f"the format 'parquet' needs a file with a name; received {source.name}.")

    def needed(names: list[str]) -> list[str]:
        _check_columns(names, fields, f"{source.name}: ")
        return fields.columns_of(names)

    def records() -> Iterator[tuple[str, Any]]:
        for number, row in rows:
            if isinstance(row, InvalidArgumentError):
                yield f"row {number}", row
            else:
                yield f"row {number}", dict.fromkeys(fields.text_names, "") | row

    rows = parquet_rows(path, needed)
    return records()


def parquet_rows(
    path: str | Path, needed: Callable[[list[str]], list[str]] = list
) -> Iterator[tuple[int, dict[str, Any] | InvalidArgumentError]]:
    """Return an iterator over the numbered rows of a Parquet file, without nulls; `needed` chooses its columns."""
    file = str(Path(path).absolute())
    columns = needed(list(in_worker(read_columns, file)))

    def rows() -> Iterator[tuple[int, dict[str, Any] | InvalidArgumentError]]:
        try:
            for number, (row, fault) in enumerate(in_worker(read_rows, file, columns), 1):
                if fault is None:
                    yield number, row
                else:
                    yield number, InvalidArgumentError(fault)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path}: {error.fact}") from error

    return rows()


def read_columns(path: str) -> list[str]:
    """Return the names of a file's columns, in the process that reads."""
    with _parquet_file(path) as opened:
        return list(opened.schema_arrow.names)


def read_rows(path: str, columns: list[str]) -> Iterator[tuple[dict[str, Any] | None, str | None]]:
    """Yield the rows of a file in the process that reads, each with what is wrong with it."""
    with _parquet_file(path) as opened:
        for batch in opened.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns):
            for row in rows_of(batch):
                try:
                    # As in CSV: an empty cell is no value, so it is left out.
                    yield {key: json_value(value) for key, value in row.items() if value is not None}, None
                except InvalidArgumentError as error:
                    yield None, error.fact


@contextmanager
def _parquet_file(path: str) -> Iterator[Any]:
    with needs_extra("Reading Parquet files", "parquet"):
        import pyarrow
        from pyarrow import parquet
    with open_binary(Path(path)) as file:
        try:
            opened = parquet.ParquetFile(file)
        except (pyarrow.ArrowException, OSError) as error:
            raise InvalidArgumentError(f"{path} is not a Parquet file: {_reason(error)}.") from error
        try:
            yield opened
        except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: a time beyond Python's
            raise StorageError(f"cannot read {path}: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """Return the message of pyarrow, which may end with a full stop or a line end."""
    return cut(str(error).strip().rstrip("."), 200)


class _Format(NamedTuple):
    """A format of files of records: the ends of their names, what reads them, and how the first line begins."""

    suffixes: tuple[str, ...]
    read: Callable[[_Source], Iterator[tuple[int | str, Any]]]
    first_line: str | None = None

    def begins(self, line: str) -> bool:
        """Whether a line is the first one of such a file."""
        return self.first_line is not None and re.match(self.first_line, line, re.IGNORECASE) is not None


_FORMATS: dict[str, _Format] = {
    "jsonl": _Format((".jsonl", ".ndjson", ".json"), _json_records, r"[{\[]"),
    "csv": _Format((".csv",), _csv_records),
    "tsv": _Format((".tsv",), _tsv_records),
    "trec": _Format((".trec",), _trec_records, r"<DOC>"),
    "parquet": _Format((".parquet",), _parquet_records),
    "txt": _Format((".txt",), _text_records),
}
RECORD_FORMATS: dict[str, Any] = {suffix: name for name, each in _FORMATS.items() for suffix in each.suffixes}
_BEGIN = 1 << 16  # characters of a file by which its format is known


def format_by_contents(path: Path) -> str | None:
    """Return the format that the first line of a file has, else None; a file that cannot be read has none."""
    first = _first_line(_begin(path))[0]
    return next((name for name, each in _FORMATS.items() if each.begins(first)), None)


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
