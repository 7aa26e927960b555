"""Jsonl, csv, parquet, text, folders.

The id is the path of a file, its title the first heading of a Markdown text.
"""

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

from latelier.errors import InvalidArgumentError, LatelierError, MissingExtraError, StorageError
from latelier.indexes.store.rows import encode_metadata
from latelier.indexes.values import is_unicode
from latelier.retrieve.documents import DocumentFields, InputDocument, as_fields, parse_document
from latelier.utils.checks import check_choice, cut, describe, short
from latelier.utils.files import (
    LONGEST_LINE,
    as_path,
    is_folder,
    number_or_text,
    open_binary,
    parse_json,
    read_text,
    text_lines,
)
from latelier.utils.misc import warn_caller

__all__ = [
    "DocumentFolder",
    "DocumentFormat",
    "check_format",
    "csv_rows",
    "json_value",
    "markdown_title",
    "parquet_rows",
    "read_document_file",
    "read_documents",
    "whole_file",
]


def csv_rows(
    lines: Iterable[str], source: str, *, delimiter: str = ","
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    r"""Read the header of a CSV file; return the names of its columns, and an iterator over its rows.

    `lines`: the lines, with their line ends. `delimiter`: the character between cells. Returns: the names of the
    columns; none for an empty file. Returns: the number of the line where a row begins, and its cells by the names of
    their columns. A row may have fewer cells than there are columns. Raises `InvalidArgumentError`: also while rows are
    read: if a cell is too long, a row has more cells than there are columns, or a quote is not closed.

    Examples
    --------
    >>> lines = ["id,text\n", '1,"two\n', 'lines"\n', "\n", "2,one\n"]
    >>> names, rows = csv_rows(lines, "a.csv")
    >>> names, list(rows)
    (['id', 'text'], [(2, {'id': '1', 'text': 'two\nlines'}), (5, {'id': '2', 'text': 'one'})])
    >>> lines = ["id,text\n", '1,"not closed\n', "2,one\n"]
    >>> list(csv_rows(lines, "a.csv")[1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: a.csv:2: malformed CSV: a quote in the row that begins here is not closed...
    """
    rows = _rows(_RowLines(lines), source, delimiter)
    _, names = next(rows, (1, []))

    def records() -> Iterator[tuple[int, dict[str, str]]]:
        for number, row in rows:
            if len(row) > len(names):
                raise InvalidArgumentError(f"{source}:{number}: more cells than the header has columns.")
            yield number, dict(zip(names, row, strict=False))

    return names, records()


class _RowLines:
    """The lines of a file as an iterator that keeps those of the current row.

    `row`: the lines of the current row so far; `count`: number of lines read; `has_ended`: whether there are no more.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.row: list[str] = []
        self.count = 0
        self.has_ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.has_ended = True
            raise
        self.count += 1
        self.row.append(line)
        return line


def _rows(lines: _RowLines, source: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows that are not blank, each with the number of its first line."""
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        lines.row = []
        first = lines.count + 1
        # The csv module's limit on the length of a cell is global, so it is raised only while a row is read.
        before = csv.field_size_limit(LONGEST_LINE)
        try:
            row = next(reader, None)
            if row:
                _check_quotes(lines, f"{source}:{first}", delimiter)
        except csv.Error as error:
            raise InvalidArgumentError(
                f"{source}:{first}: malformed CSV: {error}; a cell has at most {LONGEST_LINE:,} characters. Is a quote "
                "not closed?"
            ) from error
        finally:
            csv.field_size_limit(before)
        if row is None:
            return
        if row:
            yield first, row


def _check_quotes(lines: _RowLines, where: str, delimiter: str) -> None:
    """Check the quotes of a row of several lines: a cell without its closing quote takes in the rows after it.

    The csv module goes on to the next quote, or to the end of the file, and reports it only if it is strict. Strict on
    all rows, it would also reject stray quotes in rows of one line, which do no harm.
    """
    if len(lines.row) == 1 and not lines.has_ended:
        return
    try:
        list(csv.reader(lines.row, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InvalidArgumentError(
            f"{where}: malformed CSV: a quote in the row that begins here is not closed, or stands within a cell "
            f"({error}); close it, and write a quote within a cell twice."
        ) from error


# Rows converted to Python objects at once; a row group is read page by page.
_ROWS = 1024


def parquet_rows(path: str | Path, columns: list[str] | None = None) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Return the names of a file's columns, and an iterator over its rows.

    `columns`: columns to read, if not all; names that the file does not have are left out. Raises `StorageError` while
    reading, if the file is damaged.

    Examples
    --------
    >>> import pyarrow, pyarrow.parquet
    >>> table = pyarrow.table({"id": [1, 2], "text": ["one", "two"]})
    >>> pyarrow.parquet.write_table(table, "numbers.parquet")
    >>> names, rows = parquet_rows("numbers.parquet")
    >>> names, list(rows)
    (['id', 'text'], [{'id': 1, 'text': 'one'}, {'id': 2, 'text': 'two'}])
    """
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

    def rows() -> Iterator[dict[str, Any]]:
        wanted = None if columns is None else [name for name in names if name in columns]
        with file:
            try:
                for batch in opened.iter_batches(batch_size=_ROWS, columns=wanted):
                    yield from _records(batch)
            except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: a time that Python cannot hold
                raise StorageError(f"cannot read {path}: {_reason(error)}.") from error

    return names, rows()


def json_value(value: Any) -> Any:
    """Return a value of a table as JSON has it: times as ISO 8601, decimals as numbers, NaN as None.

    Bytes are decoded as UTF-8.

    Examples
    --------
    >>> price = decimal.Decimal("1.50")
    >>> json_value({"on": datetime.date(2024, 5, 1), "price": price})
    {'on': '2024-05-01', 'price': 1.5}
    >>> json_value([float("nan"), b"text"])
    [None, 'text']
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {str(key): json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(each) for each in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else json_value(float(value))
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError("it holds bytes that are not UTF-8 text.") from error
    return str(value)  # a UUID, an interval


def _reason(error: Exception) -> str:
    """Return the message of pyarrow, which may end with a full stop or a line end."""
    return cut(str(error).strip().rstrip("."), 200)


def _records(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch as Python objects."""
    import pyarrow

    # datetime has microseconds, so times in nanoseconds are rounded down.
    columns = []
    for column in batch.columns:
        kind = column.type
        if pyarrow.types.is_timestamp(kind) and kind.unit == "ns":
            column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
        columns.append(column.to_pylist())
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


_MARKDOWN = (".md", ".markdown")
_SUFFIXES = (".txt", *_MARKDOWN)
_MOST_NAMED = 10  # skipped files in a warning
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*")
# Code, items of a list, quotes, tables and HTML: dashes below are no underline.
_NO_PARAGRAPH = re.compile(r"    |\t| {0,3}(?:[-*+][ \t]|\d+[.)][ \t]|[>|<])")
_FOLDERS = re.compile(r"(?:^|(?<=/))(?:\*\*/)+")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*")


def whole_file(path: Path, folder: Path | None = None) -> InputDocument:
    r"""Return the document that a file is.

    Its metadata are ``path``; ``modified``, the UTC time of the last change as ISO 8601, so that filters can compare
    it; and for Markdown with a heading ``title``. `folder`: the id is the path relative to this folder, with ``/``
    between its parts; None: the file's own folder. Raises `StorageError` if it cannot be read.

    Examples
    --------
    >>> path = Path("paris.md")
    >>> _ = path.write_text("# Paris\n\nThe capital of France.")
    >>> document = whole_file(path)
    >>> document.id, document.title, sorted(document.metadata)
    ('paris.md', 'Paris', ['modified', 'path', 'title'])
    """
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
    suffixes = Path(path.name.removesuffix(".gz")).suffix.lower()
    title = markdown_title(text) if suffixes in _MARKDOWN else ""
    return InputDocument(name, text, metadata | ({"title": title} if title else {}), title)


def markdown_title(text: str) -> str:
    """Return the first heading of a Markdown text, of ``#`` or underlined; empty if there is none.

    Code blocks and YAML front matter are skipped. A paragraph of several lines is no title, even if it is underlined.
    """
    fence = ""
    block: list[str] = []  # the lines since the last blank one
    for line in _without_front_matter(text.splitlines()):
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


def _without_front_matter(lines: list[str]) -> list[str]:
    """Return the lines after YAML between ``---`` and ``---`` or ``...`` at the beginning; all, if there is none."""
    if not lines or lines[0].rstrip() != "---":
        return lines
    end = next((i for i, line in enumerate(lines) if i and line.rstrip() in ("---", "...")), -1)
    return lines[end + 1 :]


def _is_paragraph(line: str) -> bool:
    return any(map(str.isalnum, line)) and not _NO_PARAGRAPH.match(line)


class DocumentFolder:
    r"""The files of a folder and its sub-folders, each as one document.

    The list of files is made once; the files are read one by one while it is iterated. An id is the path of a file
    relative to the folder, with ``/`` between its parts. Hidden files and folders (``.name``) are left out. Links to
    folders are not followed, and links to files outside of the folder are skipped. What cannot be read (not UTF-8,
    empty, without permission) is skipped too: one such file does not stop the reading of thousands. A warning at the
    end names the skipped files, or says that there are no files to read.

    Parameters
    ----------
    folder
        The folder.
    glob
        Patterns of the files to read, such as ``*.rst``; none: ``.txt``, ``.md`` and ``.markdown``. A pattern with a
        slash is compared with the path relative to the folder, where ``*`` also matches slashes, and ``**/`` folders
        of any depth or none; others with the name.

    Attributes
    ----------
    skipped
        Path and reason of each file that was skipped so far.

    Raises
    ------
    InvalidArgumentError
        If there is no such folder, or a pattern is not a text.
    StorageError
        If the folder cannot be listed.

    Examples
    --------
    >>> notes = Path("notes")
    >>> notes.mkdir()
    >>> _ = (notes / "b.txt").write_text("Pears ripen in September.")
    >>> _ = (notes / "a.md").write_text("# Apples\nThey keep all winter.")
    >>> documents = DocumentFolder(notes)
    >>> len(documents), [document.id for document in documents]
    (2, ['a.md', 'b.txt'])
    >>> documents.skipped
    []
    """

    def __init__(self, folder: Path, glob: Sequence[str] = ()) -> None:
        patterns = [glob] if isinstance(glob, str) else glob
        if not isinstance(patterns, (list, tuple)) or not all(isinstance(each, str) and each for each in patterns):
            raise InvalidArgumentError(f"received {describe(glob)} as glob; expected patterns such as '*.rst'.")
        self.folder, self._glob = folder, tuple(patterns)
        self._patterns = [("/" in each, _compiled(each)) for each in patterns]
        self._found: list[Path] = []
        self.skipped: list[tuple[str, str]] = []
        self._list(folder)
        self._listed = len(self.skipped)
        self._found.sort(key=lambda path: path.relative_to(folder).parts)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[InputDocument]:
        del self.skipped[self._listed :]  # those of an earlier iteration
        for path in self._found:
            try:
                document = whole_file(path, self.folder)
            except LatelierError as error:
                self._skip(path, cut(str(error).removeprefix(f"{path} "), 200))
            else:
                yield document
        if not self._found:
            wanted = ", ".join(map(short, self._glob)) or ".txt, .md and .markdown"
            warn_caller(f"no file of {self.folder} is read: looked for {wanted} in it and its sub-folders.")
        if self.skipped:
            named = "".join(f"\n  {_on_one_line(name)}: {reason}" for name, reason in self.skipped[:_MOST_NAMED])
            more = f"\n  and {len(self.skipped) - _MOST_NAMED:,} more" if len(self.skipped) > _MOST_NAMED else ""
            warn_caller(f"skipped {len(self.skipped):,} files of {self.folder}:{named}{more}")

    def _list(self, folder: Path) -> None:
        """Add the files below a folder; it is the top of the tree, so an error of it is raised, not recorded."""
        try:
            entries = [*os.scandir(folder)]
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise InvalidArgumentError(f"there is no folder {str(folder)!r}.") from error
        except OSError as error:
            raise StorageError(f"cannot list {folder}: {error}.") from error
        waiting = [entries]
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
                    self._add(path, entry)

    def _add(self, path: Path, entry: os.DirEntry[str]) -> None:
        """Add a regular file, or a link to one within the folder."""
        try:
            target = path.resolve(strict=True) if entry.is_symlink() else path
            kind = path.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
            self._skip(path, f"a link that leads nowhere: {error}" if entry.is_symlink() else str(error))
            return
        if entry.is_symlink() and stat.S_ISDIR(kind):
            self._skip(path, "a link to a folder")
        elif entry.is_symlink() and not target.is_relative_to(self.folder.resolve()):
            self._skip(path, "a link to a file outside of the folder")
        elif not stat.S_ISREG(kind):
            self._skip(path, "not a regular file")
        else:
            self._found.append(path)

    def _is_wanted(self, path: Path) -> bool:
        if not self._patterns:
            return path.suffix.lower() in _SUFFIXES
        relative = path.relative_to(self.folder).as_posix()
        return any(pattern.match(relative if has_slash else path.name) for has_slash, pattern in self._patterns)

    def _skip(self, path: Path, reason: str) -> None:
        self.skipped.append((path.relative_to(self.folder).as_posix(), reason))


def _compiled(glob: str) -> re.Pattern[str]:
    """Return the expression of a pattern, in which ``**/`` stands for folders of any depth or none."""
    # No path holds the character that stands for it. The shortest match comes first, since `fnmatch` tries no other one
    # of what is between two asterisks.
    return re.compile(fnmatch.translate(_FOLDERS.sub("\0", glob)).replace("\0", "(?:.*?/)??"))


def _on_one_line(name: str) -> str:
    """Return the name of a file as a warning shows it: a line end in it must not look like another file."""
    return name if name.isprintable() else short(name)


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
    """Yield the documents of a file.

    `file`: the path of a file, a pipe or a device (decompressed if it ends in ``.gz``), or a file opened for bytes.
    `format`: ``"jsonl"``: a record, a pair or a text per line, as in `parse_documents`. ``"csv"``: a header with a
    column ``text``, and ``id``, ``title`` and metadata in others; ``.tsv`` files are separated by tabs. ``"parquet"``:
    columns as in CSV. ``"txt"``: a text per line. ``"whole"``: the file is one text, see `latelier.retrieve.readers`.
    ``"auto"``: by the file's extension; if that is unknown, by the first line, JSON or plain text. `name`: name of the
    file in messages; default: its path. Raises `InvalidArgumentError`: immediately, if there is no such file; while
    reading, at a faulty line or row, which the message names. Raises `StorageError` if the file cannot be read.
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
        Or a folder: each of its text and Markdown files is one document, see `DocumentFolder`.
    format
        ``"jsonl"``: a record per line, with ``text``, optionally ``id`` and ``title``, and metadata under any other
        key. ``"csv"``, ``"parquet"``: columns of these names. ``"txt"``: a text per line. ``"whole"``: the file is one
        text, its name the id. ``"auto"``: by the file's extension, where ``.md`` is ``"whole"``; if that is unknown,
        by the first line.
    id, text, title, metadata
        Names of the fields of JSONL, CSV and Parquet files to take instead: of the id, of the text (several are joined
        by line ends), of the title, and of the metadata. Without `metadata`, all other fields are metadata.
    glob
        Patterns of the files of a folder, such as ``"*.rst"``; default: text and Markdown files.

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
    check_format(format)
    if not is_folder(source):
        if glob:
            raise InvalidArgumentError(f"received glob for {str(source)!r}, which is not a folder; name the file only.")
        return read_document_file(os.fspath(path), format, fields=fields)
    received: list[tuple[str, Any]] = [("names of fields", fields.are_named)]
    received.append((f"format={format!r}", format not in ("auto", "whole")))
    for name, is_given in received:
        if is_given:
            raise InvalidArgumentError(
                f"received {name} for the folder {str(source)!r}, of which each file is one text; give files of "
                "records one by one."
            )
    return DocumentFolder(source, glob)
