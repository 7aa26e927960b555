"""The rows of documents in the catalog: ids, texts, metadata and its fields.

Each key gets a column of the table ``document``: ``f0``, ``f1``, ... up to 500 columns; the table ``field`` names them.
As in SQL, the case of ASCII letters does not matter: ``lang`` and ``Lang`` are one field, and if a document has both,
the field holds the first. ``id``, ``text`` and ``metadata`` are columns of every document, and ``true`` and ``false``
are constants of SQL, so metadata keys of these names get no column.
"""

from __future__ import annotations

import itertools
import math
import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.indexes.fields import fold_name, new_fields
from latelier.indexes.results import FieldValues, Passage, Record, ValueCount, as_passages
from latelier.indexes.store.catalog import SegmentRow, insert_rows, read_rows, write_segment
from latelier.indexes.store.integrity import check_row, checksums, damaged, decode_json, spell
from latelier.indexes.store.sources import Origin, insert_origins
from latelier.utils.batching import consecutive, lengths_to_offsets, split_by_rows
from latelier.utils.values import (
    INT64,
    Id,
    as_id,
    check_row_size,
    check_text,
    dump_json,
    encode_fields,
    plain_str,
)

SqlValue: TypeAlias = "int | float | str | None"

_COLUMN = re.compile(r"f\d{1,3}", re.ASCII)
# All documents without metadata share this mapping: thousands of dicts would slow down the garbage collector.
_NO_FIELDS: Mapping[str, SqlValue] = MappingProxyType({})


class Field(NamedTuple):
    """A metadata key that filters can name.

    `folded`: the key as SQL compares names, see `fold_name`; `spelling`: the key as the first document spells it;
    `column`: its column in ``document``.
    """

    folded: str
    spelling: str
    column: str


def encode_metadata(metadata: object, id: Id) -> tuple[str, Mapping[str, SqlValue]]:
    """Return the exact JSON of a document's metadata, and one SQL value per key.

    Booleans become 0 and 1, lists and dicts JSON text, and integers beyond 64 bits the nearest float.
    """
    encoded, plain = encode_fields(metadata, id)
    if not plain:
        return encoded, _NO_FIELDS
    return encoded, {key: _sql_value(value) for key, value in plain.items()}


def known_fields(connection: sqlite3.Connection) -> list[Field]:
    """Return all fields in the order in which they were made; their column names become part of SQL statements."""
    fields = []
    for row in read_rows(connection, "field", "ORDER BY rowid"):
        field = Field(*row)
        if set(map(type, field)) != {str} or not _COLUMN.fullmatch(field.column):
            raise damaged(f"its field {field.spelling!r:.60} has no valid column")
        fields.append(field)
    return fields


_MOST_COUNTED = 100_000  # documents among which the most frequent of many values are looked for: a tenth of a second


def field_values(
    connection: sqlite3.Connection,
    fields: Iterable[Field],
    most: int,
    *,
    prefix: str = "",
    condition: str = "",
    parameters: Sequence[Any] = (),
) -> list[FieldValues]:
    """Return the values of fields, see `Index.field_values`; `condition` is that of a filter, with its `parameters`."""
    pattern = "".join(f"^{each}" if each in "%_^" else each for each in prefix) + "%"
    found = []
    for each in fields:
        column = f"document.{each.column}"
        where = f"{column} IS NOT NULL"
        if condition:
            where += f" AND ({condition})"
        is_list = f"CASE WHEN typeof({column}) = 'text' AND {column} LIKE '[%' THEN json_valid({column}) ELSE 0 END"
        (has_lists,) = connection.execute(
            f"SELECT EXISTS (SELECT 1 FROM document WHERE {where} AND {is_list})", parameters
        ).fetchone()
        rows = f"SELECT {column} AS value FROM document WHERE {where}"
        if has_lists:
            elements = (
                f"SELECT DISTINCT document.number, item.value AS value FROM document, json_each({column}) AS item"
            )
            rows += f" AND NOT {is_list} UNION ALL SELECT value FROM ({elements} WHERE {where} AND {is_list})"
            rows = f"SELECT value FROM ({rows}) WHERE value IS NOT NULL"
        given = list(parameters)
        if prefix:
            rows = f"SELECT value FROM ({rows}) WHERE value LIKE ? ESCAPE '^'"
            given.append(pattern)
        # Looking for a value too many ends early, where each document has another one.
        distinct = connection.execute(f"SELECT DISTINCT value FROM ({rows}) LIMIT ?", (*given, most + 1)).fetchall()
        is_complete = len(distinct) <= most
        counts = f"SELECT value, count(*) FROM ({rows} LIMIT ?) GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?"
        counted = connection.execute(counts, (*given, -1 if is_complete else _MOST_COUNTED, most))
        values = [ValueCount(*row) for row in counted]
        ends = connection.execute(f"SELECT min(value), max(value) FROM ({rows})", given).fetchone()
        if isinstance(ends[0], str) == isinstance(ends[1], str):
            least, greatest = ends
        else:
            least = None
            greatest = None
        found.append(FieldValues(each.spelling, values, is_complete, least, greatest, bool(has_lists)))
    return found


def make_fields(connection: sqlite3.Connection, keys: Iterable[str]) -> None:
    """Add columns for keys without one, up to 500 in all."""
    fields = known_fields(connection)
    for number, key in enumerate(new_fields((field.spelling for field in fields), keys), len(fields)):
        column = f"f{number}"
        connection.execute(f"ALTER TABLE document ADD COLUMN {column}")
        insert_rows(connection, "field", [(fold_name(key), key, column)])


def _sql_value(value: Any) -> SqlValue:
    if isinstance(value, (list, dict)):
        return dump_json(value)
    if isinstance(value, int) and int(value) not in INT64:
        if abs(value) < 2**1023:
            return float(value)
        return math.copysign(math.inf, 1 if value > 0 else -1)
    if isinstance(value, str):
        return plain_str(value)
    # int() and float() also convert booleans and numpy's subclasses to plain numbers.
    if value is None:
        return None
    if isinstance(value, int):
        return int(value)
    return float(value)


_CHUNK = 500  # ids in one statement
# rows and characters written at a time, so that few texts are copied
_ROWS = 900
_WRITTEN = 4 << 20
_MOST_VALUES = 900  # in one statement; SQLite before 3.32 allows 999
_ROW_BYTES = 300  # approximate size of one document's Python objects, without its text and metadata


class StoredDocument(NamedTuple):
    """What the catalog stores of one document.

    `id`, `text`: as the user gave them; `metadata`: exact JSON; `fields`: the SQL value of each key of the metadata;
    `passages`: empty for a whole document; `seen`: the number of the row that a writer has seen under the id, None if
    there was none; `origin`: where the document came from. The id is None for a number that the transaction gives.
    """

    id: Id
    text: str | None
    metadata: str
    fields: Mapping[str, SqlValue]
    passages: tuple[Passage, ...] = ()
    seen: int | None = None
    origin: Origin | None = None


class DocumentColumns(Sequence[StoredDocument]):
    """What the catalog stores of some documents, as a list per attribute of `StoredDocument`.

    An object per document would be looked at by Python's garbage collector: a tenth of the time of building an index.
    """

    __slots__ = ("fields", "ids", "metadata", "origins", "passages", "seen", "texts")

    def __init__(self, documents: Sequence[StoredDocument] = ()) -> None:
        self.ids: list[Id] = [each.id for each in documents]
        self.texts: list[str | None] = [each.text for each in documents]
        self.metadata: list[str] = [each.metadata for each in documents]
        self.fields: list[Mapping[str, SqlValue]] = [each.fields for each in documents]
        self.passages: list[tuple[Passage, ...]] = [each.passages for each in documents]
        self.seen: list[int | None] = [each.seen for each in documents]
        self.origins: list[Origin | None] = [each.origin for each in documents]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[StoredDocument]:
        return map(StoredDocument, *self._columns)

    def __getitem__(self, position: Any) -> Any:
        if not isinstance(position, slice):
            return StoredDocument(*(column[position] for column in self._columns))
        some = DocumentColumns()
        for name in self.__slots__:
            setattr(some, name, getattr(self, name)[position])
        return some

    @property
    def _columns(self) -> tuple[list[Any], ...]:
        return self.ids, self.texts, self.metadata, self.fields, self.passages, self.seen, self.origins

    @property
    def nbytes(self) -> int:
        """Approximate size in memory, in bytes."""
        values = chain(self.ids, self.texts, self.metadata, self.metadata)  # twice: `fields` has the values too
        return _ROW_BYTES * len(self) + sum(map(sys.getsizeof, values))

    @property
    def row_texts(self) -> Iterator[str | None]:
        """The text of each row, as `row_texts` reads them later; None for those of a document without one."""
        for text, passages in zip(self.texts, self.passages, strict=True):
            if text is None or not passages:
                yield from [text] * (len(passages) or 1)
            else:
                yield from (passage.text_in(text) for passage in passages)

    @property
    def rows(self) -> np.ndarray:
        """How many rows each document has: its passages, or one."""
        return np.array([len(each) or 1 for each in self.passages], dtype="int64")

    def append(
        self,
        id: object,
        text: object,
        metadata: object,
        ranges: object = None,
        seen: int | None = None,
        origin: Origin | None = None,
    ) -> int:
        """Append a document as a user gives it; return its size, as in `nbytes`."""
        known: Any = None
        if id is not None or origin is None:
            known = as_id(id)
        plain = check_text(text, known)
        passages = as_passages(ranges, known, plain)
        (encoded, fields) = encode_metadata(metadata, known)
        check_row_size(f"document {known!r:.60} with its text and metadata", (known, plain, encoded))
        self.ids.append(known)
        self.texts.append(plain)
        self.metadata.append(encoded)
        self.fields.append(fields)
        self.passages.append(passages)
        self.seen.append(seen)
        self.origins.append(origin)
        return _ROW_BYTES * (1 + len(passages)) + sum(map(sys.getsizeof, (known, plain, encoded, encoded)))

    def number(self, following: int) -> None:
        """Give integer ids, from one on, to the documents without an id."""
        if None in self.ids:
            following = max([following, *(id + 1 for id in self.ids if isinstance(id, int))])
            numbers = itertools.count(following)
            self.ids = [next(numbers) if id is None else id for id in self.ids]

    def extend(self, more: DocumentColumns) -> None:
        """Append more documents."""
        self.ids += more.ids
        self.texts += more.texts
        self.metadata += more.metadata
        self.fields += more.fields
        self.passages += more.passages
        self.seen += more.seen
        self.origins += more.origins


class DocumentBatch(NamedTuple):
    """Documents that are stored together, the tokens of each of their rows, and their token arrays."""

    documents: DocumentColumns
    lengths: np.ndarray
    dim: int
    arrays: dict[str, np.ndarray]

    def select(self, positions: Sequence[int]) -> DocumentBatch:
        """Return some of the documents, by ascending positions."""
        counts = self.documents.rows
        rows = np.isin(np.repeat(np.arange(len(counts)), counts), positions)
        tokens = np.repeat(rows, self.lengths)
        documents = DocumentColumns([self.documents[i] for i in positions])
        arrays = {name: array[tokens] for name, array in self.arrays.items()}
        return self._replace(documents=documents, lengths=self.lengths[rows], arrays=arrays)


def has_texts(connection: sqlite3.Connection) -> bool:
    """Whether a document has a text."""
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM content WHERE text IS NOT NULL)").fetchone()[0])


def count_row_texts(connection: sqlite3.Connection) -> int:
    """Return how many documents and passages have a text."""
    rows = "SELECT coalesce(sum(max(passages, 1)), 0) FROM document JOIN content USING (number)"
    return int(connection.execute(f"{rows} WHERE text IS NOT NULL").fetchone()[0])


def text_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of all texts in UTF-8."""
    return int(connection.execute("SELECT coalesce(sum(length(CAST(text AS BLOB))), 0) FROM content").fetchone()[0])


def has_metadata(connection: sqlite3.Connection) -> bool:
    """Whether a document has metadata."""
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM content WHERE metadata <> '{}')").fetchone()[0])


def all_ids(connection: sqlite3.Connection) -> list[Id]:
    """Return all ids in the order of insertion."""
    ids = [id for (id,) in connection.execute("SELECT id FROM document ORDER BY number")]
    if not {*map(type, ids)} <= {int, str}:
        raise damaged("it has ids that are neither str nor int")
    return ids


def next_id(connection: sqlite3.Connection) -> int:
    """Return the integer after the largest id that is one."""
    (largest,) = connection.execute("SELECT max(id) FROM document WHERE id < ''").fetchone()  # texts come after numbers
    if largest is None:
        return 0
    return max(largest + 1, 0)


def find_numbers(connection: sqlite3.Connection, ids: Sequence[Id]) -> dict[Id, int]:
    """Return the numbers of documents by id; ids that are not in the index are left out."""
    found: dict[Id, int] = {}
    if not connection.execute("SELECT EXISTS (SELECT 1 FROM document)").fetchone()[0]:
        return found  # looking for ids in an empty table takes as long as in others
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        statement = f"SELECT id, number FROM document WHERE id IN ({', '.join('?' * len(chunk))})"
        found.update(connection.execute(statement, chunk))
    return found


def find_records(connection: sqlite3.Connection, ids: Sequence[Id]) -> dict[Id, Record]:
    """Return texts and metadata by id; ids that are not in the index are left out."""
    found: dict[Id, Record] = {}
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        marks = ", ".join("?" * len(chunk))
        rows = connection.execute(
            f"SELECT id, passages, content.* FROM document JOIN content USING (number) WHERE id IN ({marks})", chunk
        )
        for id, count, number, metadata, text, checksum in rows.fetchall():
            check_row("content", (number, id, metadata, text, checksum))
            fields = decode_json(metadata, f"metadata of {id!r:.60}")
            if not isinstance(fields, dict) or not (text is None or isinstance(text, str)):
                raise damaged(f"its document {id!r:.60} has values of a wrong type")
            found[id] = Record(id, text, fields, find_passages(connection, number, count))
    return found


def find_passages(connection: sqlite3.Connection, number: int, count: int) -> tuple[Passage, ...]:
    """Return the passages of a document with this number, which has so many."""
    if not count:
        return ()
    found = read_rows(
        connection, "passage", "WHERE number BETWEEN ? AND ? ORDER BY number", (number, number + count - 1)
    )
    if len(found) != count:
        raise damaged(f"it has {len(found)} passages of the document with the number {number}, which has {count}")
    passages = []
    for row_id, start, end, title, metadata in found:
        own = None if metadata is None else decode_json(metadata, f"metadata of the passage {row_id}")
        passages.append(Passage(start, end, title, own))
    return tuple(passages)


def expand_rows(connection: sqlite3.Connection, numbers: Sequence[int]) -> np.ndarray:
    """Return the row ids of documents by their numbers, those of each document together."""
    counts = np.ones(len(numbers), dtype="int64")
    for first in range(0, len(numbers), _CHUNK):
        chunk = list(numbers[first : first + _CHUNK])
        marks = ", ".join("?" * len(chunk))
        statement = f"SELECT number, passages FROM document WHERE passages > 0 AND number IN ({marks})"
        found = dict(connection.execute(statement, chunk).fetchall())
        counts[first : first + len(chunk)] = [found.get(number, 1) for number in chunk]
    return consecutive(np.array(numbers, dtype="int64"), counts)


def insert_documents(connection: sqlite3.Connection, numbers: Sequence[int], given: DocumentColumns) -> None:
    """Insert documents under their `numbers`; new metadata keys get columns."""
    names: dict[str, str] = {}
    if any(given.fields):
        make_fields(connection, chain.from_iterable(given.fields))
        names = {field.folded: field.column for field in known_fields(connection)}
    sizes = [len(text or "") + len(metadata) for text, metadata in zip(given.texts, given.metadata, strict=True)]
    for first, last in split_by_rows(lengths_to_offsets(sizes), _WRITTEN, _ROWS):
        own, some = numbers[first:last], given[first:last]
        if names:
            values: Iterable[Any] = zip(*map(_field_values, some.fields, repeat(names)), strict=True)
        else:
            values = ()
        fields = _without_null(dict(zip(names.values(), values, strict=True)))
        counts = [len(each) for each in some.passages]
        document = {"number": own, "id": some.ids, "passages": counts, **fields}
        document["checksum"] = document_checksums(own, some.ids, counts, fields)
        content = {"number": own, "metadata": some.metadata, **_without_null({"text": some.texts})}
        content["checksum"] = content_checksums(own, some.ids, some.metadata, some.texts)
        _insert_columns(connection, "document", document)
        _insert_columns(connection, "content", content)
        if any(counts):
            insert_rows(connection, "passage", _passage_rows(own, some.passages))
        insert_origins(connection, own, some.origins)


def _passage_rows(numbers: Sequence[int], passages: Sequence[tuple[Passage, ...]]) -> Iterator[Sequence[Any]]:
    """Yield the rows of the passages of documents with these numbers."""
    for number, each in zip(numbers, passages, strict=True):
        for row_id, (start, end, title, metadata) in enumerate(each, number):
            yield row_id, start, end, title, None if metadata is None else dump_json(metadata)


def row_texts(connection: sqlite3.Connection, numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield the row ids and texts of those documents that have one, whole or of each passage."""
    stored = "SELECT passages, text FROM document JOIN content USING (number) WHERE text IS NOT NULL AND number = ?"
    ranges = "SELECT number, start, stop, title FROM passage WHERE number BETWEEN ? AND ? ORDER BY number"
    for number in numbers:
        for passages, text in connection.execute(stored, (number,)):
            if not passages:
                yield number, text
            for row_id, *values in connection.execute(ranges, (number, number + passages - 1)) if passages else ():
                yield row_id, Passage(*values).text_in(text)


def remove_documents(
    connection: sqlite3.Connection, row: SegmentRow, numbers: Sequence[int], row_ids: Sequence[int]
) -> SegmentRow:
    """Remove documents of one segment: write tombstones and delete their rows; return the segment's new row."""
    insert_rows(connection, "tombstone", ((row.name, row_id) for row_id in row_ids))
    row = row._replace(removed=row.removed + len(row_ids), documents=row.documents - len(numbers))
    write_segment(connection, row)
    connection.executemany("DELETE FROM passage WHERE number = ?", zip(row_ids, strict=True))
    for table in ("document", "content", "origin"):
        connection.executemany(f"DELETE FROM {table} WHERE number = ?", zip(numbers, strict=True))
    return row


def document_checksums(
    row_ids: Sequence[int], ids: Sequence[Id], passages: Sequence[int], fields: Mapping[str, Sequence[SqlValue]]
) -> list[int]:
    """Return the checksums of rows of ``document``; `fields`: the values of each field column.

    NULL is left out of the checksum, since a column may have been added after the row was written.
    """
    spelled = [spell(row_ids), spell(ids), spell(passages)]
    for column, values in fields.items():
        [name] = spell([column])
        given = iter(spell(value for value in values if value is not None))
        spelled.append(["" if value is None else name + next(given) for value in values])
    return checksums("document", spelled)


def content_checksums(
    row_ids: Sequence[int], ids: Sequence[Id], metadata: Sequence[str], texts: Sequence[str | None]
) -> list[int]:
    """Return the checksums of rows of ``content``; they cover the ids too, which this table does not have."""
    return checksums("content", [spell(row_ids), spell(ids), spell(metadata), spell(texts)])


def _insert_columns(connection: sqlite3.Connection, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Insert new rows into a table, many in one statement, which takes half the time of a statement for each."""
    width = len(columns)
    values = list(columns.values())
    row = f"({', '.join('?' * width)})"
    count = max(1, _MOST_VALUES // width)
    statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {row}"
    several = len(values[0]) // count * count
    row_by_row: list[Any] = [None] * (several * width)
    for place, column in enumerate(values):
        row_by_row[place::width] = column[:several]
    full = f"{statement}{f', {row}' * (count - 1)}"
    for first in range(0, len(row_by_row), count * width):
        connection.execute(full, row_by_row[first : first + count * width])
    # SQLite copies what is bound: rows of a megabyte, of which few are given at once, one by one.
    connection.executemany(statement, zip(*(column[several:] for column in values), strict=True))


def _without_null(columns: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return the columns that hold a value; the others get NULL by being left out, and binding a None takes long."""
    return {name: values for name, values in columns.items() if values.count(None) < len(values)}


def _field_values(fields: Mapping[str, SqlValue], columns: dict[str, str]) -> list[Any]:
    if not fields:
        return [None] * len(columns)
    # Reversed, so that of keys that differ only in case the first one wins.
    folded = {fold_name(key): value for key, value in reversed(list(fields.items()))}
    return [folded.get(name) for name in columns]
