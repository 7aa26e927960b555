"""Sheets of Excel and OpenDocument, read by calamine, as tables of Markdown."""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Iterator
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.reading.archives import Archive, inside
from latelier.reading.content import Content, as_table, counted, is_header
from latelier.utils.misc import needs_extra

_ZIP = b"PK"
_NO_VALUE = re.compile(rb"</f>\s*(?:<v\s*/>|<v></v>)?\s*</c>")


def read_sheets(data: bytes) -> Iterator[Content]:
    """Yield the sheets of a workbook, hidden ones too, each below its title."""
    with needs_extra("Reading sheets", "files"):
        import python_calamine
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        sheets = [(name, book.get_sheet_by_name(name).to_python()) for name in _titles(book)]
    except python_calamine.CalamineError as error:
        raise InvalidArgumentError(f"it is damaged, encrypted, or no workbook: {error}.") from error
    texts = [f"## {name}\n\n{text}" for name, rows in sheets if (text := _text(rows))]
    yield Content("\n\n".join(texts), unread=_unread(data))


def _titles(book: Any) -> list[str]:
    """Return the sheets with cells, as there are some of macros and of charts only."""
    return [each.name for each in book.sheets_metadata if str(each.typ).endswith(".WorkSheet")]


def _text(rows: list[list[Any]]) -> str:
    """Return the blocks of rows between empty ones as tables; one that names no columns has those of the one before."""
    blocks: list[list[list[str]]] = [[]]
    for row in rows:
        cells = [_shown(cell) for cell in row]
        if any(cells):
            blocks[-1].append(cells)
        elif blocks[-1]:
            blocks.append([])
    texts = []
    header: list[str] = []
    for rows_of_block in filter(None, blocks):
        block = rows_of_block
        lines = []
        while block and len([cell for cell in block[0] if cell]) == 1:  # a title above the table, or a remark
            lines.append("".join(block.pop(0)))
        if len(block) > 1 and is_header(block[0]):
            header = block[0]
        elif block and header and _last_column(block) <= _last_column([header]):
            block = [header, *block]
        if block:
            lines.append(as_table(_cropped(block)))
        texts.append("\n\n".join(lines))
    return "\n\n".join(texts)


def _cropped(rows: list[list[str]]) -> list[list[str]]:
    """Return rows without the columns at both sides in which none of them has a cell."""
    filled = [number for row in rows for number, cell in enumerate(row) if cell]
    return [row[min(filled) : max(filled) + 1] for row in rows]


def _last_column(rows: list[list[str]]) -> int:
    return max(number for row in rows for number, cell in enumerate(row) if cell)


def _shown(cell: Any) -> str:
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ").removesuffix(" 00:00:00")
    return " ".join(str(cell).split())


def _unread(data: bytes) -> tuple[str, ...]:
    """Return what a workbook holds besides cells; of one that is no zip file, nobody knows."""
    if not data.startswith(_ZIP):
        return ()
    archive = Archive(data)
    found = archive.others()
    for name in archive.names(r"xl/comments\d*\.xml|xl/comments/.*\.xml"):
        found += ["comment" for _ in inside(archive.xml(name), "comment")]
    for name in archive.names(r"xl/drawings/drawing\d*\.xml"):
        found += ["text box" for each in inside(archive.xml(name), "txBody") if any(inside(each, "t"))]
    for name in archive.names(r"xl/worksheets/.*\.xml"):
        found += ["formula without a value"] * len(_NO_VALUE.findall(archive.read(name)))
    if "content.xml" in archive:
        found += ["comment" for _ in inside(archive.xml("content.xml"), "annotation")]
    return counted(found)
