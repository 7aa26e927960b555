"""Questions to the catalog and changes of it, each a function of the connection whose transaction it belongs to."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from latelier.indexes.base import Id, Record
from latelier.indexes.batches import Document
from latelier.indexes.fields import known_fields, make_fields
from latelier.indexes.segment_files import Files
from latelier.indexes.values import fold_name

__all__ = [
    "DerivedRow",
    "SegmentRow",
    "all_ids",
    "count_documents",
    "delete_segments",
    "find_numbers",
    "find_records",
    "ids_between",
    "insert_documents",
    "insert_segment",
    "read_derived",
    "read_segments",
    "read_setting",
    "remove_documents",
    "tombstones",
    "write_derived",
]

_CHUNK = 500  # parameters of one statement


class SegmentRow(NamedTuple):
    """A segment as the catalog knows it: numbers `first` to `last`, `removed` of its `documents` dead."""

    name: str
    first: int
    last: int
    documents: int
    removed: int
    tokens: int
    files: Files


class DerivedRow(NamedTuple):
    """Arrays that were made from the documents and can be made again, kept like a segment."""

    name: str
    files: Files


def read_setting(connection: sqlite3.Connection, name: str) -> Any:
    """Return one value of the configuration."""
    return json.loads(connection.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()[0])


def read_derived(connection: sqlite3.Connection) -> DerivedRow | None:
    """Return what the index has derived from its documents, if anything."""
    row = connection.execute("SELECT value FROM setting WHERE name = 'derived'").fetchone()
    return None if row is None else DerivedRow(*json.loads(row[0]))


def write_derived(connection: sqlite3.Connection, row: DerivedRow | None) -> None:
    """Set what the index has derived from its documents."""
    connection.execute("DELETE FROM setting WHERE name = 'derived'")
    if row is not None:
        connection.execute("INSERT INTO setting VALUES ('derived', ?)", (json.dumps(row),))


def read_segments(connection: sqlite3.Connection) -> list[SegmentRow]:
    """Return all segments in the order of insertion."""
    rows = connection.execute("SELECT name, first, last, documents, removed, tokens, files FROM segment ORDER BY first")
    return [SegmentRow(*row)._replace(files=json.loads(row[-1])) for row in rows]


def insert_segment(connection: sqlite3.Connection, row: SegmentRow) -> None:
    """Make a segment part of the index."""
    connection.execute("INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?, ?)", (*row[:-1], json.dumps(row.files)))


def delete_segments(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Take segments and their tombstones out of the index."""
    rows = [(name,) for name in names]
    connection.executemany("DELETE FROM segment WHERE name = ?", rows)
    connection.executemany("DELETE FROM tombstone WHERE segment = ?", rows)


def tombstones(connection: sqlite3.Connection, segment: str) -> Iterator[int]:
    """Yield the numbers of a segment's removed documents, ascending."""
    rows = connection.execute("SELECT number FROM tombstone WHERE segment = ? ORDER BY number", (segment,))
    return (number for (number,) in rows)


def count_documents(connection: sqlite3.Connection) -> int:
    """Return how many documents there are."""
    return int(connection.execute("SELECT coalesce(sum(documents - removed), 0) FROM segment").fetchone()[0])


def all_ids(connection: sqlite3.Connection) -> list[Id]:
    """Return all ids in the order of insertion."""
    return [id for (id,) in connection.execute("SELECT id FROM document ORDER BY number")]


def ids_between(connection: sqlite3.Connection, first: int, last: int) -> list[Id]:
    """Return the ids of the documents with the numbers `first` to `last`."""
    rows = connection.execute("SELECT id FROM document WHERE number BETWEEN ? AND ? ORDER BY number", (first, last))
    return [id for (id,) in rows]


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
            f"SELECT id, text, metadata FROM document JOIN content USING (number) WHERE id IN ({_marks(chunk)})", chunk
        )
        found.update({id: Record(id, text, json.loads(metadata)) for id, text, metadata in rows})
    return found


def insert_documents(connection: sqlite3.Connection, first: int, documents: Sequence[Document]) -> None:
    """Insert documents under the numbers from `first` on, with columns for metadata keys that are new."""
    make_fields(connection, (key for document in documents for key in document.fields))
    columns = {field.folded: field.column for field in known_fields(connection)}
    names = "".join(f", {column}" for column in columns.values())
    connection.executemany(
        f"INSERT INTO document (number, id{names}) VALUES (?, ?{', ?' * len(columns)})",
        ((number, document.id, *_field_values(document, columns)) for number, document in enumerate(documents, first)),
    )
    connection.executemany(
        "INSERT INTO content (number, metadata, text) VALUES (?, ?, ?)",
        ((number, document.metadata, document.text) for number, document in enumerate(documents, first)),
    )


def remove_documents(connection: sqlite3.Connection, segment: str, numbers: Sequence[int]) -> None:
    """Remove documents of one segment, leaving tombstones."""
    connection.executemany("INSERT INTO tombstone VALUES (?, ?)", ((segment, number) for number in numbers))
    connection.execute("UPDATE segment SET removed = removed + ? WHERE name = ?", (len(numbers), segment))
    for table in ("document", "content"):
        connection.executemany(f"DELETE FROM {table} WHERE number = ?", ((number,) for number in numbers))


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


def _marks(chunk: Sequence[Id]) -> str:
    return ", ".join("?" * len(chunk))
