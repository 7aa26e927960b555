"""Documents in all their forms: Python values, jsonl, csv, parquet, text, folders."""

from __future__ import annotations

import csv
import datetime
import decimal
import fnmatch
import itertools
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from latelier.errors import InvalidArgumentError, LatelierError, MissingExtraError, StorageError
from latelier.indexes import Id
from latelier.indexes.results import as_id, is_unicode
from latelier.indexes.store.rows import encode_metadata
from latelier.utils.checks import check_choice, cut, describe, short
from latelier.utils.files import (
    LONGEST_LINE,
    as_path,
    check_unicode,
    is_folder,
    number_or_text,
    open_binary,
    parse_json,
    read_text,
    text_lines,
)
from latelier.utils.misc import warn_caller


class InputDocument(NamedTuple):
    """One document to store; ``id`` is None if the user gave none, ``title`` is put before the text."""

    id: Id | None
    text: str
    metadata: dict[str, Any]
    title: str = ""

    def with_title(self, part: str | None = None) -> str:
        """Return the text, or a part of it, after the title; a part that begins with it as a heading stays as it is."""
        part = self.text if part is None else part
        if not self.title:
            return part
        title = re.escape(self.title)
        heading = rf"#+\s*{title}[ \t]*#*|{title}[ \t]*(?:\r\n|[\r\n]) {{0,3}}(?:=+|-+)"  # of Markdown
        if re.match(rf"\s*(?:{heading})[ \t]*(?:[\r\n]|\Z)", part):
            return part
        return f"{self.title} {part}".strip()


def parse_documents(documents: Any) -> Iterator[InputDocument]:
    """Yield documents while the iterable is read, see `Retriever.add`; the error for an invalid one has its position.

    Of a record, a dict under ``"metadata"`` is merged with the other keys.
    """
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        raise InvalidArgumentError(
            f"received documents of type {type(documents).__name__}; expected an iterable of texts, of (id, text) "
            "pairs, or of dicts with 'id' and 'text'. For one document, give a list; for a dict of texts, its .items()."
        )
    for position, item in enumerate(documents):
        try:
            document = parse_document(item)
            # The index makes the same check, but after the chunk is encoded; files are checked while they are read.
            if document.metadata and document is not item:
                encode_metadata(document.metadata, position if document.id is None else document.id)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"documents[{position}]: {error.fact}", advice=error.advice) from None
        yield document


def parse_document(item: Any) -> InputDocument:
    """Return one document of any form; errors do not name its position."""
    if isinstance(item, InputDocument):
        return item
    if isinstance(item, str):
        return InputDocument(None, _checked_text(item, None), {})
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return InputDocument(as_id(item[0]), _checked_text(item[1], item[0]), {})
    if not isinstance(item, Mapping):
        raise InvalidArgumentError(
            f"received {describe(item)}; expected a text, an (id, text) pair, or a dict with 'text'."
        )
    record = dict(item)
    if "text" not in record:
        raise InvalidArgumentError(f"it has no 'text'; its keys are {_listed(record)}.")
    if "id" in record and "_id" in record:
        raise InvalidArgumentError(
            f"it has both 'id' {short(record['id'])} and '_id' {short(record['_id'])}; give one."
        )
    name = next((name for name in ("id", "_id") if name in record), None)
    id_ = None if name is None else as_id(record.pop(name))
    text, title = record.pop("text"), record.pop("title", None)
    if title is not None and not isinstance(title, str):
        raise InvalidArgumentError(f"it has a title of type {type(title).__name__}; expected str.")
    document = InputDocument(id_, text, _merged_metadata(record), title or "")
    _checked_text(document.with_title() if isinstance(text, str) else text, id_)
    return document


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
    name = "the text" if id_ is None else f"the text of {short(id_)}"
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is of type {type(value).__name__}; expected str.")
    if not value.strip():
        raise InvalidArgumentError(f"{name} is empty: nothing to index.")
    check_unicode(value, name)
    return value


T = TypeVar("T")

# Records in which a field that need not be in each of them has to appear once: enough to tell a field that few records
# have from a misspelt one, before anything is encoded.
_FIRST_RECORDS = 100


class DocumentFields(NamedTuple):
    """The names of the fields that documents are made of.

    By default, the id is ``id`` or ``_id``, the text ``text``, the title ``title``, and all others are metadata. The
    fields of a text are joined by line ends.
    """

    id: str | None = None
    text: tuple[str, ...] = ()
    title: str | None = None
    metadata: tuple[str, ...] | None = None

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

    def select(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the keys ``id``, ``title``, ``text`` and ``metadata``, as `parse_document` takes it."""
        rest = dict(record)
        selected: dict[str, Any] = {}
        for name in (self.id, *self.text):
            if name is not None and name not in rest:
                raise InvalidArgumentError(f"it has no field {short(name)}; its fields are {_listed(rest)}.")
        for key in ("id", "_id") if self.id is None else (self.id,):
            if key in rest:
                selected[key if self.id is None else "id"] = rest.pop(key)
        if (title := rest.pop(self.title or "title", None)) is not None:
            selected["title"] = title
        selected["text"] = _joined({name: rest.pop(name, None) for name in self.text_names})
        if self.metadata is None:
            selected["metadata"] = _merged_metadata(rest)
        else:
            selected["metadata"] = {name: record[name] for name in self.metadata if name in record}
        return selected

    def checked_records(self, records: Iterable[tuple[int, T]], source: str) -> Iterator[tuple[int, T]]:
        """Yield numbered records, after a check that each named field is in one of the first hundred."""
        remaining = iter(records)
        first = list(itertools.islice(remaining, _FIRST_RECORDS))
        if first:
            keys = [key for _, record in first if isinstance(record, Mapping) for key in record]
            self.check_names(keys, f"{source}: its first records have")
        return itertools.chain(first, remaining)


def as_fields(id: Any, text: Any, title: Any, metadata: Any) -> DocumentFields:
    """Return the fields that a user names: single names, or for text and metadata several."""
    for name, value in (("id", id), ("title", title)):
        if not (value is None or (isinstance(value, str) and value)):
            raise InvalidArgumentError(f"received {describe(value)} as {name}; expected the name of a field, or None.")
    fields = DocumentFields(id, _names("text", text) or (), title, _names("metadata", metadata))
    roles = [name for name in (id, title, *fields.text) if name is not None]
    twice = next((name for name in roles if roles.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(f"received the field {short(twice)} for two of id, text and title; name it once.")
    return fields


def _names(option: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else (None,)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"received {describe(value)} as {option}; expected the name of a field or several.")
    return names


def _joined(parts: Mapping[str, Any]) -> Any:
    """Return the texts of several fields on lines of their own; None and empty ones are left out."""
    if len(parts) == 1:
        return "" if (only := next(iter(parts.values()))) is None else only
    for name, value in parts.items():
        if not (value is None or isinstance(value, str)):
            raise InvalidArgumentError(f"its field {short(name)} is of type {type(value).__name__}; expected str.")
    return "\n".join(value for value in parts.values() if value)


def _listed(record: Mapping[str, Any]) -> str:
    return cut(", ".join(map(short, record)) or "none", 200)


DocumentFormat: TypeAlias = Literal["auto", "jsonl", "csv", "parquet", "txt", "whole"]


def read_documents(
    path: str | os.PathLike[str],
    *,
    format: DocumentFormat = "auto",
    id: str | None = None,
    text: str | Sequence[str] | None = None,
    title: str | None = None,
    metadata: str | Sequence[str] | None = None,
    glob: str | Sequence[str] = (),
) -> Iterable[InputDocument]:
    r"""Return the documents of a file or a folder, which are read one by one while the result is iterated.

    Parameters
    ----------
    path
        A file: JSONL, CSV (tabs in ``.tsv``), Parquet, text or Markdown; ``.gz`` is decompressed, except for Parquet.
        Or a folder: each of its text and Markdown files is one document. The id is the path of the file relative to
        the folder, the title the first heading of a Markdown text, and metadata are ``path``, ``title`` and
        ``modified`` (UTC, ISO 8601). Hidden files and links to folders or out of the folder are left out. Files that
        cannot be read are skipped; a warning at the end, and the attribute `skipped`, name them.
    format
        ``"jsonl"``: a record per line, with ``text``, optionally ``id`` and ``title``, and metadata under any other
        key. ``"csv"``, ``"parquet"``: columns of these names. ``"txt"``: a text per line. ``"whole"``: the file is one
        text, its name the id. ``"auto"``: by the file's extension, where ``.md`` is ``"whole"``; if that is unknown,
        by the first line.
    id, text, title, metadata
        Names of the fields of JSONL, CSV and Parquet files to take instead: of the id, of the text (several are joined
        by line ends), of the title, and of the metadata. Without `metadata`, all other fields are metadata.
    glob
        Patterns of the files of a folder, such as ``"*.rst"``; default: text and Markdown files. A pattern with a slash
        is compared with the path relative to the folder, where ``*`` also matches slashes, and ``**/`` folders of any
        depth or none; others with the name.

    Returns
    -------
    iterable of InputDocument
        For `Retriever.add` and `Retriever.update`; of a file, it can be iterated once.

    Raises
    ------
    InvalidArgumentError
        If there is no such file or folder, or an option does not fit it; while reading, at a faulty line or row.
    MissingExtraError
        For a Parquet file, if pyarrow is not installed.
    StorageError
        If a file cannot be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("films.csv").write_text("no,plot,year\n7,A shark bites.,1975\n")
    >>> [film] = read_documents("films.csv", id="no", text="plot")
    >>> film.id, film.text, film.metadata
    ('7', 'A shark bites.', {'year': 1975})
    """
    source, fields = as_path(path), as_fields(id, text, title, metadata)
    check_choice("format", format, get_args(DocumentFormat))
    if not is_folder(source):
        if glob:
            raise InvalidArgumentError(f"received glob for {str(source)!r}, which is not a folder; name the file only.")
        return read_document_file(os.fspath(path), format, fields=fields)
    if fields.are_named or format not in ("auto", "whole"):
        received = "names of fields" if fields.are_named else f"format={format!r}"
        raise InvalidArgumentError(
            f"received {received} for the folder {str(source)!r}, of which each file is one text; give files of "
            "records one by one."
        )
    return DocumentFolder(source, glob)


_MARKDOWN = (".md", ".markdown")
_FORMATS: dict[str, DocumentFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "txt",
    **dict.fromkeys(_MARKDOWN, "whole"),
}
_LONGEST_MESSAGE = 500
_GZIP = b"\x1f\x8b"
_DEFAULT_FIELDS = DocumentFields()


def read_document_file(
    file: str | Path | BinaryIO,
    format: DocumentFormat = "auto",
    *,
    name: str | None = None,
    fields: DocumentFields = _DEFAULT_FIELDS,
) -> Iterator[InputDocument]:
    """Yield the documents of a path, a pipe, a device, or a file opened for bytes, which messages call `name`.

    A file that cannot be opened, or a table without the columns that are named, is an error before the first document.
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
        if format == "whole":
            return iter([_whole_file(Path(file))])
        return _documents(_parquet_records(file, source, fields), source, fields)
    lines = _lines(open_binary(file) if isinstance(file, (str, Path)) else file, source)
    return _documents(_line_records(lines, source, format, fields), source, fields)


def _documents(
    records: Iterator[tuple[int | str, Any]], source: str, fields: DocumentFields
) -> Iterator[InputDocument]:
    """Yield the documents of numbered lines or rows, checked; errors name the file and the line."""
    for number, item in records:
        with _located(source, number):
            if fields.are_named:
                if not isinstance(item, dict):
                    raise InvalidArgumentError("it is not a record, but fields are named; expected a JSON object.")
                item = fields.select(item)
            document = parse_document(item)
            # The index makes the same check, but after the chunk is encoded, and its error does not name the line.
            if document.metadata:
                encode_metadata(document.metadata, number if document.id is None else document.id)
        yield document


@contextmanager
def _located(source: str, number: int | str) -> Iterator[None]:
    """Put the file, and the line or row, before the message of an error."""
    try:
        yield
    except InvalidArgumentError as error:
        fact = f"{source}:{number}: {cut(error.fact, _LONGEST_MESSAGE)}"
        raise InvalidArgumentError(fact, advice=error.advice) from error


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
                "on standard input; name such a file, or decompress it first: gunzip -c FILE.gz"
            ) from error
        raise


def _line_records(
    lines: Iterator[str], source: str, format: DocumentFormat, fields: DocumentFields
) -> Iterator[tuple[int, Any]]:
    """Yield line numbers, and texts or what `parse_document` takes; `auto` looks at the first line with a text."""
    if format == "auto":
        head: list[str] = []
        for line in lines:
            head.append(line)
            if line.strip():
                break
        format = "jsonl" if head and head[-1].lstrip().startswith("{") else "txt"
        lines = itertools.chain(head, lines)
    if format == "csv":
        yield from _csv_records(lines, source, fields)
    elif format == "txt":
        yield from ((number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip())
    else:
        values = _json_lines(lines, source)
        yield from fields.checked_records(values, source) if fields.are_named else values


def _json_lines(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with _located(source, number):
                if line.strip() == "[" or line.lstrip().startswith("[{"):
                    raise InvalidArgumentError("a JSON array; expected one record per line (JSON Lines).")
                value = parse_json(line)
            yield number, value


def _csv_records(lines: Iterable[str], source: str, fields: DocumentFields) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows as dicts: empty cells are left out, and metadata that looks like a number becomes one."""
    rows = _csv_rows(lines, source, delimiter="\t" if ".tsv" in Path(source).suffixes else ",")
    names = next(rows, (1, []))[1]
    with _located(source, 1):
        _check_columns(names, fields)
    # Ids, titles and texts stay texts, whatever they look like.
    ids = {"id", "_id"} if fields.id is None else {fields.id}
    as_text = {*ids, fields.title or "title", *fields.text_names}
    for number, row in rows:
        if len(row) > len(names):
            raise InvalidArgumentError(f"{source}:{number}: more cells than the header has columns.")
        cells = {name: cell for name, cell in zip(names, row, strict=False) if cell}
        if "" in cells and fields.metadata is None:
            raise InvalidArgumentError(
                f"{source}:{number}: column {names.index('') + 1} has no name in the header, so its value "
                f"{short(cells[''])} cannot be stored; name the column, choose others with metadata, or "
                "leave it out (pandas: to_csv(index=False))."
            )
        values = {name: cell if name in as_text else number_or_text(cell) for name, cell in cells.items()}
        yield number, dict.fromkeys(fields.text_names, "") | values


def _csv_rows(lines: Iterable[str], source: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, the header first, each with the number of its first line."""
    own: list[str] = []  # the lines of the current row

    def kept() -> Iterator[str]:
        for line in lines:
            own.append(line)
            yield line

    reader = csv.reader(kept(), delimiter=delimiter)
    while True:
        own.clear()
        first = reader.line_num + 1
        # The csv module's limit on the length of a cell is global, so it is raised only while a row is read.
        before = csv.field_size_limit(LONGEST_LINE)
        try:
            row = next(reader, None)
            if row is None:
                return
            # A quote that is not closed takes in the rows up to the next quote, which only a strict reader reports.
            # Strict on all rows, it would also reject stray quotes within a line, which do no harm.
            if len(own) > 1 or own[0].count('"') % 2:
                list(csv.reader(own, delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise InvalidArgumentError(
                f"{source}:{first}: malformed CSV: {error}; in the row that begins here a quote is not closed, or "
                f"stands within a cell (write it twice), or a cell has more than {LONGEST_LINE:,} characters."
            ) from error
        finally:
            csv.field_size_limit(before)
        if row:
            yield first, row


def _check_columns(names: list[str], fields: DocumentFields) -> None:
    """Check that no column is repeated, and that there is a column of the text and those that are named."""
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        raise InvalidArgumentError(f"the header has the column {short(name)} {count:,} times.")
    fields.check_names(names, "it has")


# Rows converted to Python objects at once; a row group is read page by page.
_ROWS = 1024


def _parquet_records(path: str | Path, source: str, fields: DocumentFields) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return an iterator over the rows of a file; its columns are checked before the first row is read."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Reading Parquet files", "parquet") from error
    file = open_binary(path)
    try:
        opened = parquet.ParquetFile(file)
        names = list(opened.schema_arrow.names)
    except (pyarrow.ArrowException, OSError) as error:
        file.close()
        raise InvalidArgumentError(f"{path} is not a Parquet file: {_reason(error)}.") from error
    try:
        _check_columns(names, fields)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}: {cut(error.fact, _LONGEST_MESSAGE)}", advice=error.advice) from error
    wanted = None if fields.columns is None else [name for name in names if name in fields.columns]

    def records() -> Iterator[tuple[str, dict[str, Any]]]:
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
                    with _located(source, f"row {number}"):
                        # As in CSV: an empty cell is no value, so it is left out.
                        record = {key: _json_value(value) for key, value in row.items() if value is not None}
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
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {str(key): _json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(each) for each in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else _json_value(float(value))
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError("it holds bytes that are not UTF-8 text.") from error
    return str(value)  # a UUID, an interval


def _reason(error: Exception) -> str:
    """Return the message of pyarrow, which may end with a full stop or a line end."""
    return cut(str(error).strip().rstrip("."), 200)


_SUFFIXES = (".txt", *_MARKDOWN)
_MOST_NAMED = 10  # skipped files in a warning
_FOLDERS = re.compile(r"(?:^|(?<=/))(?:\*\*/)+")


class DocumentFolder:
    """The files of a folder and its sub-folders, each as one document; see `read_documents`.

    The list of files is made once; `skipped` holds the path and the reason of each file that was skipped so far.
    """

    def __init__(self, folder: Path, glob: str | Sequence[str] = ()) -> None:
        patterns = [glob] if isinstance(glob, str) else glob
        if not isinstance(patterns, (list, tuple)) or not all(isinstance(each, str) and each for each in patterns):
            raise InvalidArgumentError(f"received {describe(glob)} as glob; expected patterns such as '*.rst'.")
        self.folder, self._glob = folder, tuple(patterns)
        # No path holds the character that stands for **/. The shortest match comes first, since `fnmatch` tries no
        # other one of what is between two asterisks.
        translated = [fnmatch.translate(_FOLDERS.sub("\0", each)).replace("\0", "(?:.*?/)??") for each in patterns]
        self._patterns = [("/" in each, re.compile(regex)) for each, regex in zip(patterns, translated, strict=True)]
        self._found: list[Path] = []
        self.skipped: list[tuple[str, str]] = []
        self._list()
        self._listed = len(self.skipped)
        self._found.sort(key=lambda path: path.relative_to(folder).parts)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[InputDocument]:
        del self.skipped[self._listed :]  # those of an earlier iteration
        for path in self._found:
            try:
                document = _whole_file(path, self.folder)
            except LatelierError as error:  # one file that cannot be read does not stop the reading of thousands
                self._skip(path, cut(str(error).removeprefix(f"{path} "), 200))
            else:
                yield document
        if not self._found:
            wanted = ", ".join(map(short, self._glob)) or ".txt, .md and .markdown"
            warn_caller(f"no file of {self.folder} is read: looked for {wanted} in it and its sub-folders.")
        if self.skipped:
            # A line end in the name of a file must not look like another file.
            shown = [(name if name.isprintable() else short(name), why) for name, why in self.skipped[:_MOST_NAMED]]
            more = f"\n  and {len(self.skipped) - _MOST_NAMED:,} more" if len(self.skipped) > _MOST_NAMED else ""
            named = "".join(f"\n  {name}: {why}" for name, why in shown)
            warn_caller(f"skipped {len(self.skipped):,} files of {self.folder}:{named}{more}")

    def _list(self) -> None:
        """List the files below the folder; an error of the folder itself is raised, not recorded."""
        try:
            waiting = [[*os.scandir(self.folder)]]
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise InvalidArgumentError(f"there is no folder {str(self.folder)!r}.") from error
        except OSError as error:
            raise StorageError(f"cannot list {self.folder}: {error}.") from error
        while waiting:
            for entry in waiting.pop():
                path = Path(entry.path)
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    try:
                        waiting.append([*os.scandir(path)])
                    except OSError as error:
                        self._skip(path, str(error))
                elif self._is_wanted(path) or (entry.is_symlink() and path.is_dir()):
                    reason = self._why_not(path, entry.is_symlink())
                    if reason is None:
                        self._found.append(path)
                    else:
                        self._skip(path, reason)

    def _why_not(self, path: Path, is_link: bool) -> str | None:
        """Return why a path is not read; None for a regular file, or a link to one within the folder."""
        try:
            target = path.resolve(strict=True) if is_link else path
            kind = path.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
            return f"a link that leads nowhere: {error}" if is_link else str(error)
        if is_link and stat.S_ISDIR(kind):
            return "a link to a folder"
        if is_link and not target.is_relative_to(self.folder.resolve()):
            return "a link to a file outside of the folder"
        return None if stat.S_ISREG(kind) else "not a regular file"

    def _is_wanted(self, path: Path) -> bool:
        if not self._patterns:
            return path.suffix.lower() in _SUFFIXES
        relative = path.relative_to(self.folder).as_posix()
        return any(pattern.match(relative if has_slash else path.name) for has_slash, pattern in self._patterns)

    def _skip(self, path: Path, reason: str) -> None:
        self.skipped.append((path.relative_to(self.folder).as_posix(), reason))


def _whole_file(path: Path, folder: Path | None = None) -> InputDocument:
    """Return the document that a file is; its id is the path relative to `folder`, or to its own folder."""
    name = path.relative_to(folder or path.parent).as_posix()
    if not is_unicode(name):
        raise InvalidArgumentError(f"the name of {str(path)!r} is not valid Unicode, so it cannot be an id; rename it.")
    text = read_text(path)
    if not text.strip():
        raise InvalidArgumentError(f"{path} is empty: nothing to index.")
    try:
        changed = datetime.datetime.fromtimestamp(int(path.stat().st_mtime), datetime.timezone.utc)
    except (OSError, ValueError, OverflowError) as error:
        raise StorageError(f"cannot read {path}: {error}.") from error
    metadata: dict[str, Any] = {"path": name, "modified": changed.strftime("%Y-%m-%dT%H:%M:%SZ")}
    is_markdown = Path(path.name.removesuffix(".gz")).suffix.lower() in _MARKDOWN
    title = markdown_title(text) if is_markdown else ""
    return InputDocument(name, text, metadata | ({"title": title} if title else {}), title)


_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*")
# Code, items of a list, quotes, tables and HTML: dashes below are no underline.
_NO_PARAGRAPH = re.compile(r"    |\t| {0,3}(?:[-*+][ \t]|\d+[.)][ \t]|[>|<])")


def markdown_title(text: str) -> str:
    """Return the first heading of a Markdown text, of ``#`` or underlined; empty if there is none.

    Code blocks and YAML front matter are skipped. A paragraph of several lines is no title, even if it is underlined.
    """
    lines = text.splitlines()
    if lines and lines[0].rstrip() == "---":
        end = next((i for i, line in enumerate(lines) if i and line.rstrip() in ("---", "...")), -1)
        lines = lines[end + 1 :]
    fence = ""
    block: list[str] = []  # the lines since the last blank one
    for line in lines:
        opened = _FENCE.match(line)
        if opened and not fence:
            fence = opened[1]
        elif opened and opened[1].startswith(fence):
            fence = ""
        elif not fence and (heading := _HEADING.fullmatch(line)) and heading[1]:
            return heading[1]
        elif not fence and len(block) == 1 and _UNDERLINE.fullmatch(line) and _is_paragraph(block[0]):
            return block[0].strip()
        block = [*block[:1], line] if line.strip() and not fence and not opened else []
    return ""


def _is_paragraph(line: str) -> bool:
    return any(map(str.isalnum, line)) and not _NO_PARAGRAPH.match(line)
