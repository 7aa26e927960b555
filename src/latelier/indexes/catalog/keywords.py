"""The keyword index of the texts: the FTS5 table ``keyword``, written in the same transactions as the documents.

It holds the words of ``content.text``, not the texts themselves: an external-content table. FTS5 keeps it in four
further tables, see `FTS5_TABLES`. Documents without a text are not in it. Removing a document from it needs the text,
so that is done before the row of ``content`` is deleted.

Damage of these tables raises `CorruptedIndexError`, which names the cure: they are made again from the texts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import Any

from latelier.errors import CorruptedIndexError, InvalidArgumentError, StorageError
from latelier.indexes.catalog import forks
from latelier.indexes.catalog.rows import damaged
from latelier.indexes.catalog.values import plain_str
from latelier.utils.checks import check_choice, describe

__all__ = [
    "DEFAULT_TOKENIZER",
    "FTS5_TABLES",
    "TABLE_STATEMENTS",
    "TOKENIZERS",
    "check_compaction",
    "check_config",
    "check_expected",
    "check_options",
    "check_tokenizer",
    "delete_texts",
    "drop_keywords",
    "flush_keywords",
    "has_fts5",
    "insert_texts",
    "is_merged",
    "keyword_damage",
    "make_keywords",
    "merge_keywords",
    "stored_tokenizer",
    "translate_damage",
]

# The tokenizers of users, in FTS5's words. Accents are removed from all letters, and not only from those with one code
# point (remove_diacritics 1, FTS5's default).
TOKENIZERS = {
    "porter": "porter unicode61 remove_diacritics 2",
    "unicode61": "unicode61 remove_diacritics 2",
    "trigram": "trigram",
}
# The stemmer finds more than whole words and trigrams do in every English collection that was measured, see
# docs/indexing.md.
DEFAULT_TOKENIZER = "porter"
# The statements that an index may have for its table, by tokenizer. BM25 needs FTS5's defaults: the frequencies of
# words (detail=full) and the lengths of documents (columnsize=1).
TABLE_STATEMENTS = {
    name: "CREATE VIRTUAL TABLE keyword USING fts5(text, content='content', content_rowid='number', "
    f"tokenize='{spelling}')"
    for name, spelling in TOKENIZERS.items()
}
# The tables that FTS5 makes for it: the statements are part of FTS5's file format.
FTS5_TABLES = {
    "keyword_data": "CREATE TABLE 'keyword_data'(id INTEGER PRIMARY KEY, block BLOB)",
    "keyword_idx": "CREATE TABLE 'keyword_idx'(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID",
    "keyword_docsize": "CREATE TABLE 'keyword_docsize'(id INTEGER PRIMARY KEY, sz BLOB)",
    "keyword_config": "CREATE TABLE 'keyword_config'(k PRIMARY KEY, v) WITHOUT ROWID",
}
# What ``keyword_config`` holds. Further rows would change how FTS5 ranks and merges.
_FTS5_CONFIG = [("version", 4)]
# Texts in memory at a time while the keyword index is made.
_TEXTS_PER_STEP = 64
# Parts of SQLite's messages about damage of the table; and of the one for a table that could not be made, as on a full
# disk, which also names FTS5.
_DAMAGE = ("malformed", "vtable constructor failed", "fts5", "constraint failed")
_NOT_MADE = "error creating shadow table"


@cache
def has_fts5() -> bool:
    """Whether this Python's SQLite has FTS5, and with it all tokenizers (SQLite 3.34)."""
    with forks.using(), closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE keyword USING fts5(text, tokenize='trigram')")
        except sqlite3.OperationalError:
            return False
    return True


def check_tokenizer(tokenizer: object) -> str:
    """Return the name of a tokenizer; the default one for None.

    Raises
    ------
    InvalidArgumentError
        If there is no such tokenizer.
    """
    check_choice("tokenizer", tokenizer, TOKENIZERS, optional=True)
    return plain_str(tokenizer) if isinstance(tokenizer, str) else DEFAULT_TOKENIZER


def check_compaction(keywords: object, tokenizer: object) -> None:
    """Check the arguments of `Index.compact` that are about keywords; see `check_options`.

    Raises
    ------
    InvalidArgumentError
        Also if a tokenizer is given without ``keywords=True``.
    """
    if tokenizer is not None and not keywords:
        raise InvalidArgumentError("received a tokenizer without keywords=True; give both to make a keyword index.")
    check_options(keywords, tokenizer)


def check_expected(where: str, stored: str | None, keywords: bool | None, tokenizer: str | None) -> None:
    """Raise an error if the keyword index is not what a user expects, who gives one of the last two arguments.

    Parameters
    ----------
    where
        What messages call the index.
    stored
        Its tokenizer; None if it has no keyword index.
    keywords, tokenizer
        From `check_options`.
    """
    if stored is None if keywords is False else stored is not None and tokenizer in (None, stored):
        return
    arguments = "keywords=True" if tokenizer is None else f"keywords=True, tokenizer={tokenizer!r}"
    raise InvalidArgumentError(
        f"{where} has {f'the tokenizer {stored!r}' if stored else 'no keyword index'}; leave out keywords and "
        f"tokenizer, and call compact({'keywords=False' if keywords is False else arguments}) to change it."
    )


def check_options(keywords: object, tokenizer: object) -> str | None:
    """Return the tokenizer of a new index; None for one without a keyword index.

    Parameters
    ----------
    keywords
        True or False; None is True if SQLite has FTS5.
    tokenizer
        A name of `TOKENIZERS`; None for the default.

    Raises
    ------
    InvalidArgumentError
        If a value is none of these, or a tokenizer is given with ``keywords=False``.
    StorageError
        If a keyword index is asked for, and SQLite has no FTS5.

    Examples
    --------
    >>> check_options(True, "trigram"), check_options(False, None)
    ('trigram', None)
    """
    if not isinstance(keywords, (bool, type(None))):
        raise InvalidArgumentError(f"received keywords={describe(keywords)}; expected True, False or None.")
    name = check_tokenizer(tokenizer)
    if keywords is False:
        if tokenizer is not None:
            raise InvalidArgumentError("received a tokenizer with keywords=False; omit one of them.")
        return None
    if has_fts5():
        return name
    if keywords or tokenizer is not None:
        raise _missing_fts5()
    return None


def stored_tokenizer(connection: sqlite3.Connection) -> str | None:
    """Return the tokenizer of the keyword index; None if there is no keyword index.

    Raises
    ------
    CorruptedIndexError
        If its table is not one that this library makes.
    """
    row = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'keyword'").fetchone()
    if row is None:
        return None
    for name, statement in TABLE_STATEMENTS.items():
        if row[0] == statement:
            return name
    raise damaged("its table 'keyword' is not that of an index")


def make_keywords(
    connection: sqlite3.Connection, tokenizer: str, progress: Callable[[int], Any] = lambda documents: None
) -> None:
    """Make the keyword index of all stored texts, in place of the present one, if any.

    Parameters
    ----------
    connection
        In a writing transaction.
    tokenizer
        A name of `TOKENIZERS`.
    progress
        Called with the number of documents of each step.
    """
    drop_keywords(connection)
    with translate_damage():
        connection.execute(TABLE_STATEMENTS[tokenizer])
    rows = connection.execute("SELECT number, text FROM content ORDER BY number")
    while block := rows.fetchmany(_TEXTS_PER_STEP):
        insert_texts(connection, block)
        progress(len(block))
    merge_keywords(connection)


def drop_keywords(connection: sqlite3.Connection) -> None:
    """Drop the keyword index, damaged or not, if there is one."""
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        return
    with suppress(CorruptedIndexError), translate_damage():
        connection.execute("DROP TABLE keyword")
        return
    # FTS5 reads a table before it drops it: replace what cannot be read with the tables of an empty index.
    empty = sqlite3.connect(":memory:")
    try:
        with translate_damage():
            empty.execute(TABLE_STATEMENTS[tokenizer])
            for table in FTS5_TABLES:
                connection.execute(f"DELETE FROM {table}")
                for row in empty.execute(f"SELECT * FROM {table}"):
                    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            connection.execute("DROP TABLE keyword")
    finally:
        empty.close()


def insert_texts(connection: sqlite3.Connection, rows: Iterable[tuple[int, str | None]]) -> None:
    """Add documents, given as number and text, whose rows of ``content`` exist; those without a text are left out."""
    given = ((number, text) for number, text in rows if text is not None)
    with translate_damage():
        check_config(connection)
        connection.executemany("INSERT INTO keyword (rowid, text) VALUES (?, ?)", given)


def delete_texts(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Remove documents by number, ascending, before their rows of ``content`` are deleted."""
    # FTS5 does not store the texts: this form of its insert gives it the text to remove.
    statement = (
        "INSERT INTO keyword (keyword, rowid, text) "
        "SELECT 'delete', number, text FROM content WHERE number = ? AND text IS NOT NULL"
    )
    with translate_damage():
        check_config(connection)
        connection.executemany(statement, ((number,) for number in numbers))


def flush_keywords(connection: sqlite3.Connection) -> None:
    """Write what FTS5 has in memory to its tables, so that damage raises its error here and not at the commit."""
    with translate_damage():
        connection.execute("SAVEPOINT keyword")  # FTS5 writes everything at the beginning of a savepoint
        connection.execute("RELEASE keyword")


def merge_keywords(connection: sqlite3.Connection) -> None:
    """Merge the parts of the keyword index that separate writes have made, which makes searches faster."""
    with translate_damage():
        check_config(connection)
        connection.execute("INSERT INTO keyword (keyword) VALUES ('optimize')")


def is_merged(connection: sqlite3.Connection) -> bool:
    """Whether `merge_keywords` has nothing to do, or there is no keyword index."""
    if stored_tokenizer(connection) is None:
        return True
    return bool(connection.execute("SELECT count(DISTINCT segid) < 2 FROM keyword_idx").fetchone()[0])


def check_config(connection: sqlite3.Connection) -> None:
    """Check the settings that FTS5 stores with its table, before it reads them.

    Raises
    ------
    CorruptedIndexError
        If they are not those of a new table.
    """
    if connection.execute("SELECT k, v FROM keyword_config LIMIT 2").fetchall() != _FTS5_CONFIG:
        raise keyword_damage("its settings are not those of an index")


def keyword_damage(reason: str) -> CorruptedIndexError:
    """Return the error for a damaged keyword index."""
    return CorruptedIndexError(
        f"the keyword index is damaged: {reason}. No document is affected: compact(keywords=True) makes it again."
    )


@contextmanager
def translate_damage() -> Iterator[None]:
    """Raise SQLite's errors about the keyword index as errors that name their cure."""
    try:
        yield
    except sqlite3.Error as error:
        reason = str(error)
        if "no such module" in reason or "no such tokenizer" in reason:
            raise _missing_fts5() from error
        if _NOT_MADE not in reason and any(sign in reason for sign in _DAMAGE):
            raise keyword_damage(reason) from error
        raise


def _missing_fts5() -> StorageError:
    return StorageError(
        f"SQLite {sqlite3.sqlite_version} of this Python has no FTS5 with the trigram tokenizer (SQLite 3.34), which a "
        "keyword index needs. Use another build of Python, or make the index with keywords=False."
    )
