"""Verification of the keyword index: it is compared with a new one of the same texts, in a temporary database.

FTS5's own check is a write, which an index that is open for reading only does not allow.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.catalog.keywords import (
    TABLE_STATEMENTS,
    check_config,
    keyword_damage,
    stored_tokenizer,
    translate_damage,
)

__all__ = ["keyword_damages"]

# One row per word: its number of occurrences, and sums that change with the document or the place of an occurrence.
_WORDS = (
    "SELECT term, count(*), sum(doc % 1000003), sum(offset), sum((doc % 1000003) * (offset % 1009 + 1) % 1000003) "
    "FROM temp.keyword_terms GROUP BY term ORDER BY term"
)
# The number of words of each document, and of all documents together.
_LENGTHS = "SELECT id, sz FROM keyword_docsize ORDER BY id"
_TOTALS = "SELECT id, block FROM keyword_data WHERE id = 1"
_TEXTS_PER_STEP = 2048


def keyword_damages(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield a message if the keyword index does not match the texts.

    Parameters
    ----------
    connection
        A connection in a reading transaction.

    Yields
    ------
    str
        What is wrong, and the cure.
    """
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        return
    fresh = sqlite3.connect("")  # a temporary file, which SQLite deletes
    try:
        with translate_damage():
            check_config(connection)
            _fill(fresh, connection, tokenizer)
            for statement in (_TOTALS, _LENGTHS, _WORDS):
                if not _is_same(connection, fresh, statement):
                    raise keyword_damage("it does not match the texts")
    except CorruptedIndexError as error:
        yield str(error)
    except StorageError as error:  # this SQLite has no FTS5
        yield f"the keyword index was not checked: {error}"
    finally:
        fresh.close()


def _fill(fresh: sqlite3.Connection, connection: sqlite3.Connection, tokenizer: str) -> None:
    fresh.execute("CREATE TABLE content (number INTEGER PRIMARY KEY, text TEXT)")
    fresh.execute(TABLE_STATEMENTS[tokenizer])
    rows = connection.execute("SELECT number, text FROM content WHERE text IS NOT NULL ORDER BY number")
    while block := rows.fetchmany(_TEXTS_PER_STEP):
        fresh.executemany("INSERT INTO keyword (rowid, text) VALUES (?, ?)", block)
    fresh.commit()


def _is_same(left: sqlite3.Connection, right: sqlite3.Connection, statement: str) -> bool:
    """Whether a statement has the same rows in both databases."""
    try:
        for connection in (left, right):
            connection.execute("CREATE VIRTUAL TABLE temp.keyword_terms USING fts5vocab(main, keyword, instance)")
        rows = right.execute(statement)
        return all(row == rows.fetchone() for row in left.execute(statement)) and rows.fetchone() is None
    finally:
        for connection in (left, right):
            connection.execute("DROP TABLE IF EXISTS temp.keyword_terms")
