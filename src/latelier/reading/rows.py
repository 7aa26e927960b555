"""Rows of files and streams: one reader of JSON, tables with a delimiter, columns, TREC's documents and Parquet.

What a row is taken for, a document, a judgement or an example, is the matter of those who read rows; `NAMES` says under
which names its values come.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

from latelier.errors import InvalidArgumentError, StorageError
from latelier.reading.process import in_worker
from latelier.utils.checks import cut, short
from latelier.utils.files import LONGEST_LINE, is_file, open_binary, parse_json, text_lines
from latelier.utils.misc import needs_extra
from latelier.utils.values import plain_value

RowFormat: TypeAlias = Literal["jsonl", "csv", "tsv", "columns", "trec", "parquet", "txt"]
OnProblem: TypeAlias = Literal["stop", "skip"]
"""What becomes of rows that cannot be read: an error that names them, or they are left out and named."""

# Under which names the values of rows come, in whatever case; of several, the first is taken. A record with an `id` and
# a `document_id` is a part of a document, and the second is the document that it is of.
NAMES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "_id"),
    "document_id": (
        "docno",
        "docid",
        "doc_id",
        "pid",
        "document_id",
        "document-id",
        "corpus_id",
        "corpus-id",
        "doc-id",
    ),
    "query_id": ("query_id", "query-id", "qid", "q_id"),
    "text": ("text", "contents"),
    "title": ("title",),
    "query": ("query", "anchor", "question"),
    "positive": ("positive", "pos", "document", "answer", "positive_passages"),
    "negative": ("negative", "negatives", "neg", "negative_passages"),
    "scores": ("scores", "score", "labels", "label"),
    "score": ("score",),
    "rank": ("rank",),
    "relevance": ("relevance", "score", "rel", "label", "grade"),
    "relevant": ("answer_pids", "gold_ids"),
    "excluded": ("excluded_ids", "negative_ids"),
    # where a row is a judgement, so that these are ids as well
    "judged_query": ("query", "topic", "q"),
    "judged_document": ("id", "document", "doc", "d"),
}


@cache
def names_of(*roles: str) -> tuple[str, ...]:
    """Return the names of values that have one of some roles, those of the first role first."""
    return tuple(name for role in roles for name in NAMES[role])


def value_of(values: Mapping[Any, Any], *roles: str) -> Any:
    """Return the first value of a row that has one of some roles; None if there is none."""
    return next((values[name] for name in names_of(*roles) if values.get(name) is not None), None)


class Row(NamedTuple):
    """A row: where it stands (``FILE:LINE``), and a dict, or the cells of a table without names, or a text."""

    place: str
    values: Any


class Fault(NamedTuple):
    """A row that cannot be read: where it stands, and why."""

    place: str
    reason: str


class Header(NamedTuple):
    """The names of a table's columns, none if its rows are lists of cells; and whether its first line is a row."""

    names: Sequence[str]
    is_row: bool = False


HeaderOf: TypeAlias = Callable[[list[str]], Header]
"""What the cells of a first line say about a table."""


class Rows:
    """The rows of a source, read when they are iterated.

    `source`: its name; `columns`: those of its table, which stand at `place`; None if each row has names of its own or
    none.
    `has_header`: whether a first line names the columns.
    """

    def __init__(
        self,
        source: str,
        read: Callable[[Collection[str] | None], Iterator[Row | Fault]],
        columns: list[str] | None = None,
        place: str = "",
        *,
        has_header: bool = True,
    ) -> None:
        repeated, count = next(iter(Counter(columns).most_common(1)), ("", 0))
        if count > 1:
            raise InvalidArgumentError(f"{place}: the header has the column {short(repeated)} {count:,} times.")
        self.source = source
        self._read = read
        self.columns = columns
        self.place = place
        self.has_header = has_header

    def __iter__(self) -> Iterator[Row | Fault]:
        return self._read(None)

    def only(self, columns: Collection[str]) -> Iterator[Row | Fault]:
        """Read some of the columns, as far as the format allows it; other values may be there."""
        return self._read(columns)


def checked_rows(rows: Rows) -> Iterator[Row]:
    """Yield rows, at least one; one that cannot be read is an error."""
    is_empty = True
    for row in rows:
        is_empty = False
        if isinstance(row, Fault):
            raise InvalidArgumentError(f"{row.place}: {row.reason}")
        yield row
    if is_empty:
        raise InvalidArgumentError(f"{rows.source} is empty.")


class Source(NamedTuple):
    """A path, a pipe, a device, an open file or its contents, and the name of it in messages.

    `encoding`, `delimiter`: None: as it is written. `has_comments`: whether lines that begin with # are none.
    `on_open` is told of each file that is opened for reading lines.
    """

    file: str | Path | BinaryIO | bytes
    name: str
    encoding: str | None = None
    delimiter: str | None = None
    has_comments: bool = False
    on_open: Callable[[BinaryIO], None] | None = None

    def lines(self) -> Iterator[str]:
        """Yield the lines of a text; the error for one that is gzip but has another name says so."""
        file = self.file
        if isinstance(file, (str, Path)):
            opened = open_binary(file)
        elif isinstance(file, bytes):
            opened = io.BytesIO(file)
        else:
            opened = file
        if self.on_open is not None:
            self.on_open(opened)
        is_first = True
        is_compressed = self.name.endswith(".gz")
        try:
            for line in text_lines(opened, self.name, compressed=is_compressed, encoding=self.encoding or "utf-8-sig"):
                is_first = False
                if self.has_comments and line.lstrip().startswith("#"):
                    line = "\n"
                yield line
        except InvalidArgumentError as error:
            cause = error.__cause__
            if is_first and isinstance(cause, UnicodeDecodeError) and cause.object.startswith(_GZIP):
                raise InvalidArgumentError(
                    f"{self.name} is compressed with gzip, which is decompressed only in a file whose name ends in "
                    ".gz, not on standard input; name such a file, or decompress it first: gunzip -c FILE.gz"
                ) from error
            raise

    def held(self) -> Source:
        """Return what can be read more than once: contents in place of a pipe or an open file."""
        file = self.file
        if isinstance(file, bytes) or (isinstance(file, (str, Path)) and is_file(Path(file))):
            return self
        if isinstance(file, (str, Path)):
            file = open_binary(file)
        with file:
            return self._replace(file=file.read())


_GZIP = b"\x1f\x8b"


def first_line_names(cells: list[str]) -> Header:
    """Return the header of a table whose first line always names the columns."""
    return Header(cells)


def read_rows(source: Source, formats: Sequence[RowFormat], header_of: HeaderOf = first_line_names) -> Rows:
    """Return the rows of a source in the first of some formats that its name or first line has, else in the last.

    A table is read several times: how it is written is known at its end.
    """
    if {"csv", "tsv"} & {*formats}:
        source = source.held()
    chosen, lines = _choose(source, formats)
    if chosen == "parquet":
        return _parquet_rows(source)
    if chosen in ("csv", "tsv"):
        return _table_rows(source, header_of, by_tabs=chosen == "tsv")
    if lines is None:
        lines = source.lines()
    if chosen == "columns":
        return _column_rows(source, lines, header_of)
    if chosen == "jsonl":
        return Rows(source.name, lambda _: _placed(source.name, _json_values(lines, source.name)))
    if chosen == "trec":
        return Rows(source.name, lambda _: _placed(source.name, _trec_records(lines)))
    texts = ((number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip())
    return Rows(source.name, lambda _: _placed(source.name, texts))


def _placed(name: str, values: Iterable[tuple[int, Any]]) -> Iterator[Row | Fault]:
    """Yield numbered values as rows, and errors among them as faults."""
    for number, value in values:
        if isinstance(value, InvalidArgumentError):
            yield Fault(f"{name}:{number}", value.fact)
        else:
            yield Row(f"{name}:{number}", value)


# An object or an array, rather than a text in brackets or an id in braces.
_JSON = re.compile(r"""\s*(?:\{\s*(?:["'}]|$)|\[\s*(?:[\[\]{"'\d.tfnNI-]|$))""")
_TREC = re.compile(r"\s*<DOC>", re.IGNORECASE)
_COMMAS = re.compile(r"[^\s,]+(?:,[^\s,]+)+\s*")


def _choose(source: Source, formats: Sequence[RowFormat]) -> tuple[RowFormat, Iterator[str] | None]:
    """Return the format of a source, and its lines if their first was looked at."""
    first = ""
    lines = None
    for chosen in formats[:-1]:
        if chosen == "parquet":
            if source.name.endswith(".parquet"):
                return chosen, lines
            continue
        if lines is None:
            first, lines = first_line(source.lines())
        if _fits(chosen, first, source.name):
            return chosen, lines
    return formats[-1], lines


def _fits(format: RowFormat, first: str, name: str) -> bool:
    """Whether a format is that of a first line, or of a name."""
    if format == "jsonl":
        return _JSON.match(first) is not None
    if format == "trec":
        return _TREC.match(first) is not None
    if format == "csv":
        return ".csv" in Path(name).suffixes or _COMMAS.fullmatch(first) is not None
    if format == "tsv":
        return "\t" in first
    return first.split(maxsplit=2)[1:2] in (["0"], ["Q0"])  # columns of TREC


def begins(line: str) -> RowFormat | None:
    """Return the format of records that a first line has."""
    return next((format for format in ("jsonl", "trec") if _fits(format, line, "")), None)


def first_line(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """Return the first line that is not blank, without its end, or an empty one; and all lines."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    first = "".join(head[-1:]).strip(" \r\n")
    return first, itertools.chain(head, lines)


# JSON.

_MOST_CHARACTERS = 1 << 28  # of a file whose records are one JSON value


def _json_values(lines: Iterator[str], name: str) -> Iterator[tuple[int, Any]]:
    """Yield the values of JSON lines, or of one array or objects over several lines; errors as values too.

    A line of its own may be a list, such as a pair of an id and a text; in a file that is called .json, an array holds
    records.
    """
    first, lines = first_line(lines)
    is_array = name.removesuffix(".gz").endswith(".json")
    value = None
    try:
        if first:
            value = parse_json(first)
        is_whole = isinstance(value, list) and (is_array or all(isinstance(each, (dict, list)) for each in value))
    except InvalidArgumentError:
        is_whole = first.startswith(("[", "{"))
    if is_whole:
        read = _held(lines)
        try:
            value = parse_json("".join(read))
        except InvalidArgumentError:  # JSON lines of which the first is faulty, or objects over several lines
            lines = iter(re.split(r"(?m)^(?=\{)", "".join(read)) if first == "{" else read)
        else:
            if isinstance(value, list):
                yield from enumerate(value, start=1)
            else:
                yield 1, value
            return
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except InvalidArgumentError as error:
                yield number, error


def _held(lines: Iterable[str]) -> list[str]:
    """Return the lines of one value."""
    read = []
    size = 0
    for line in lines:
        size += len(line)
        if size > _MOST_CHARACTERS:
            raise InvalidArgumentError(
                f"it is one value of more than {_MOST_CHARACTERS:,} characters; write one record a line (.jsonl)."
            )
        read.append(line)
    return read


# Columns between white space or tabs, in which a quote is a letter.


def _column_rows(source: Source, lines: Iterator[str], header_of: HeaderOf) -> Rows:
    first, lines = first_line(lines)
    if not first:
        raise InvalidArgumentError(f"{source.name} is empty.")
    if "\t" in first:
        separator: str | None = "\t"
    else:
        separator = None
    numbered = ((number, line.strip("\r\n").split(separator)) for number, line in enumerate(lines, 1) if line.strip())
    return _named_rows(source.name, numbered, header_of, is_exact=True)


def _named_rows(
    source: str, rows: Iterator[tuple[int, list[str]]], header_of: HeaderOf, *, is_exact: bool = False
) -> Rows:
    """Return cells as rows with the names of their columns; empty cells are left out.

    `is_exact`: they are not, and a row with fewer cells than there are columns is faulty too.
    """
    number, first = next(rows, (1, []))
    try:
        header = header_of([cell.strip() for cell in first])
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}:{number}: {error.fact}", advice=error.advice) from error
    names = list(header.names)
    if header.is_row:
        rows = itertools.chain([(number, first)], rows)

    def read(_: Collection[str] | None) -> Iterator[Row | Fault]:
        for number, cells in rows:
            place = f"{source}:{number}"
            if not names:
                yield Row(place, cells)
            elif len(cells) > len(names) or (is_exact and len(cells) != len(names)):
                yield Fault(
                    place, f"{len(cells)} cell{'s' * (len(cells) != 1)}; the first line has {len(names)} columns."
                )
            else:
                yield Row(place, {name: cell for name, cell in zip(names, cells, strict=False) if cell or is_exact})

    columns: list[str] | None = names
    if header.is_row and not names:
        columns = None
    return Rows(source, read, columns, f"{source}:{number}", has_header=not header.is_row)


# Tables with a delimiter.

_DELIMITERS = (",", ";", "\t", "|")
_SEPARATOR = re.compile(r"sep=(.)")  # Excel names the delimiter on a first line of its own


class _Table(NamedTuple):
    """How a table is written.

    `lines_before`: its header; `is_quoted`: cells are quoted as in CSV, else a quote is a letter; `has_escapes`: a
    quote within quotes is written as a backslash and a quote, as MySQL and others do, not twice.
    """

    source: Source
    delimiter: str
    lines_before: int
    is_quoted: bool
    has_escapes: bool
    has_spaces: bool

    @classmethod
    def of(cls, source: Source, header_of: HeaderOf, by_tabs: bool) -> _Table:
        """Read a table to find out; one that is not UTF-8 may have the encoding of spreadsheets on Windows."""
        try:
            return cls._of(source, header_of, by_tabs)
        except InvalidArgumentError as error:
            cause = error.__cause__
            if source.encoding is not None or not isinstance(cause, UnicodeDecodeError) or cause.encoding != "utf-8":
                raise
            if b"\0" in cause.object or cause.object.startswith(_GZIP):
                raise
            return cls._of(source._replace(encoding="cp1252"), header_of, by_tabs)

    @classmethod
    def _of(cls, source: Source, header_of: HeaderOf, by_tabs: bool) -> _Table:
        lines = source.lines()
        header = next(lines, "")
        named = _SEPARATOR.fullmatch(header.strip())
        if named:
            header = next(lines, "")
        delimiter = source.delimiter
        if delimiter is None and named:
            delimiter = named[1]
        elif delimiter is None and by_tabs and "\t" in header:
            delimiter = "\t"
        elif delimiter is None:
            delimiter = _sniffed(header)
        escape = re.compile(rf'\\"(?=[^"\r\n{re.escape(delimiter)}])')
        quotes = _Quotes(delimiter)
        if delimiter == "\t":
            cells = [cell.strip('"') for cell in header.rstrip("\r\n").split("\t")]
            quotes.add(header, is_header=not header_of(cells).is_row)
        has_escapes = False
        for line in itertools.chain([header], lines):
            if '"' in line:
                has_escapes = has_escapes or escape.search(line) is not None
            if delimiter == "\t" and line is not header:
                quotes.add(line)
        is_quoted = delimiter != "\t" or quotes.are_those_of_csv
        has_spaces = is_quoted and f"{delimiter} " in header
        return cls(source, delimiter, int(bool(named)), is_quoted, is_quoted and has_escapes, has_spaces)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows that are not blank, each with the number of its first line, which errors name."""
        dialect: dict[str, Any] = {
            "delimiter": self.delimiter,
            "escapechar": "\\" if self.has_escapes else None,
            "quoting": csv.QUOTE_MINIMAL if self.is_quoted else csv.QUOTE_NONE,
            "skipinitialspace": self.has_spaces,
        }
        own: list[str] = []  # the lines of the current row

        def kept() -> Iterator[str]:
            for line in self._cleaned_lines():
                own.append(line)
                yield line

        reader = csv.reader(kept(), **dialect)
        while True:
            own.clear()
            first = self.lines_before + reader.line_num + 1
            # The csv module's limit on the length of a cell is global, so it is raised only while a row is read.
            limit = csv.field_size_limit(LONGEST_LINE)
            try:
                row = next(reader, None)
                if row is None:
                    return
                # A quote that is not closed takes in the rows up to the next quote, which only a strict reader reports.
                # Strict on all rows, it would also reject stray quotes within a line, which do no harm.
                if self.is_quoted and (len(own) > 1 or own[0].count('"') % 2):
                    list(csv.reader(own, strict=True, **dialect))
            except csv.Error as error:
                raise InvalidArgumentError(
                    f"{self.source.name}:{first}: malformed CSV: {error}; in the row that begins here a quote is not "
                    "closed, or stands within a cell (write it twice), or a cell has more than "
                    f"{LONGEST_LINE:,} characters."
                ) from error
            finally:
                csv.field_size_limit(limit)
            if row:
                yield first, row

    def _cleaned_lines(self) -> Iterator[str]:
        """Yield the lines from the header on, without the NULL of databases."""
        delimiter = re.escape(self.delimiter)
        null = re.compile(rf"(?:^|(?<={delimiter})) {{0,8}}\\N(?=[{delimiter}\r\n]|\Z)")
        for line in itertools.islice(self.source.lines(), self.lines_before, None):
            if "\\N" in line:
                yield null.sub("", line)
            else:
                yield line


class _Quotes:
    """Whether the cells of a table with tabs are quoted as in CSV.

    Then a quote that opens a cell of a whole row is closed in that row, and others are written twice.
    """

    _CLOSED = re.compile(r'"(?:[^"]|"")*"')
    _OPEN = re.compile(r'"(?:[^"]|"")*')

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._width = 0
        self._is_quoted = False
        self._is_open = False  # in the last line, which is a whole row
        self._are_letters = False

    @property
    def are_those_of_csv(self) -> bool:
        """What the lines so far say."""
        return self._is_quoted and not self._is_open and not self._are_letters

    def add(self, line: str, *, is_header: bool = False) -> None:
        """Look at the next line."""
        if not self._width:
            self._width = line.count(self._delimiter) + 1
        if self._are_letters or not ('"' in line or self._is_open):
            return
        cells = line.rstrip("\r\n").split(self._delimiter)
        is_whole = len(cells) == self._width
        if self._is_open and is_whole:
            self._are_letters = True
            return
        self._is_quoted = self._is_quoted or self._is_open
        self._is_open = False
        for cell in cells:
            if not cell.startswith('"'):
                continue
            if self._CLOSED.fullmatch(cell):
                self._is_quoted = self._is_quoted or '""' in cell[1:-1] or is_header
            elif not is_whole:
                self._is_quoted = True
            elif not self._OPEN.fullmatch(cell):
                self._are_letters = True
            else:
                self._is_open = True


def _sniffed(header: str) -> str:
    """Return the delimiter of a header: the one that gives most columns."""
    return max(_DELIMITERS, key=lambda each: len(next(csv.reader([header[:100_000]], delimiter=each), [])))


def _table_rows(source: Source, header_of: HeaderOf, *, by_tabs: bool) -> Rows:
    table = _Table.of(source, header_of, by_tabs)
    rows = _named_rows(source.name, table.rows(), header_of)

    def read(_: Collection[str] | None) -> Iterator[Row | Fault]:
        return iter(_named_rows(source.name, table.rows(), header_of))

    return Rows(source.name, read, rows.columns, rows.place, has_header=rows.has_header)


# TREC's SGML.

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


def _trec_records(lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
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


# Parquet.

_ROWS_AT_ONCE = 1024  # converted to Python objects; a row group is read page by page


def _parquet_rows(source: Source) -> Rows:
    """Return the rows of a Parquet file, without nulls; its columns are known before the first row is read."""
    if not isinstance(source.file, (str, Path)):
        raise InvalidArgumentError(f"the format 'parquet' needs a file with a name; received {source.name}.")
    file = str(Path(source.file).absolute())
    name = source.name
    columns = list(in_worker(parquet_columns, file))

    def read(only: Collection[str] | None) -> Iterator[Row | Fault]:
        wanted = [column for column in columns if only is None or column in only]
        try:
            for number, (row, fault) in enumerate(in_worker(parquet_values, file, wanted), 1):
                if fault is None:
                    yield Row(f"{name}:row {number}", row)
                else:
                    yield Fault(f"{name}:row {number}", fault)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}: {error.fact}") from error

    return Rows(name, read, columns, name)


def parquet_columns(path: str) -> list[str]:
    """Return the names of a file's columns, in the process that reads."""
    with _parquet_file(path) as opened:
        return list(opened.schema_arrow.names)


def parquet_values(path: str, columns: list[str]) -> Iterator[tuple[dict[str, Any] | None, str | None]]:
    """Yield the rows of a file in the process that reads, each with what is wrong with it."""
    with _parquet_file(path) as opened:
        for batch in opened.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
            for row in rows_of_batch(batch):
                try:
                    # As in CSV: an empty cell is no value, so it is left out.
                    yield {key: plain_value(value) for key, value in row.items() if value is not None}, None
                except InvalidArgumentError as error:
                    yield None, error.fact


def rows_of_batch(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a record batch of pyarrow as Python objects."""
    import pyarrow

    columns = []
    for column in batch.columns:
        kind = column.type
        if pyarrow.types.is_timestamp(kind) and kind.unit == "ns":  # datetime has microseconds: rounded down
            column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
        columns.append(column.to_pylist())
    return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def rows_of_table(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in memory that pyarrow reads, a few at once."""
    import pyarrow

    if hasattr(table, "to_batches"):
        found = table.to_batches()
    else:
        found = pyarrow.RecordBatchReader.from_stream(table)
    for batch in found:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield from rows_of_batch(batch.slice(start, _ROWS_AT_ONCE))


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


def parquet_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split of a data set as the Hugging Face Hub names them, in order."""
    names = (f"{split}.parquet", f"{split}-*.parquet", f"{split}/*.parquet")
    return sorted({path for begin in ("", "data/", "default/") for name in names for path in folder.glob(begin + name)})
