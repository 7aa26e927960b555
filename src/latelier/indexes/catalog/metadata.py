"""Metadata: exact JSON, which `get` returns; one column per key, which filters read; and the table ``field``.

Each key gets a column of the table ``document``: ``f0``, ``f1``, ... up to 500 columns; the table ``field`` names them.
As in SQL, the case of ASCII letters does not matter: ``lang`` and ``Lang`` are one field, and if a document has both,
the field holds the first. ``id``, ``text`` and ``metadata`` are columns of every document, and ``true`` and ``false``
are constants of SQL, so metadata keys of these names get no column.
"""

from __future__ import annotations

import math
import re
import sqlite3
import string
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from latelier.errors import InvalidArgumentError
from latelier.indexes.catalog.rows import damaged, insert_rows, read_rows
from latelier.indexes.catalog.values import INT64, as_key, dump_json, encode_json, plain_str
from latelier.indexes.results import Id

__all__ = [
    "RESERVED",
    "Field",
    "SqlValue",
    "StoredMetadata",
    "encode_metadata",
    "fold_name",
    "is_nameable",
    "known_fields",
    "make_fields",
    "new_fields",
]

SqlValue: TypeAlias = "int | float | str | None"

RESERVED = ("id", "text", "metadata")
_CONSTANTS = ("true", "false")  # SQLite reads these as constants in a subquery, even in quotes
_MOST_FIELDS = 500
# Of dicts and lists, the metadata itself included. Readers in other languages and frameworks stop somewhat deeper.
_MOST_LEVELS = 100
_COLUMN = re.compile(r"f\d{1,3}", re.ASCII)
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
# All documents without metadata share this mapping: thousands of dicts would slow down the garbage collector.
_NO_FIELDS: Mapping[str, SqlValue] = MappingProxyType({})


class StoredMetadata(dict[str, Any]):
    """The metadata of a document that is stored elsewhere, at any depth: older versions did not limit it."""


class Field(NamedTuple):
    """A metadata key that filters can name.

    Attributes
    ----------
    folded
        The key as SQL compares names, see `fold_name`.
    spelling
        The key as the first document spells it.
    column
        Its column in ``document``.
    """

    folded: str
    spelling: str
    column: str


def encode_metadata(metadata: object, id: Id) -> tuple[str, Mapping[str, SqlValue]]:
    """Return the exact JSON of a document's metadata, and one SQL value per key.

    Booleans become 0 and 1, lists and dicts JSON text, and integers beyond 64 bits the nearest float.

    Raises
    ------
    InvalidArgumentError
        If the metadata is not a mapping of strings to JSON values, or is nested more than 100 levels deep and is no
        `StoredMetadata`.

    Examples
    --------
    >>> json, values = encode_metadata({"open": True, "tags": ["a"]}, "doc")
    >>> json
    '{"open":true,"tags":["a"]}'
    >>> values
    {'open': 1, 'tags': '["a"]'}
    """
    if metadata is None:
        return "{}", _NO_FIELDS
    if not isinstance(metadata, Mapping):
        raise InvalidArgumentError(
            f"document {id!r} came with {type(metadata).__name__} as its metadata; give a dict or None."
        )
    what = f"the metadata of document {id!r}"
    plain = {as_key(key, what): value for key, value in metadata.items()}
    levels = None if isinstance(metadata, StoredMetadata) else _MOST_LEVELS
    return encode_json(plain, what, levels=levels), {key: _sql_value(value) for key, value in plain.items()}


def fold_name(name: str) -> str:
    """Return the form in which SQL compares names: ASCII letters in lower case, all others unchanged."""
    return name.translate(_FOLD)


def known_fields(connection: sqlite3.Connection) -> list[Field]:
    """Return all fields in the order in which they were made.

    Raises
    ------
    CorruptedIndexError
        If a row is damaged. An invalid column name is damage too, since it becomes part of SQL statements.
    """
    fields = [Field(*row) for row in read_rows(connection, "field", "ORDER BY rowid")]
    for field in fields:
        if not all(isinstance(part, str) for part in field) or not _COLUMN.fullmatch(field.column):
            raise damaged(f"its field {field.spelling!r:.60} has no valid column")
    return fields


def make_fields(connection: sqlite3.Connection, keys: Iterable[str]) -> None:
    """Add columns for keys without one, up to 500 in all."""
    fields = known_fields(connection)
    for number, key in enumerate(new_fields((field.spelling for field in fields), keys), len(fields)):
        column = f"f{number}"
        connection.execute(f"ALTER TABLE document ADD COLUMN {column}")
        insert_rows(connection, "field", [(fold_name(key), key, column)])


def new_fields(known: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Return those of some keys that become fields beside the known ones, up to 500 in all.

    Examples
    --------
    >>> new_fields(["lang"], ["Lang", "id", "year", "Year"])
    ['year']
    """
    folded = {fold_name(key) for key in known}
    found = []
    for key in dict.fromkeys(keys):
        name = fold_name(key)
        if name not in folded and is_nameable(name) and len(folded) < _MOST_FIELDS:
            folded.add(name)
            found.append(key)
    return found


def is_nameable(folded: str) -> bool:
    """Whether filters can name a key of the metadata, given as `fold_name` returns it."""
    # A null character would end the statement.
    return folded not in RESERVED and folded not in _CONSTANTS and "\0" not in folded


def _sql_value(value: Any) -> SqlValue:
    if isinstance(value, (list, dict)):
        return dump_json(value)
    if isinstance(value, int) and int(value) not in INT64:
        return float(value) if abs(value) < 2**1023 else math.copysign(math.inf, 1 if value > 0 else -1)
    if isinstance(value, str):
        return plain_str(value)
    # int() and float() also convert booleans and numpy's subclasses to plain numbers.
    return None if value is None else int(value) if isinstance(value, int) else float(value)
