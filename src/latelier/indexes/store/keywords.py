"""FTS5 table and BM25.

It holds the words of ``content.text``, not the texts themselves: an external-content table. FTS5 keeps it in four
further tables, see `FTS5_TABLES`. Documents without a text are not in it. Removing a document from it needs the text,
so that is done before the row of ``content`` is deleted.

Damage of these tables raises `CorruptedIndexError`, which names the cure: they are made again from the texts.

With the statistics of all parts of a collection, each part gives its documents the scores that one keyword index of the
whole collection would give them.

A query is plain text: each of its words is quoted, so FTS5's operators have no meaning in it.
"""

from __future__ import annotations

import math
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError, InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.results import Ranking
from latelier.indexes.store import connections
from latelier.indexes.store.checks import damaged
from latelier.indexes.values import plain_str
from latelier.utils.checks import check_choice, describe

__all__ = [
    "DEFAULT_TOKENIZER",
    "FTS5_TABLES",
    "MAX_WORDS",
    "TABLE_STATEMENTS",
    "TOKENIZERS",
    "KeywordStatistics",
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
    "query_words",
    "rank_by_keywords",
    "read_length",
    "read_statistics",
    "searched_words",
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
    with connections.using(), closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE keyword USING fts5(text, tokenize='trigram')")
        except sqlite3.OperationalError:
            return False
    return True


def check_tokenizer(tokenizer: object) -> str:
    """Return the name of a tokenizer; the default one for None."""
    check_choice("tokenizer", tokenizer, TOKENIZERS, optional=True)
    return plain_str(tokenizer) if isinstance(tokenizer, str) else DEFAULT_TOKENIZER


def check_compaction(keywords: object, tokenizer: object) -> None:
    """Check the arguments of `Index.compact` that are about keywords; see `check_options`."""
    if tokenizer is not None and not keywords:
        raise InvalidArgumentError("received a tokenizer without keywords=True; give both to make a keyword index.")
    check_options(keywords, tokenizer)


def check_expected(where: str, stored: str | None, keywords: bool | None, tokenizer: str | None) -> None:
    """Raise an error if the keyword index is not what a user expects, who gives one of the last two arguments.

    `stored`: its tokenizer; None if it has no keyword index. `keywords`, `tokenizer`: from `check_options`.
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

    `keywords`: True or False; None is True if SQLite has FTS5. `tokenizer`: a name of `TOKENIZERS`; None for the
    default. Raises `StorageError` if a keyword index is asked for, and SQLite has no FTS5.

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

    Raises `CorruptedIndexError` if its table is not one that this library makes.
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

    `connection`: in a writing transaction; `tokenizer`: a name of `TOKENIZERS`; `progress`: called with the number of
    documents of each step.
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

    Raises `CorruptedIndexError` if they are not those of a new table.
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


# FTS5 gives words of more than half of the documents this idf.
_MIN_IDF = 1e-6
# The row of ``keyword_data`` with the number of documents and their total length, as variable-length integers.
_AVERAGES_ROW = 1
# Bytes of SQLite's longest variable-length integer.
_VARINT_BYTES = 9


class KeywordStatistics(NamedTuple):
    """Statistics of the documents that have a text.

    `length`: number of words in all of them together. `frequencies`: number of documents that hold a word, by word;
    words that no document holds may be missing.
    """

    documents: int
    length: int
    frequencies: Mapping[str, int]

    @classmethod
    def total(cls, parts: Iterable[KeywordStatistics]) -> KeywordStatistics:
        """Return the statistics of several parts of a collection together."""
        documents, length, frequencies = 0, 0, Counter[str]()
        for part in parts:
            documents, length = documents + part.documents, length + part.length
            frequencies.update(part.frequencies)
        return cls(documents, length, dict(frequencies))

    def inverse_frequencies(self, words: Iterable[str]) -> dict[str, float]:
        """Return the idf of each word that a document holds: ``max(1e-6, log((N - n + 0.5) / (n + 0.5)))``."""
        found = {}
        for word in words:
            count = self.frequencies.get(word, 0)
            if count:
                ratio = (self.documents - count + 0.5) / (count + 0.5)
                found[word] = max(_MIN_IDF, math.log(ratio)) if ratio > 0 else _MIN_IDF
        return found


def read_statistics(connection: sqlite3.Connection, words: Iterable[str]) -> KeywordStatistics:
    """Return the statistics of the keyword index, with the frequencies of some words.

    `connection`: in a reading transaction of a catalog with a keyword index; `words`: words without quotes; raises
    `CorruptedIndexError` if FTS5's totals are damaged.
    """
    statement = "SELECT block FROM keyword_data WHERE id = ?"
    row = connection.execute(statement, (_AVERAGES_ROW,)).fetchone()
    block = bytes(row[0]) if row is not None and isinstance(row[0], bytes) else b""
    documents, rest = _read_varint(block) if block else (0, b"")
    length, _ = _read_varint(rest) if rest else (0, b"")
    frequencies = {}
    for word in words:
        matching = connection.execute("SELECT count(*) FROM keyword WHERE keyword MATCH ?", (f'"{word}"',))
        if count := matching.fetchone()[0]:
            frequencies[word] = count
    return KeywordStatistics(documents, length, frequencies)


def read_length(size: object) -> int:
    """Return the number of words of a document, given the value that FTS5 stores in ``keyword_docsize``.

    Raises `CorruptedIndexError` if the value is damaged.
    """
    if not isinstance(size, bytes) or not size:
        raise keyword_damage("it gives a document a length that is not a number")
    return size[0] if size[0] < 0x80 and len(size) == 1 else _read_varint(size)[0]


def _read_varint(block: bytes) -> tuple[int, bytes]:
    """Return the first variable-length integer of SQLite's file format in a block, and the rest of the block."""
    value = 0
    for place, byte in enumerate(block[:_VARINT_BYTES]):
        if place == _VARINT_BYTES - 1:
            return value << 8 | byte, block[place + 1 :]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, block[place + 1 :]
    raise keyword_damage("its totals are not numbers")


# Distinct words of a query that are searched for; FTS5 opens every word's list of documents at once.
MAX_WORDS = 256
# Characters of a word that are searched for with the tokenizer "trigram". FTS5 finds a word as a sequence of trigrams,
# and compares each with every place of the first: a long word could take hours in a text that repeats one letter.
_TRIGRAM_WORD = 64
# The parameters of FTS5's bm25().
_K1, _B = 1.2, 0.75
# It has this factor in its numerator, so no word adds more than (k1 + 1) * idf.
_MAX_TF = 2.2
# Rows read at a time where a filter selects the documents.
_ROWS = 4096


def query_words(text: str) -> list[str]:
    """Return the distinct words of a query as they are spelled in it, the first `MAX_WORDS` of them.

    A word is a run of letters, digits and marks. FTS5's tokenizer cuts it further where its Unicode tables differ; the
    pieces must then follow each other in a document. It also maps words to lower case by these tables, in a query as in
    a document: they lack letters that Python knows.
    """
    words: dict[str, str] = {}
    for is_word, run in groupby(text, _is_in_word):
        if is_word:
            word = "".join(run)
            words.setdefault(word.lower(), word)
        if len(words) == MAX_WORDS:
            break
    return list(words.values())


def rank_by_keywords(
    connection: sqlite3.Connection,
    text: str,
    k: int,
    allowed: np.ndarray | None = None,
    statistics: KeywordStatistics | None = None,
) -> Ranking:
    """Return the `k` best documents that hold at least one word of a query, by BM25 (k1 = 1.2, b = 0.75).

    The score of a document is the sum over the distinct words of the query of

        idf * (k1 + 1) * tf / (tf + k1 * (1 - b + b * length / average length))

    with ``idf = max(1e-6, log((N - n + 0.5) / (n + 0.5)))``, where ``N`` documents have a text and ``n`` of them hold
    the word: FTS5's ``bm25()`` with the sign changed.

    FTS5 takes two microseconds per document that it scores, so documents that hold only frequent words are left out of
    the first attempt. Its result is final if the k-th best score is higher than the sum of the highest scores that
    those words can add (the bound of MaxScore, Turtle and Flood 1995); otherwise all documents are scored.
    `connection`: in a reading transaction of a catalog with a keyword index. `allowed`: numbers of the documents that
    may be found, ascending; None for all. `statistics`: those of the collection of which this catalog holds a part,
    with the frequencies of `searched_words`; None if it holds the whole collection. Returns: scores are float64 and
    above 0. Raises `CorruptedIndexError` if the keyword index is damaged. Raises `LatelierError` if the index has no
    keyword index.
    """
    words = searched_words(connection, text)
    with translate_damage():
        check_config(connection)
        own = read_statistics(connection, words)
        idf = (statistics or own).inverse_frequencies(words)

        def ranked(required: list[str]) -> Ranking:
            if statistics is None:
                return _ranked(connection, list(idf), required, k, allowed)
            return _ranked_in_collection(connection, idf, required, k, allowed, own, statistics)

        frequent, most = _frequent_words(idf)
        if frequent:
            found = ranked([word for word in idf if word not in frequent])
            if len(found.numbers) == k and found.scores[-1] > most:
                return found
        return ranked([])


def searched_words(connection: sqlite3.Connection, text: str) -> list[str]:
    """Return the words of a query that are searched for.

    Raises `LatelierError` if the index has no keyword index.
    """
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        raise LatelierError(
            "this index has no keyword index of its texts: compact(keywords=True) makes one, or search with "
            "mode='vectors'."
        )
    words = query_words(text)
    if tokenizer != "trigram":
        return words
    cut: dict[str, str] = {}
    for word in words:
        cut.setdefault(word[:_TRIGRAM_WORD].lower(), word[:_TRIGRAM_WORD])
    return list(cut.values())


def _frequent_words(idf: dict[str, float]) -> tuple[set[str], float]:
    """Return the most frequent words that can together add no more than the idf of the rarest word, and how much."""
    words = sorted(idf, key=lambda word: idf[word])
    frequent, most = set(), 0.0
    for word in words[:-1]:
        if most + _MAX_TF * idf[word] > idf[words[-1]]:
            break
        frequent.add(word)
        most += _MAX_TF * idf[word]
    return frequent, most * (1 + 1e-9)  # FTS5 adds up in another order


def _ranked(
    connection: sqlite3.Connection, words: list[str], required: list[str], k: int, allowed: np.ndarray | None
) -> Ranking:
    """Rank documents by `words`: those that hold one of `required`, if given, and one of `words` otherwise."""
    if not words:
        return Ranking(np.zeros(0, "int64"), np.zeros(0))
    condition, values = "keyword MATCH ?", [_any_of(words)]
    if required:
        # The plus sign: go through the documents of all words once, instead of searching for each number.
        condition += " AND +rowid IN (SELECT rowid FROM keyword WHERE keyword MATCH ?)"
        values.append(_any_of(required))
    statement = f"SELECT rowid, -bm25(keyword) AS score FROM keyword WHERE {condition} ORDER BY score DESC, rowid"
    if allowed is None:
        statement += f" LIMIT {int(k)}"
    cursor = connection.execute(statement, values)
    numbers, scores = np.zeros(0, "int64"), np.zeros(0)
    while len(numbers) < k and (rows := cursor.fetchmany(_ROWS)):
        block = np.array(rows, dtype=[("number", "int64"), ("score", "float64")])
        if not (np.isfinite(block["score"]) & (block["score"] > 0)).all():
            raise keyword_damage("it gives scores that are not positive numbers")
        if allowed is not None:
            block = block[np.isin(block["number"], allowed)]
        numbers, scores = np.append(numbers, block["number"])[:k], np.append(scores, block["score"])[:k]
    return Ranking(numbers, scores)


def _ranked_in_collection(
    connection: sqlite3.Connection,
    idf: dict[str, float],
    required: list[str],
    k: int,
    allowed: np.ndarray | None,
    own: KeywordStatistics,
    collection: KeywordStatistics,
) -> Ranking:
    """Rank documents by the words of `idf`, as `_ranked` does, with the scores that they have in a larger collection.

    FTS5 does not give the frequency ``tf`` of a word in a document, but the score of one word alone holds it:

        score = idf * (k1 + 1) * tf / (tf + norm),  norm = k1 * (1 - b + b * length / average length)

    with this catalog's idf and average length. It is solved for tf, an integer, and computed again with those of the
    collection, in the order in which FTS5 adds.
    """
    own_idf = own.inverse_frequencies(idf)
    by_word = {word: _rows_of_word(connection, word, required) for word in own_idf}
    numbers = np.unique(np.concatenate([np.zeros(0, "int64"), *(rows["number"] for rows in by_word.values())]))
    if allowed is not None:
        numbers = numbers[np.isin(numbers, allowed)]
    scores = np.zeros(len(numbers))
    for word, rows in by_word.items():
        kept = rows[np.isin(rows["number"], numbers)]
        lengths = kept["length"]
        part = kept["score"] / own_idf[word]
        frequency = np.rint(part * _norm(lengths, own) / (_K1 + 1.0 - part))
        if not (np.isfinite(frequency) & (frequency >= 1)).all():
            raise keyword_damage("it gives scores that no word can have")
        added = idf[word] * ((frequency * (_K1 + 1.0)) / (frequency + _norm(lengths, collection)))
        scores[np.searchsorted(numbers, kept["number"])] += added
    return Ranking.sorted(numbers, scores, k)


def _rows_of_word(connection: sqlite3.Connection, word: str, required: list[str]) -> np.ndarray:
    """Return number, score and length of the documents that hold a word, and one of `required`, if given."""
    condition, values = "keyword MATCH ?", [_any_of([word])]
    if required:
        condition += " AND +keyword.rowid IN (SELECT rowid FROM keyword WHERE keyword MATCH ?)"
        values.append(_any_of(required))
    rows = connection.execute(
        "SELECT keyword.rowid, -bm25(keyword), sz FROM keyword JOIN keyword_docsize ON id = keyword.rowid "
        f"WHERE {condition} ORDER BY keyword.rowid",
        values,
    )
    found = [(number, score, read_length(size)) for number, score, size in rows]
    return np.array(found, dtype=[("number", "int64"), ("score", "float64"), ("length", "float64")])


def _norm(lengths: np.ndarray, statistics: KeywordStatistics) -> np.ndarray:
    """Return what BM25 adds to the frequency of a word in the denominator."""
    average = statistics.length / statistics.documents
    return _K1 * (1.0 - _B + _B * lengths / average)


def _any_of(words: list[str]) -> str:
    """Return the FTS5 expression of documents that hold at least one of some words, none of which has a quote."""
    return " OR ".join(f'"{word}"' for word in words)


def _is_in_word(character: str) -> bool:
    """Whether FTS5's tokenizers can take a character as a part of a word."""
    return character.isalnum() or unicodedata.category(character) in ("Mn", "Mc", "Me", "Co")
