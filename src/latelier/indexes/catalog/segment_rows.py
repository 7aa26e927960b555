"""The tables ``segment`` and ``tombstone`` (removed documents), and the row of ``setting`` that names the ANN data."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from latelier.indexes.catalog.rows import damaged, decode_json, insert_rows, read_rows
from latelier.indexes.catalog.settings import write_setting

__all__ = [
    "AnnDataRow",
    "Files",
    "SegmentRow",
    "count_documents",
    "delete_segments",
    "read_ann_data",
    "read_segments",
    "tombstones",
    "write_ann_data",
    "write_segment",
    "write_tombstones",
]

# The size, shape, dtype and checksum of each file, by file name.
Files: TypeAlias = "dict[str, dict[str, Any]]"

# The row of ``setting`` that names the ANN data; the name is part of the format.
_ANN_DATA = "derived"


class SegmentRow(NamedTuple):
    """The row of a segment.

    Attributes
    ----------
    name
        Name of its folder.
    first, last
        The numbers of its first and last document.
    documents, removed
        Number of documents that it holds, and number of those that were removed since.
    tokens
        Number of tokens of all its documents, removed ones included.
    files
        The size, shape, dtype and checksum of each of its files.
    """

    name: str
    first: int
    last: int
    documents: int
    removed: int
    tokens: int
    files: Files


class AnnDataRow(NamedTuple):
    """The row of an index's ANN data: arrays made from the documents, stored in a folder like those of a segment."""

    name: str
    files: Files


def read_segments(connection: sqlite3.Connection) -> list[SegmentRow]:
    """Return all segments in the order of insertion.

    Raises
    ------
    CorruptedIndexError
        If a row is damaged, or its values are impossible.
    """
    rows = []
    next_first = 0
    for values in read_rows(connection, "segment", "ORDER BY first"):
        row = SegmentRow(*values)
        if not (isinstance(row.name, str) and all(type(number) is int for number in row[1:6])):
            raise damaged(f"its segment {row.name!r:.60} has values of a wrong type")
        count = row.last - row.first + 1
        if not (next_first <= row.first and 0 <= row.removed < row.documents <= min(count, row.tokens)):
            raise damaged(f"its segment {row.name!r:.60} has impossible numbers or counts")
        if row.last >= 2**62 or not isinstance(files := decode_json(row.files, "list of files"), dict):
            raise damaged(f"its segment {row.name!r:.60} has no list of files")
        rows.append(row._replace(files=files))
        next_first = row.last + 1
    return rows


def write_segment(connection: sqlite3.Connection, row: SegmentRow) -> None:
    """Insert a segment, or replace the row of the same name."""
    insert_rows(connection, "segment", [(*row[:-1], json.dumps(row.files))])


def delete_segments(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Delete the rows of segments and their tombstones."""
    rows = [(name,) for name in names]
    connection.executemany("DELETE FROM segment WHERE name = ?", rows)
    connection.executemany("DELETE FROM tombstone WHERE segment = ?", rows)


def count_documents(connection: sqlite3.Connection) -> int:
    """Return the number of documents in the index."""
    return sum(row.documents - row.removed for row in read_segments(connection))


def tombstones(connection: sqlite3.Connection, row: SegmentRow) -> list[int]:
    """Return the numbers of a segment's removed documents, ascending.

    Raises
    ------
    CorruptedIndexError
        If their count differs from the segment's row, or a number is outside of the segment.
    """
    numbers = [n for _, n in read_rows(connection, "tombstone", "WHERE segment = ? ORDER BY number", (row.name,))]
    fits = all(type(number) is int and row.first <= number <= row.last for number in numbers)
    if not fits or len(numbers) != row.removed:
        raise damaged(f"its segment {row.name!r:.60} counts {row.removed} removed documents, but lists others")
    return numbers


def write_tombstones(connection: sqlite3.Connection, row: SegmentRow, numbers: Sequence[int]) -> SegmentRow:
    """Mark documents of a segment as removed, and return its new row."""
    insert_rows(connection, "tombstone", ((row.name, number) for number in numbers))
    row = row._replace(removed=row.removed + len(numbers))
    write_segment(connection, row)
    return row


def read_ann_data(connection: sqlite3.Connection) -> AnnDataRow | None:
    """Return the row of the ANN data; ``None`` if the index has none.

    Raises
    ------
    CorruptedIndexError
        If the row is damaged.
    """
    for _, value in read_rows(connection, "setting", "WHERE name = ?", (_ANN_DATA,)):
        row = decode_json(value, f"setting {_ANN_DATA!r}")
        if not (isinstance(row, list) and [type(part) for part in row] == [str, dict]):
            raise damaged(f"its setting {_ANN_DATA!r} does not name a folder and its files")
        return AnnDataRow(*row)
    return None


def write_ann_data(connection: sqlite3.Connection, row: AnnDataRow | None) -> None:
    """Store the row of the ANN data; ``None`` deletes it."""
    connection.execute("DELETE FROM setting WHERE name = ?", (_ANN_DATA,))
    if row is not None:
        write_setting(connection, _ANN_DATA, row)
