"""Which metadata keys filters can name, and the columns that hold them.

Each key gets a column of its own, named ``f0``, ``f1``, ... whatever characters the key has. Filters name it by the
key, as SQL does: ASCII case does not matter, so ``lang`` and ``Lang`` are one field (where one document has both, the
first counts). The names ``id``, ``text`` and ``metadata`` are the document's own, ``true`` and ``false`` are SQL's,
and there are at most 500 columns; a key left without one, or one of several spellings alone, is reached as
``metadata ->> '$.Lang'``.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from latelier.indexes.catalog.rows import insert_rows, select_rows
from latelier.indexes.catalog.schema import damaged
from latelier.indexes.values import fold_name

__all__ = ["RESERVED", "Field", "known_fields", "make_fields"]

RESERVED = ("id", "text", "metadata")
_CONSTANTS = ("true", "false")  # even in quotes, SQLite takes no column of a subquery by these names
_MOST = 500
_COLUMN = re.compile(r"f\d{1,3}", re.ASCII)


class Field(NamedTuple):
    """A metadata key: its name as SQL compares it, as it was first spelled, and its column."""

    folded: str
    spelling: str
    column: str


def known_fields(connection: sqlite3.Connection) -> list[Field]:
    """Return all fields in the order in which they came up.

    Raises
    ------
    CorruptedIndexError
        If one is not what was written: their columns become part of statements.
    """
    fields = [Field(*row) for row in select_rows(connection, "field", "ORDER BY rowid")]
    for field in fields:
        if not all(isinstance(part, str) for part in field) or not _COLUMN.fullmatch(field.column):
            raise damaged(f"its field {field.spelling!r:.60} has no column of its own")
    return fields


def make_fields(connection: sqlite3.Connection, keys: Iterable[str]) -> None:
    """Make columns for keys that have none."""
    known = {field.folded for field in known_fields(connection)}
    for key in dict.fromkeys(keys):
        folded = fold_name(key)
        if folded in known or not _is_nameable(folded) or len(known) == _MOST:
            continue
        column = f"f{len(known)}"
        connection.execute(f"ALTER TABLE document ADD COLUMN {column}")
        insert_rows(connection, "field", [(folded, key, column)])
        known.add(folded)


def _is_nameable(folded: str) -> bool:
    # SQLite reads a statement up to its first null character.
    return folded not in RESERVED and folded not in _CONSTANTS and "\0" not in folded
