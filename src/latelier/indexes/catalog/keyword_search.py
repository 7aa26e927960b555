"""Search by keywords: the words of a query, and the documents that hold at least one of them, ranked by BM25.

A query is plain text: each of its words is quoted, so FTS5's operators have no meaning in it.
"""

from __future__ import annotations

import sqlite3
import unicodedata
from itertools import groupby

import numpy as np

from latelier.errors import LatelierError
from latelier.indexes.catalog.keyword_statistics import KeywordStatistics, read_length, read_statistics
from latelier.indexes.catalog.keywords import check_config, keyword_damage, stored_tokenizer, translate_damage
from latelier.indexes.ranking import Ranking

__all__ = ["MAX_WORDS", "query_words", "rank_by_keywords", "searched_words"]

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

    Examples
    --------
    >>> query_words('NOT "wi-fi" OR (Wi*) AND NEAR')
    ['NOT', 'wi', 'fi', 'OR', 'AND', 'NEAR']
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
    statistics
        Those of the collection of which this catalog holds a part, with the frequencies of `searched_words`; None if
        it holds the whole collection.

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

    Raises
    ------
    LatelierError
        If the index has no keyword index.
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
