"""Search for words: SQLite's FTS5 table of the texts, and BM25.

It holds the words of what `row_texts` returns, by row id, not the texts themselves: an external-content table. FTS5
keeps it in four further tables, see `FTS5_TABLES`. Documents without a text are not in it. Removing a document from it
needs the text, so that is done before the row of ``content`` is deleted.

Damage of these tables raises `CorruptedIndexError`, which names the cure: they are made again from the texts.

A text is given to FTS5 as its terms, see `latelier.indexes.words`, and a query too: each is quoted, so that FTS5's
operators have no meaning in it.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

import numpy as np

from latelier.errors import CorruptedIndexError, InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.ranking import Ranking
from latelier.indexes.results import Passage
from latelier.indexes.store import forks
from latelier.indexes.store.integrity import damaged
from latelier.indexes.words import DEFAULT_TOKENIZER, TOKENIZERS, document_terms, query_terms
from latelier.utils.checks import check_choice
from latelier.utils.values import plain_str

# The statement of its table. FTS5's tokenizer cuts at spaces what `document_terms` has cut; the comment says how. BM25
# needs FTS5's defaults: the frequencies of words (detail=full) and the lengths of documents (columnsize=1).
TABLE_STATEMENTS = {
    name: "CREATE VIRTUAL TABLE keyword USING fts5(text, content='content', content_rowid='number', "
    f"tokenize='ascii' /* {name} */)"
    for name in TOKENIZERS
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
# Parts of SQLite's messages about damage of the table; and of the one for a table that could not be made, as on a full
# disk, which also names FTS5.
_DAMAGE = ("malformed", "vtable constructor failed", "fts5", "constraint failed")
_NOT_MADE = "error creating shadow table"


@cache
def has_fts5() -> bool:
    """Whether this Python's SQLite has FTS5."""
    with forks.using(), closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE keyword USING fts5(text)")
        except sqlite3.OperationalError:
            return False
    return True


def check_compaction(keywords: object, tokenizer: object) -> None:
    """Check the arguments of `Index.compact` that are about keywords; see `check_options`."""
    check_options(keywords if tokenizer is None else bool(keywords), tokenizer)


def check_expected(where: str, stored: str | None, keywords: bool | None, tokenizer: str | None) -> None:
    """Raise an error if the keyword index is not what a user expects, who gives one of the last two arguments.

    `stored`: its tokenizer; None if it has no keyword index. `keywords`, `tokenizer`: from `check_options`.
    """
    if (stored is None) != (keywords is False) or tokenizer not in (None, stored):
        raise InvalidArgumentError(
            f"{where} has {f'the tokenizer {stored!r}' if stored else 'no keyword index'}; leave out keywords and "
            "tokenizer, and call compact(keywords=..., tokenizer=...) to change it."
        )


def check_options(keywords: object, tokenizer: object) -> str | None:
    """Return the tokenizer of a new index; None for one without a keyword index.

    `keywords`: True or False; None is True if SQLite has FTS5. `tokenizer`: a name of `TOKENIZERS`; None for the
    default.
    """
    check_choice("tokenizer", tokenizer, TOKENIZERS, optional=True)
    if tokenizer is not None and keywords is False:
        raise InvalidArgumentError("received a tokenizer without a keyword index; give keywords=True, or omit it.")
    if keywords is False or not (has_fts5() or keywords or tokenizer):
        return None
    if not has_fts5():
        raise _missing_fts5()
    if isinstance(tokenizer, str):
        return plain_str(tokenizer)
    return DEFAULT_TOKENIZER


def stored_tokenizer(connection: sqlite3.Connection) -> str | None:
    """Return the tokenizer of the keyword index; None if there is no keyword index."""
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

    `progress`: called with the number of documents of each step.
    """
    drop_keywords(connection)
    with translate_damage():
        connection.execute(TABLE_STATEMENTS[tokenizer])

    def numbers() -> Iterator[int]:
        for (number,) in connection.execute("SELECT number FROM document ORDER BY number"):
            yield number
            progress(1)

    insert_texts(connection, row_texts(connection, numbers()))
    merge_keywords(connection)


def drop_keywords(connection: sqlite3.Connection) -> None:
    """Drop the keyword index, damaged or not, if there is one."""
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        return
    # FTS5 reads a table before it drops it: what may be damaged is replaced with the tables of an empty index.
    with closing(sqlite3.connect(":memory:")) as empty, translate_damage():
        empty.execute(TABLE_STATEMENTS[tokenizer])
        for table in FTS5_TABLES:
            connection.execute(f"DELETE FROM {table}")
            for row in empty.execute(f"SELECT * FROM {table}"):
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        connection.execute("DROP TABLE keyword")


def row_texts(connection: sqlite3.Connection, numbers: Iterable[int] | None = None) -> Iterator[tuple[int, str]]:
    """Yield the row ids and texts of documents that have one, whole or of each passage; None: of all documents."""
    stored = (
        "SELECT number, passages, text FROM document JOIN content USING (number) "
        "WHERE text IS NOT NULL AND number {} ORDER BY number"
    )
    if numbers is None:
        found: Iterable[tuple[int, int, str]] = connection.execute(stored.format(">= 0"))
    else:
        found = (row for number in numbers for row in connection.execute(stored.format("= ?"), (number,)))
    ranges = "SELECT number, start, stop, title FROM passage WHERE number BETWEEN ? AND ? ORDER BY number"
    for number, passages, text in found:
        if passages:
            for row_id, *values in connection.execute(ranges, (number, number + passages - 1)):
                yield row_id, Passage(*values).text_in(text)
        else:
            yield number, text


def insert_texts(connection: sqlite3.Connection, rows: Iterable[tuple[int, str]]) -> None:
    """Add texts by row id."""
    with translate_damage():
        check_config(connection)
        given = _spelled(connection, rows)
        connection.executemany("INSERT INTO keyword (rowid, text) VALUES (?, ?)", given)


def delete_texts(connection: sqlite3.Connection, rows: Iterable[tuple[int, str]]) -> None:
    """Remove texts, given as they were added, before their rows of ``content`` are deleted."""
    # FTS5 does not store the texts: this form of its insert gives it the text to remove.
    statement = "INSERT INTO keyword (keyword, rowid, text) VALUES ('delete', ?, ?)"
    with translate_damage():
        check_config(connection)
        connection.executemany(statement, _spelled(connection, rows))


def _spelled(connection: sqlite3.Connection, rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield texts as FTS5 is given them: their terms, with spaces between."""
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        return
    for row_id, text in rows:
        yield row_id, " ".join(document_terms(text, tokenizer))


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
    """Check the settings that FTS5 stores with its table, before it reads them."""
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
        f"SQLite {sqlite3.sqlite_version} of this Python has no FTS5, which a keyword index "
        "needs. Use another build of Python, or make the index with keywords=False."
    )


# Values of another type than FTS5 writes, which it may read all the same.
_WRONG_TYPES = (
    "SELECT EXISTS (SELECT 1 FROM keyword_data WHERE typeof(block) <> 'blob') "
    "OR EXISTS (SELECT 1 FROM keyword_docsize WHERE typeof(sz) <> 'blob') "
    "OR EXISTS (SELECT 1 FROM keyword_idx WHERE typeof(segid) || typeof(term) || typeof(pgno) <> 'integerblobinteger')"
)
# Words that are found when all words are read, but not when one is looked up, as a search does.
_LOST_WORDS = (
    "SELECT EXISTS (SELECT 1 FROM keyword_terms AS word WHERE NOT EXISTS "
    "(SELECT 1 FROM keyword_terms AS found WHERE found.term = word.term AND found.cnt = word.cnt))"
)


def check_keywords(connection: sqlite3.Connection) -> None:
    """Compare the keyword index with the texts, in a copy: FTS5's check is a write, which a reader may not do."""
    if stored_tokenizer(connection) is None:
        return
    with closing(sqlite3.connect("")) as copy, translate_damage():  # a temporary file, which SQLite deletes
        check_config(connection)
        if connection.execute(_WRONG_TYPES).fetchone()[0]:
            raise keyword_damage("it has values of a wrong type")
        connection.backup(copy)
        copy.execute("CREATE TABLE spelled (number INTEGER PRIMARY KEY, text TEXT)")
        copy.executemany("INSERT INTO spelled VALUES (?, ?)", _spelled(connection, row_texts(copy)))
        copy.execute("DELETE FROM content")  # FTS5 compares with what this table holds
        copy.execute("INSERT INTO content SELECT number, '{}', text, 0 FROM spelled")
        # The rank 1 compares with the texts, which older versions of FTS5 always do.
        copy.execute("INSERT INTO keyword (keyword, rank) VALUES ('integrity-check', 1)")
        copy.execute("CREATE VIRTUAL TABLE keyword_terms USING fts5vocab(keyword, row)")
        if copy.execute(_LOST_WORDS).fetchone()[0]:
            raise keyword_damage("words cannot be looked up in it")


# FTS5's bm25() has the factor k1 + 1 in its numerator, so no word adds more than that times its idf.
_MAX_TF = 2.2
# FTS5 gives words of more than half of the documents this idf.
_MIN_IDF = 1e-6
# Bytes of SQLite's longest variable-length integer.
_VARINT_BYTES = 9
# Rows read at a time where a filter selects the documents.
_ROWS = 4096


def rank_by_keywords(
    connection: sqlite3.Connection,
    text: str,
    k: int,
    allowed: np.ndarray | None = None,
    numbers: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Ranking:
    """Return the `k` best documents that hold at least one word of a query, by BM25 (k1 = 1.2, b = 0.75).

    `allowed`: row ids, ascending. `numbers`: returns the numbers of the documents of rows, of which the best one counts
    for its document; None: each row is a document.

    The score is the sum over its distinct words of ``idf * (k1 + 1) * tf / (tf + k1 * (1 - b + b * length / average
    length))`` with ``idf = max(1e-6, log((N - n + 0.5) / (n + 0.5)))``, FTS5's ``bm25()`` with the sign changed.

    FTS5 takes two microseconds per document, so documents with only frequent words are left out of the first attempt;
    it is final if the k-th best score exceeds all that those words can add (MaxScore, Turtle and Flood 1995).
    """
    words = _searched_words(connection, text)
    with translate_damage():
        check_config(connection)
        idf = _inverse_frequencies(connection, words)
        frequent, most = _frequent_words(idf)
        if frequent:
            required = [word for word in idf if word not in frequent]
            found = _ranked(connection, list(idf), required, k, allowed, numbers)
            if len(found.rows) == k and found.scores[-1] > most:
                return found
        return _ranked(connection, list(idf), [], k, allowed, numbers)


def _inverse_frequencies(connection: sqlite3.Connection, words: Iterable[str]) -> dict[str, float]:
    """Return the idf of each word that a document holds, as FTS5 computes it."""
    documents = _count_texts(connection)
    found = {}
    for word in words:
        matching = connection.execute("SELECT count(*) FROM keyword WHERE keyword MATCH ?", (f'"{word}"',))
        if count := matching.fetchone()[0]:
            ratio = (documents - count + 0.5) / (count + 0.5)
            if ratio > 0:
                found[word] = max(_MIN_IDF, math.log(ratio))
            else:
                found[word] = _MIN_IDF
    return found


def _count_texts(connection: sqlite3.Connection) -> int:
    """Return the number of documents in the keyword index: the first variable-length integer of FTS5's row 1."""
    row = connection.execute("SELECT block FROM keyword_data WHERE id = 1").fetchone()
    if row is not None and isinstance(row[0], bytes):
        block = row[0]
    else:
        block = b""
    value = 0
    for place, byte in enumerate(block[:_VARINT_BYTES], 1):
        if place == _VARINT_BYTES:
            return value << 8 | byte
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value
    if block:
        raise keyword_damage("its totals are not numbers")
    return 0


def _searched_words(connection: sqlite3.Connection, text: str) -> list[str]:
    """Return the words of a query that are searched for; raise `LatelierError` if there is no keyword index."""
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        raise LatelierError(
            "this index has no keyword index of its texts: compact(keywords=True) makes one, or search with "
            "mode='vectors'."
        )
    return query_terms(text, tokenizer)


def _frequent_words(idf: dict[str, float]) -> tuple[set[str], float]:
    """Return the most frequent words that can together add no more than the idf of the rarest word, and how much."""
    words = sorted(idf, key=idf.__getitem__)
    frequent = set()
    most = 0.0
    for word in words[:-1]:
        if most + _MAX_TF * idf[word] > idf[words[-1]]:
            break
        frequent.add(word)
        most += _MAX_TF * idf[word]
    return frequent, most * (1 + 1e-9)  # FTS5 adds up in another order


def _ranked(
    connection: sqlite3.Connection,
    words: list[str],
    required: list[str],
    k: int,
    allowed: np.ndarray | None,
    numbers: Callable[[np.ndarray], np.ndarray] | None,
) -> Ranking:
    """Rank documents by `words`: those that hold one of `required`, if given, and one of `words` otherwise."""
    if not words:
        return Ranking.empty()
    condition = "keyword MATCH ?"
    values = [_any_of(words)]
    if required:
        # The plus sign: go through the documents of all words once, instead of searching for each number.
        condition += " AND +rowid IN (SELECT rowid FROM keyword WHERE keyword MATCH ?)"
        values.append(_any_of(required))
    statement = f"SELECT rowid, -bm25(keyword) AS score FROM keyword WHERE {condition} ORDER BY score DESC, rowid"
    if allowed is None and numbers is None:
        statement += f" LIMIT {int(k)}"
    cursor = connection.execute(statement, values)
    ranking = Ranking.empty()
    while len(ranking.rows) < k and (rows := cursor.fetchmany(_ROWS)):
        block = np.array(rows, dtype=[("row_id", "int64"), ("score", "float64")])
        if not (np.isfinite(block["score"]) & (block["score"] > 0)).all():
            raise keyword_damage("it gives scores that are not positive numbers")
        if allowed is not None:
            block = block[np.isin(block["row_id"], allowed)]
        own = block["row_id"] if numbers is None else numbers(block["row_id"])
        more = Ranking(own, block["score"], block["row_id"])
        ranking = Ranking(*map(np.append, ranking, more)).best_rows(k)
    return ranking


def _any_of(words: list[str]) -> str:
    """Return the FTS5 expression of documents that hold at least one of some words, none of which has a quote."""
    return " OR ".join(map('"{}"'.format, words))
