"""Questions to the catalog and changes of it, each a function of the connection whose transaction it belongs to."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from latelier.indexes.base import Id, Record
from latelier.indexes.batches import Document
from latelier.indexes.catalog.fields import known_fields, make_fields
from latelier.indexes.catalog.rows import has_checksums, insert_rows, row_checksum, select_rows, whole_row
from latelier.indexes.catalog.schema import damaged, parse_json, write_setting
from latelier.indexes.storage.segments import Files, SegmentRow
from latelier.indexes.values import fold_name

__all__ = [
    "DerivedRow",
    "all_ids",
    "count_documents",
    "delete_segments",
    "document_checksum",
    "find_numbers",
    "find_records",
    "ids_between",
    "insert_documents",
    "read_derived",
    "read_segments",
    "read_setting",
    "read_stamp",
    "read_user_setting",
    "remove_documents",
    "tombstones",
    "user_setting_names",
    "write_content_rows",
    "write_derived",
    "write_document_rows",
    "write_segment",
]

_CHUNK = 500  # parameters of one statement


class DerivedRow(NamedTuple):
    """Arrays that were made from the documents and can be made again, kept like a segment."""

    name: str
    files: Files


def read_setting(connection: sqlite3.Connection, name: str) -> Any:
    """Return one value of the configuration.

    Raises
    ------
    CorruptedIndexError
        If it is missing or damaged, as all reading functions do.
    """
    for _, value in select_rows(connection, "setting", "WHERE name = ?", (name,)):
        return parse_json(value, f"setting {name!r}")
    raise damaged(f"its setting {name!r} is missing")


def read_stamp(connection: sqlite3.Connection) -> Any:
    """Return something that is equal for two readers of one commit, in less time than `read_setting` takes."""
    return connection.execute("SELECT * FROM setting WHERE name = 'generation'").fetchone()


def read_derived(connection: sqlite3.Connection) -> DerivedRow | None:
    """Return what the index has derived from its documents, if anything."""
    for _, value in select_rows(connection, "setting", "WHERE name = 'derived'"):
        row = parse_json(value, "setting 'derived'")
        if not (isinstance(row, list) and [type(part) for part in row] == [str, dict]):
            raise damaged("its setting 'derived' does not name a folder and its files")
        return DerivedRow(*row)
    return None


def write_derived(connection: sqlite3.Connection, row: DerivedRow | None) -> None:
    """Set what the index has derived from its documents."""
    connection.execute("DELETE FROM setting WHERE name = 'derived'")
    if row is not None:
        write_setting(connection, "derived", row)


def read_user_setting(connection: sqlite3.Connection, name: str) -> Any:
    """Return what a user has stored under a name.

    Raises
    ------
    KeyError
        If there is nothing.
    """
    for _, value in select_rows(connection, "user_setting", "WHERE name = ?", (name,)):
        return parse_json(value, f"user setting {name!r}")
    raise KeyError(name)


def user_setting_names(connection: sqlite3.Connection) -> list[str]:
    """Return the names under which users have stored something, in alphabetical order."""
    names = [name for name, _ in select_rows(connection, "user_setting", "ORDER BY name")]
    if not all(isinstance(name, str) for name in names):
        raise damaged("it has settings whose names are no text")
    return names


def read_segments(connection: sqlite3.Connection) -> list[SegmentRow]:
    """Return all segments in the order of insertion."""
    rows = []
    next_first = 0
    for values in select_rows(connection, "segment", "ORDER BY first"):
        row = SegmentRow(*values)
        if not (isinstance(row.name, str) and all(type(number) is int for number in row[1:6])):
            raise damaged(f"its segment {row.name!r:.60} has values of a wrong type")
        count = row.last - row.first + 1
        if not (next_first <= row.first and 0 <= row.removed < row.documents <= min(count, row.tokens)):
            raise damaged(f"its segment {row.name!r:.60} does not fit to the others")
        if row.last >= 2**62 or not isinstance(files := parse_json(row.files, "list of files"), dict):
            raise damaged(f"its segment {row.name!r:.60} has no list of files")
        rows.append(row._replace(files=files))
        next_first = row.last + 1
    return rows


def write_segment(connection: sqlite3.Connection, row: SegmentRow) -> None:
    """Make a segment part of the index, or replace what is known of it."""
    insert_rows(connection, "segment", [(*row[:-1], json.dumps(row.files))])


def delete_segments(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Take segments and their tombstones out of the index."""
    rows = [(name,) for name in names]
    connection.executemany("DELETE FROM segment WHERE name = ?", rows)
    connection.executemany("DELETE FROM tombstone WHERE segment = ?", rows)


def tombstones(connection: sqlite3.Connection, row: SegmentRow) -> list[int]:
    """Return the numbers of a segment's removed documents, ascending."""
    numbers = [n for _, n in select_rows(connection, "tombstone", "WHERE segment = ? ORDER BY number", (row.name,))]
    whole = all(type(number) is int and row.first <= number <= row.last for number in numbers)
    if not whole or len(numbers) != row.removed:
        raise damaged(f"its segment {row.name!r:.60} has not the {row.removed} removed documents that it should have")
    return numbers


def count_documents(connection: sqlite3.Connection) -> int:
    """Return how many documents there are."""
    return sum(row.documents - row.removed for row in read_segments(connection))


def all_ids(connection: sqlite3.Connection) -> list[Id]:
    """Return all ids in the order of insertion."""
    return _check_ids(connection.execute("SELECT id FROM document ORDER BY number"))


def ids_between(connection: sqlite3.Connection, first: int, last: int) -> list[Id]:
    """Return the ids of the documents with the numbers `first` to `last`."""
    rows = connection.execute("SELECT id FROM document WHERE number BETWEEN ? AND ? ORDER BY number", (first, last))
    return _check_ids(rows)


def find_numbers(connection: sqlite3.Connection, ids: Sequence[Id]) -> dict[Id, int]:
    """Return the numbers of those ids that are in the index."""
    found: dict[Id, int] = {}
    for chunk in _chunks(ids):
        found.update(connection.execute(f"SELECT id, number FROM document WHERE id IN ({_marks(chunk)})", chunk))
    return found


def find_records(connection: sqlite3.Connection, ids: Sequence[Id]) -> dict[Id, Record]:
    """Return text and metadata of those ids that are in the index."""
    found: dict[Id, Record] = {}
    for chunk in _chunks(ids):
        rows = connection.execute(
            f"SELECT id, content.* FROM document JOIN content USING (number) WHERE id IN ({_marks(chunk)})", chunk
        )
        for id, number, metadata, text, *checksum in rows:
            whole_row("content", (number, id, metadata, text), checksum)
            fields = parse_json(metadata, f"metadata of {id!r:.60}")
            if not isinstance(fields, dict) or not (text is None or isinstance(text, str)):
                raise damaged(f"its document {id!r:.60} has values of a wrong type")
            found[id] = Record(id, text, fields)
    return found


def insert_documents(connection: sqlite3.Connection, first: int, documents: Sequence[Document]) -> None:
    """Insert documents under the numbers from `first` on, with columns for metadata keys that are new."""
    make_fields(connection, (key for document in documents for key in document.fields))
    columns = {field.folded: field.column for field in known_fields(connection)}
    rows = ((n, document.id, *_field_values(document, columns)) for n, document in enumerate(documents, first))
    write_document_rows(connection, list(columns.values()), rows)
    contents = ((number, d.id, d.metadata, d.text) for number, d in enumerate(documents, first))
    write_content_rows(connection, contents)


def write_document_rows(
    connection: sqlite3.Connection, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> None:
    """Insert rows of ``document``: number, id, and the values of some of its columns."""
    names = ["number", "id", *columns]
    if has_checksums(connection):
        names.append("checksum")
        rows = ((*row, document_checksum(columns, row)) for row in rows)
    connection.executemany(f"INSERT INTO document ({', '.join(names)}) VALUES ({_marks(names)})", rows)


def write_content_rows(connection: sqlite3.Connection, rows: Iterable[tuple[int, Id, str, str | None]]) -> None:
    """Insert rows of ``content``: number, the id that its checksum covers too, metadata as JSON, and text."""
    checked = has_checksums(connection)
    given = ((row[0], row[2], row[3], *([row_checksum("content", row)] if checked else [])) for row in rows)
    connection.executemany(f"INSERT INTO content VALUES ({_marks(range(3 + checked))})", given)


def document_checksum(columns: Sequence[str], row: tuple[Any, ...]) -> int:
    """Return the checksum of a row of ``document``: number, id, and the values of columns.

    A column without a value does not count, as it may have been added since.
    """
    values = [*row[:2]]
    for column, value in zip(columns, row[2:], strict=True):
        if value is not None:
            values += (column, value)
    return row_checksum("document", values)


def remove_documents(connection: sqlite3.Connection, row: SegmentRow, numbers: Sequence[int]) -> SegmentRow:
    """Remove documents of one segment, leaving tombstones; return what is known of it then."""
    insert_rows(connection, "tombstone", ((row.name, number) for number in numbers))
    row = row._replace(removed=row.removed + len(numbers))
    write_segment(connection, row)
    for table in ("document", "content"):
        connection.executemany(f"DELETE FROM {table} WHERE number = ?", ((number,) for number in numbers))
    return row


def _check_ids(rows: Iterable[tuple[Any]]) -> list[Id]:
    ids = [id for (id,) in rows]
    if not {*map(type, ids)} <= {int, str}:
        raise damaged("it has ids that are neither str nor int")
    return ids


def _field_values(document: Document, columns: dict[str, str]) -> list[Any]:
    if not document.fields:
        return [None] * len(columns)
    # Reversed, so that of two keys that differ by case only the first one counts.
    folded = {fold_name(key): value for key, value in reversed(list(document.fields.items()))}
    return [folded.get(name) for name in columns]


def _chunks(ids: Sequence[Id]) -> Iterator[list[Id]]:
    source = iter(ids)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk


def _marks(chunk: Sequence[Any]) -> str:
    return ", ".join("?" * len(chunk))
