"""`KeywordStatistics`: what BM25 needs to know about a collection, of one keyword index or of several together.

With the statistics of all parts of a collection, each part gives its documents the scores that one keyword index of the
whole collection would give them.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from latelier.indexes.catalog.keywords import keyword_damage

__all__ = ["KeywordStatistics", "read_length", "read_statistics"]

# FTS5 gives words of more than half of the documents this idf.
_MIN_IDF = 1e-6
# The row of ``keyword_data`` with the number of documents and their total length, as variable-length integers.
_AVERAGES_ROW = 1
# Bytes of SQLite's longest variable-length integer.
_VARINT_BYTES = 9


class KeywordStatistics(NamedTuple):
    """Statistics of the documents that have a text.

    Attributes
    ----------
    documents
        Their number.
    length
        Number of words in all of them together.
    frequencies
        Number of documents that hold a word, by word; words that no document holds may be missing.
    """

    documents: int
    length: int
    frequencies: Mapping[str, int]

    @classmethod
    def total(cls, parts: Iterable[KeywordStatistics]) -> KeywordStatistics:
        """Return the statistics of several parts of a collection together.

        Examples
        --------
        >>> first = KeywordStatistics(2, 10, {"a": 1})
        >>> KeywordStatistics.total([first, KeywordStatistics(1, 4, {"a": 1})])
        KeywordStatistics(documents=3, length=14, frequencies={'a': 2})
        """
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

    Parameters
    ----------
    connection
        In a reading transaction of a catalog with a keyword index.
    words
        Words without quotes.

    Raises
    ------
    CorruptedIndexError
        If FTS5's totals are damaged.
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

    Raises
    ------
    CorruptedIndexError
        If the value is damaged.

    Examples
    --------
    >>> read_length(bytes([0x07])), read_length(bytes([0x81, 0x00]))
    (7, 128)
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
