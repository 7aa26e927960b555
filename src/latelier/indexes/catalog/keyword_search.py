"""Search by keywords: the words of a query, and the documents that hold at least one of them, ranked by BM25.

A query is plain text: each of its words is quoted, so FTS5's operators have no meaning in it.
"""

from __future__ import annotations

import math
import sqlite3
import unicodedata
from itertools import groupby

import numpy as np

from latelier.errors import LatelierError
from latelier.indexes.catalog.keywords import check_config, keyword_damage, stored_tokenizer, translate_damage
from latelier.indexes.ranking import Ranking

__all__ = ["MAX_WORDS", "query_words", "rank_by_keywords"]

# Distinct words of a query that are searched for; FTS5 opens every word's list of documents at once.
MAX_WORDS = 256
# Characters of a word that are searched for with the tokenizer "trigram". FTS5 finds a word as a sequence of trigrams,
# and compares each with every place of the first: a long word could take hours in a text that repeats one letter.
_TRIGRAM_WORD = 64
# FTS5's bm25() has this factor in its numerator (k1 = 1.2), so no word adds more than (k1 + 1) * idf.
_MAX_TF = 2.2
# FTS5 gives words of more than half of the documents this idf.
_MIN_IDF = 1e-6
# Rows read at a time where a filter selects the documents.
_ROWS = 4096


def query_words(text: str) -> list[str]:
    """Return the distinct words of a query in lower case, the first `MAX_WORDS` of them.

    A word is a run of letters, digits and marks. FTS5's tokenizer cuts it further where its Unicode tables differ; the
    pieces must then follow each other in a document.

    Examples
    --------
    >>> query_words('NOT "wi-fi" OR (wi*) AND NEAR')
    ['not', 'wi', 'fi', 'or', 'and', 'near']
    """
    words: dict[str, None] = {}
    for is_word, run in groupby(text, _is_in_word):
        if is_word:
            words["".join(run).lower()] = None
        if len(words) == MAX_WORDS:
            break
    return list(words)


def rank_by_keywords(connection: sqlite3.Connection, text: str, k: int, allowed: np.ndarray | None = None) -> Ranking:
    """Return the `k` best documents that hold at least one word of a query, by BM25 (k1 = 1.2, b = 0.75).

    The score of a document is the sum over the distinct words of the query of

        idf * (k1 + 1) * tf / (tf + k1 * (1 - b + b * length / average length))

    with ``idf = max(1e-6, log((N - n + 0.5) / (n + 0.5)))``, where ``N`` documents have a text and ``n`` of them hold
    the word: FTS5's ``bm25()`` with the sign changed.

    FTS5 takes two microseconds per document that it scores, so documents that hold only frequent words are left out of
    the first attempt. Its result is final if the k-th best score is higher than the sum of the highest scores that
    those words can add (the bound of MaxScore, Turtle and Flood 1995); otherwise all documents are scored.

    Parameters
    ----------
    connection
        In a reading transaction of a catalog with a keyword index.
    text
        The query.
    k
        Maximum number of documents.
    allowed
        Numbers of the documents that may be found, ascending; None for all.

    Returns
    -------
    Ranking
        Scores are float64 and above 0.

    Raises
    ------
    CorruptedIndexError
        If the keyword index is damaged.
    LatelierError
        If the index has no keyword index.
    """
    tokenizer = stored_tokenizer(connection)
    if tokenizer is None:
        raise LatelierError(
            "this index has no keyword index of its texts: compact(keywords=True) makes one, or search with "
            "mode='vectors'."
        )
    with translate_damage():
        check_config(connection)
        words = query_words(text)
        if tokenizer == "trigram":
            words = list(dict.fromkeys(word[:_TRIGRAM_WORD] for word in words))
        idf = _inverse_frequencies(connection, words)
        frequent, most = _frequent_words(idf)
        if frequent:
            found = _ranked(connection, list(idf), [word for word in idf if word not in frequent], k, allowed)
            if len(found.numbers) == k and found.scores[-1] > most:
                return found
        return _ranked(connection, list(idf), [], k, allowed)


def _inverse_frequencies(connection: sqlite3.Connection, words: list[str]) -> dict[str, float]:
    """Return the idf of each word that a document holds."""
    documents = connection.execute("SELECT count(*) FROM keyword_docsize").fetchone()[0]
    found = {}
    for word in words:
        count = connection.execute("SELECT count(*) FROM keyword WHERE keyword MATCH ?", (f'"{word}"',)).fetchone()[0]
        if count:
            ratio = (documents - count + 0.5) / (count + 0.5)
            found[word] = max(_MIN_IDF, math.log(ratio)) if ratio > 0 else _MIN_IDF
    return found


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


def _any_of(words: list[str]) -> str:
    """Return the FTS5 expression of documents that hold at least one of some words, none of which has a quote."""
    return " OR ".join(f'"{word}"' for word in words)


def _is_in_word(character: str) -> bool:
    """Whether FTS5's tokenizers can take a character as a part of a word."""
    return character.isalnum() or unicodedata.category(character) in ("Mn", "Mc", "Me", "Co")
