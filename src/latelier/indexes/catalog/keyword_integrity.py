"""Verification of the keyword index: FTS5's own check, of a copy of its tables in a temporary database.

The check is a write, which an index that is open for reading only does not allow. It compares the tables with the words
of the texts. It does not look the words up one by one, as a search does, so that is done here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes.catalog.keywords import (
    FTS5_TABLES,
    TABLE_STATEMENTS,
    check_config,
    keyword_damage,
    stored_tokenizer,
    translate_damage,
)
from latelier.indexes.catalog.rows import placeholders

__all__ = ["keyword_damages"]

# Values of another type than FTS5 writes, which it may read all the same.
_WRONG_TYPES = (
    "SELECT EXISTS (SELECT 1 FROM keyword_data WHERE typeof(block) <> 'blob') "
    "OR EXISTS (SELECT 1 FROM keyword_docsize WHERE typeof(sz) <> 'blob') "
    "OR EXISTS (SELECT 1 FROM keyword_idx WHERE typeof(segid) || typeof(term) || typeof(pgno) <> 'integerblobinteger')"
)
# Words that are found when all words are read, but not when one is looked up.
_LOST_WORDS = (
    "SELECT EXISTS (SELECT 1 FROM keyword_terms AS word WHERE NOT EXISTS "
    "(SELECT 1 FROM keyword_terms AS found WHERE found.term = word.term AND found.cnt = word.cnt))"
)


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
    copy = sqlite3.connect("")  # a temporary file, which SQLite deletes
    try:
        with translate_damage():
            check_config(connection)
            if connection.execute(_WRONG_TYPES).fetchone()[0]:
                raise keyword_damage("it has values of a wrong type")
            copy.execute(TABLE_STATEMENTS[tokenizer])
            for table in FTS5_TABLES:
                copy.execute(f"DELETE FROM {table}")
                _copy_rows(connection, f"SELECT * FROM {table}", copy, table)
            # Documents without a text are not in the keyword index.
            copy.execute("CREATE TABLE content (number INTEGER PRIMARY KEY, text TEXT)")
            _copy_rows(connection, "SELECT number, text FROM content WHERE text IS NOT NULL", copy, "content")
            # The rank 1 compares with the texts, which older versions of FTS5 always do.
            copy.execute("INSERT INTO keyword (keyword, rank) VALUES ('integrity-check', 1)")
            copy.execute("CREATE VIRTUAL TABLE keyword_terms USING fts5vocab(keyword, row)")
            if copy.execute(_LOST_WORDS).fetchone()[0]:
                raise keyword_damage("words cannot be looked up in it")
    except CorruptedIndexError as error:
        yield str(error)
    except StorageError as error:  # this SQLite has no FTS5
        yield f"the keyword index was not checked: {error}"
    finally:
        copy.close()


def _copy_rows(source: sqlite3.Connection, statement: str, target: sqlite3.Connection, table: str) -> None:
    rows = source.execute(statement)
    target.executemany(f"INSERT INTO {table} VALUES ({placeholders(len(rows.description))})", rows)
