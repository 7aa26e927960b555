"""Rows of files as they are, to train on or to evaluate with: JSON Lines, tables with a delimiter, Parquet.

The format of a file of lines is that of its first line, so names do not matter. A row of a table without a header is
the list of its cells.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.reading.records import id_names
from latelier.reading.tables import parquet_rows
from latelier.utils.files import open_binary, parse_json, text_lines

_Rows = Iterator[tuple[int, Any]]


def read_rows(paths: Collection[Path], header: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the rows of files, each with its name in error messages.

    `header`: names of which the first line of a table has one if it is a header.
    """
    for path in paths:
        is_empty = True
        for number, row in file_rows(path, header):
            is_empty = False
            if isinstance(row, InvalidArgumentError):
                raise InvalidArgumentError(f"{path.name}:{number}: {row}") from row
            yield f"{path.name}:{number}", row
        if is_empty:
            raise InvalidArgumentError(f"{path} is empty; expected one object per line.")


def file_rows(path: Path, header: Collection[str]) -> _Rows:
    """Yield the numbered rows of a file, see `read_rows`; what is faulty as an error."""
    if path.suffix == ".parquet":
        return parquet_rows(path)
    lines = text_lines(open_binary(path), str(path), compressed=path.suffix == ".gz")
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    first = next(numbered, None)
    if first is None:
        return iter(())
    is_csv = ".csv" in path.suffixes
    read = next(each.read for each in _FORMATS if re.match(each.first_line, first[1]) and (is_csv or not each.is_csv))
    return read(itertools.chain([first], numbered), header)


def _json_rows(lines: Iterator[tuple[int, str]], header: Collection[str]) -> _Rows:
    for number, line in lines:
        try:
            yield number, parse_json(line)
        except InvalidArgumentError as error:
            yield number, error


def _tab_rows(lines: Iterator[tuple[int, str]], header: Collection[str]) -> _Rows:
    """Yield the rows of a table with tabs, in which a quote is a letter."""
    return _named_rows(((number, line.rstrip("\r\n").split("\t")) for number, line in lines), header)


def _csv_rows(lines: Iterator[tuple[int, str]], header: Collection[str]) -> _Rows:
    last = [0]

    def texts() -> Iterator[str]:
        for number, line in lines:
            last[0] = number
            yield line

    cells = ((last[0], row) for row in csv.reader(texts()))
    try:
        yield from _named_rows(cells, header)
    except csv.Error as error:
        yield last[0], InvalidArgumentError(f"malformed CSV: {error}.")


def _named_rows(rows: Iterator[tuple[int, list[str]]], header: Collection[str]) -> _Rows:
    """Yield dicts without empty cells, or without a header lists of cells."""
    first = next(rows)
    names = [cell.strip() for cell in first[1]]
    if not {name.lower() for name in names} & {*header}:
        yield from itertools.chain([first], rows)
        return
    for number, cells in rows:
        if len(cells) == len(names):
            yield number, {name: cell for name, cell in zip(names, cells, strict=True) if cell}
        else:
            yield number, InvalidArgumentError(f"{len(cells)} cells; the header has {len(names)} columns.")


class _Format(NamedTuple):
    """A format of lines: how the first one begins, and what reads them; `is_csv`: in files of this name alone."""

    first_line: str
    read: Callable[[Iterator[tuple[int, str]], Collection[str]], _Rows]
    is_csv: bool = False


_FORMATS = (
    _Format(r"\s*[{\[]", _json_rows),
    _Format(r"", _csv_rows, is_csv=True),
    _Format(r"[^\t\r\n]*\t", _tab_rows),
    _Format(r"", _json_rows),
)


def parquet_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split of a data set as the Hugging Face Hub names them, in order."""
    names = (f"{split}.parquet", f"{split}-*.parquet", f"{split}/*.parquet")
    return sorted({path for begin in ("", "data/", "default/") for name in names for path in folder.glob(begin + name)})


# Tables of texts without a header, by the number of their columns: passages and queries; DPR's; MS MARCO's documents.
_COLUMNS_OF_TEXTS = {2: ("id", "text"), 3: ("id", "text", "title"), 4: ("id", "url", "title", "text")}
_IDS_OF_QUERIES = ("query_id", "qid")


def text_record(row: Any, own_id: str = "_id") -> Any:
    """Return the record of a text with its keys ``_id`` and ``text``, as far as it has them; what is none as it is.

    `own_id`: the name that goes before others, such as ``document_id``.
    """
    if isinstance(row, (list, tuple)) and len(row) in _COLUMNS_OF_TEXTS:
        row = dict(zip(_COLUMNS_OF_TEXTS[len(row)], row, strict=True))
    if not isinstance(row, Mapping):
        return row
    record = dict(row)
    for name in (own_id, *id_names(record), *_IDS_OF_QUERIES):
        if "_id" not in record and name in record:
            record["_id"] = record.pop(name)
    if "text" not in record and "contents" in record:
        record["text"] = record.pop("contents")
    return record
