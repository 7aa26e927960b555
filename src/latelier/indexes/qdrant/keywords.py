"""Texts as sparse vectors, whose inner products are BM25: words cut by FTS5's own tokenizers, as in other indexes.

A sparse vector has one dimension per word: a hash of it, 32 bits. The value of a word in a document is

    (k1 + 1) * tf / (tf + k1 * (1 - b + b * length / average length))    with k1 = 1.2, b = 0.75

and 1 in a query. Qdrant multiplies it with ``idf = log(1 + (N - n + 0.5) / (n + 0.5))``, from the ``n`` documents of
``N`` that hold the word at the time of the search. FTS5 has no 1 in the logarithm, and cuts the idf at 1e-6.

The average length is that of the texts of the first write, since later ones cannot change what is stored; making the
keyword index again (``compact(keywords=True)``) takes the average of all texts.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from latelier.indexes.catalog import forks
from latelier.indexes.catalog.keyword_search import query_words
from latelier.indexes.catalog.keywords import TOKENIZERS

__all__ = ["SparseVector", "average_length", "count_words", "document_vector", "query_vector"]

_K1, _B = 1.2, 0.75
# Characters of a word of a query that are searched for with the tokenizer "trigram", as in FTS5 indexes.
_TRIGRAM_WORD = 64


class SparseVector(NamedTuple):
    """Dimensions, and the value of each."""

    indices: list[int]
    values: list[float]


def count_words(texts: Sequence[str], tokenizer: str) -> list[dict[str, int]]:
    """Return how often each text has each of its words, as FTS5 cuts it.

    Examples
    --------
    >>> count_words(["Wings, winged: the wing"], "porter")
    [{'the': 1, 'wing': 3}]
    """
    with forks.using(), closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            f"CREATE VIRTUAL TABLE keyword USING fts5(text, content='', tokenize='{TOKENIZERS[tokenizer]}')"
        )
        connection.execute("CREATE VIRTUAL TABLE word USING fts5vocab(keyword, 'instance')")
        connection.executemany("INSERT INTO keyword(rowid, text) VALUES (?, ?)", enumerate(texts))
        counts: list[dict[str, int]] = [{} for _ in texts]
        for document, word, count in connection.execute("SELECT doc, term, count(*) FROM word GROUP BY doc, term"):
            counts[document][word] = count
        return counts


def average_length(counts: Sequence[dict[str, int]]) -> float:
    """Return the average number of words of some texts, at least 1."""
    return max(1.0, sum(sum(each.values()) for each in counts) / max(1, len(counts)))


def document_vector(counts: dict[str, int], average: float) -> SparseVector:
    """Return the sparse vector of a text.

    Parameters
    ----------
    counts
        Its words, from `count_words`.
    average
        The average length of the texts of the index.

    Examples
    --------
    >>> document_vector({"wing": 1}, average=1.0).values
    [1.0]
    """
    norm = _K1 * (1 - _B + _B * sum(counts.values()) / average)
    return _sparse({word: (_K1 + 1) * count / (count + norm) for word, count in counts.items()})


def query_vector(text: str, tokenizer: str) -> SparseVector:
    """Return the sparse vector of a query; empty if it has no word.

    A word that the tokenizer cuts further counts as several words; in FTS5, they must follow each other.

    Examples
    --------
    >>> query_vector("wing, WING!", "porter").values
    [1.0]
    """
    words = query_words(text)
    if tokenizer == "trigram":
        words = [word[:_TRIGRAM_WORD] for word in words]
    return _sparse({word: 1.0 for counts in count_words(words, tokenizer) for word in counts})


def _sparse(weights: dict[str, float]) -> SparseVector:
    """Return the weights of words by dimension; those of two words with the same hash are added."""
    by_dimension: dict[int, float] = {}
    for word, weight in weights.items():
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        dimension = int.from_bytes(digest, "little")
        by_dimension[dimension] = by_dimension.get(dimension, 0.0) + weight
    return SparseVector(list(by_dimension), list(by_dimension.values()))
