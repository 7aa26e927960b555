"""Which results are weak: those that match less than what answers a question does, by bars that an index has learned.

Longer questions match less well on the mean, so a bar depends on the number of terms of a question. One is for the
similarity of vectors, and one for the share of the highest possible BM25 score. `thresholds` learns both from pieces of
the documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes import Hit, Index
from latelier.indexes.options import SearchOptions
from latelier.indexes.results import WEAK
from latelier.indexes.words import query_terms

_VECTORS = "vectors"
_WORDS = "words"
_DOCUMENTS = "documents"
# Of a question: its length does not depend on what becomes of the endings of words.
_WHOLE = "standard"
_LOWEST = 1e-3  # of what a bar goes through, as it has a logarithm
_SPREAD = np.log(1.5)  # of numbers of terms, whose logarithms tell how a bar depends on them
_SHORTEST = 3  # terms of the shortest pieces from which bars are learned
_HIGHEST = 10.0  # of the numbers of a bar, which may be a stranger's


class WeakBar(NamedTuple):
    """What a result has to reach for a question of n distinct words: ``factor * n ** exponent``.

    Parameters
    ----------
    factor
        What the curve has at one word; a question of one or two has to reach what one of three has.
    exponent
        Below 0 where longer questions match less well.

    Examples
    --------
    >>> WeakBar(0.8, -0.5).at(4)
    0.4
    """

    factor: float
    exponent: float

    @classmethod
    def through(cls, terms: Sequence[float], least: Sequence[float], most: float = 0.0) -> WeakBar:
        """Return the bar nearest to some points by their logarithms: numbers of terms, and what has to be reached.

        `most`: the largest exponent. The bar never rises, as it would for documents that repeat one sentence: there,
        long pieces match the others best.
        """
        logarithms = np.log(np.maximum(least, _LOWEST))
        lengths = np.log(np.maximum(terms, 1))
        exponent = most
        if np.ptp(lengths) > _SPREAD:  # documents that repeat a word give pieces of one length
            exponent = min(most, float(np.polyfit(lengths, logarithms, 1)[0]))
        factor = float(np.exp(np.mean(logarithms - exponent * lengths)))
        return cls(factor, exponent)

    @classmethod
    def read(cls, stored: Any) -> WeakBar | None:
        """Return what an index has stored; None if it is no bar."""
        is_pair = isinstance(stored, (list, tuple)) and len(stored) == 2
        if not is_pair or not all(isinstance(each, float) and abs(each) <= _HIGHEST for each in stored):
            return None
        return cls(*stored)

    def at(self, terms: int) -> float:
        """Return what a result has to reach for a question of so many terms; of one or two, as of three."""
        return self.factor * max(_SHORTEST, terms) ** self.exponent


class WeakBars(NamedTuple):
    """Below what the results of an index are weak.

    Parameters
    ----------
    vectors
        For the mean over the vectors of a query of the similarity with the best token of the document.
    words
        For the share of the highest BM25 score that a document could have; None without keywords.
    documents
        Of how many documents they were learned.

    Examples
    --------
    >>> bars = WeakBars(WeakBar(0.8, -0.25), None, documents=120)
    >>> round(bars.vectors.at(16), 3)
    0.4
    """

    vectors: WeakBar
    words: WeakBar | None
    documents: int

    @classmethod
    def stored_in(cls, index: Index) -> WeakBars | None:
        """Return the bars of an index; None if there are none, or none that can be read: they may be a stranger's."""
        stored = index.settings.get(WEAK)
        if not isinstance(stored, Mapping):
            return None
        vectors = WeakBar.read(stored.get(_VECTORS))
        documents = stored.get(_DOCUMENTS)
        if vectors is None or type(documents) is not int:
            return None
        return cls(vectors, WeakBar.read(stored.get(_WORDS)), documents)

    def store_in(self, index: Index) -> None:
        """Store the bars with an index."""
        words = self.words and [*self.words]
        index.settings[WEAK] = {_VECTORS: [*self.vectors], _WORDS: words, _DOCUMENTS: self.documents}


def question_length(text: str) -> int:
    """Return the number of distinct terms of a question."""
    return len(query_terms(text, _WHOLE))


def weak_hits(
    index: Index,
    texts: Sequence[str],
    vectors: TokenEmbeddings | None,
    hits: Sequence[Sequence[Hit]],
    options: SearchOptions,
) -> list[list[bool | None]]:
    """Return for each hit of each query whether it is weak; None where that is not known, as for a picture."""
    bars = WeakBars.stored_in(index)
    if bars is None:
        bar = None
    elif options.mode == "keywords":
        bar = bars.words
    else:
        bar = bars.vectors
    values = None if bar is None or not texts else match_values(index, texts, vectors, hits, options)
    if bar is None or values is None:
        return [[None] * len(row) for row in hits]
    leasts = [bar.at(question_length(text)) for text in texts]
    return [[value < least for value in row] for row, least in zip(values, leasts, strict=True)]


def match_values(
    index: Index,
    texts: Sequence[str],
    vectors: TokenEmbeddings | None,
    hits: Sequence[Sequence[Hit]],
    options: SearchOptions,
) -> list[list[float]] | None:
    """Return how well each hit of each query matches: what bars are compared with; None where that is not known.

    For keywords, it is the share of the highest score that a document could have; else the mean over the vectors of the
    query of the similarity with the best token of the document.
    """
    if vectors is None:
        highest = index.highest_scores(texts)
        if highest is None:
            return None
        return [[hit.score / best for hit in row] for row, best in zip(hits, highest, strict=True)]
    norms = np.add.reduceat(np.linalg.norm(vectors.vectors.astype("float32"), axis=1), vectors.offsets[:-1])
    most = np.maximum(norms, 1e-30).tolist()
    return [[_vector_score(hit) / best for hit in row] for row, best in zip(hits, most, strict=True)]


def _vector_score(hit: Hit) -> float:
    if hit.vector_score is None:
        return hit.score
    return hit.vector_score
