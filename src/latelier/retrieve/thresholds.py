"""Thresholds of `mean_score`, estimated from the documents of an index, and which results are weak."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.indexes.options import Mode, SearchOptions
from latelier.retrieve.queries import find
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.weak import WeakBar, WeakBars, match_values, question_length


@dataclass(frozen=True)
class Threshold:
    """A `min_mean_score`, estimated for a wanted share of questions without an answer that still find a document.

    Parameters
    ----------
    share
        The wanted share.
    min_mean_score
        The estimate.
    low, high
        Its interval of 95% for questions like the pieces; the actual share depends on how alike they are.
    queries
        Number of pieces that it is estimated from.

    Examples
    --------
    >>> print(Threshold(0.05, 0.789, 0.742, 0.85, queries=200))
    min_mean_score=0.789 (95%: 0.742 to 0.850): 5% of 200 pieces of text without an answer find a document
    """

    share: float
    min_mean_score: float
    low: float
    high: float
    queries: int

    def __str__(self) -> str:
        return (
            f"min_mean_score={self.min_mean_score:.3f} (95%: {self.low:.3f} to {self.high:.3f}): {self.share:.0%} of "
            f"{self.queries} pieces of text without an answer find a document"
        )


# Of a piece that stands for a question: the thresholds of longer ones are higher than those of questions.
_WORDS = 5
_SURE = 1.96  # standard deviations of an interval of 95%
# Words of the pieces from which it is learned what is weak, and how many of each length.
_QUESTIONS = (3, 5, 12, 20)
_PIECES_OF_A_LENGTH = 100
_FEWEST = 20  # pieces of a length from which something is learned
# The share of the pieces that match worse than what is not weak, by vectors and by words, see docs/scores.md; and the
# largest exponent of the bar of vectors: pieces are sentences of the documents, questions are not, so these lose more
# by their length.
_WEAK_VECTORS = 0.2
_MOST_EXPONENT = -0.1
_WEAK_WORDS = 0.05


def estimate(model: QueryModel, index: Index, share: float, queries: int) -> Threshold:
    """Estimate the `mean_score` that a share of pieces of the documents reaches in another document."""
    with index.snapshot():
        pieces = _pieces(index, queries)
        options = SearchOptions(mode="vectors", min_mean_score=-math.inf)  # with means
        texts = [text for _, text in pieces]
        encoded = model.encode_for_search(texts, whole=False, with_own=True)
        best_two = find(index, encoded, 2, options)
    best = []
    for (id, _), hits in zip(pieces, best_two, strict=True):
        others = [found.mean_score for found in hits if found.hit.id != id]
        best += [mean for mean in others[:1] if mean is not None]
    scores = sorted(best)
    count = len(best)
    place = (1 - share) * count
    deviation = _SURE * math.sqrt(count * share * (1 - share))
    at = [scores[min(max(round(each) - 1, 0), count - 1)] for each in (place - deviation, place, place + deviation)]
    return Threshold(share, at[1], at[0], at[2], count)


def _pieces(index: Index, queries: int, length: int = _WORDS, *, least: int = 1) -> list[tuple[Id, str]]:
    """Return pieces of so many words of texts, with the ids of their documents; several of a long one if there are few.

    `least`: words of a text that is taken.
    """
    ids = index.ids()
    spread = np.linspace(0, len(ids) - 1, min(queries, len(ids))).astype("int64").tolist()
    words = {record.id: (record.text or "").split() for record in index.get([ids[i] for i in spread])}
    if len(ids) < 2 or not any(words.values()):
        raise InvalidArgumentError("an estimate needs at least 2 documents that are stored with their texts.")
    words = {id: own for id, own in words.items() if len(own) >= least}
    each = max(1, queries // max(1, len(words)))
    chance = random.Random(0)
    pieces = []
    for id, own in words.items():
        for _ in range(min(each, max(1, len(own) // length))):
            start = chance.randint(0, max(0, len(own) - length))
            pieces.append((id, " ".join(own[start : start + length])))
    return pieces


def learn_weak(model: QueryModel, index: Index) -> WeakBars:
    """Learn from pieces of several lengths which results are weak, and store it with the index."""
    terms: list[float] = []
    least: dict[Mode, list[float]] = {"vectors": [], "keywords": []}
    shares: dict[Mode, float] = {"vectors": _WEAK_VECTORS}
    if getattr(index, "tokenizer", None) and index.highest_scores([]) is not None:
        shares["keywords"] = _WEAK_WORDS
    most = 0
    with index.snapshot():
        for length in _QUESTIONS:
            pieces = _pieces(index, _PIECES_OF_A_LENGTH, length, least=length)
            most = max(most, len(pieces))
            if len(pieces) < _FEWEST:
                continue
            terms.append(float(np.mean([question_length(text) for _, text in pieces])))
            for mode, share in shares.items():
                least[mode].append(float(np.quantile(_best_of_others(model, index, pieces, mode), share)))
    if not terms:
        raise InvalidArgumentError(
            f"the documents give {most} pieces of text; an estimate of what is weak needs {_FEWEST}."
        )
    by_words = WeakBar.through(terms, least["keywords"]) if "keywords" in shares else None
    learned = WeakBars(WeakBar.through(terms, least["vectors"], _MOST_EXPONENT), by_words, len(index))
    learned.store_in(index)
    return learned


def _best_of_others(model: QueryModel, index: Index, pieces: Sequence[tuple[Id, str]], mode: Mode) -> list[float]:
    """Return how well each piece matches in the document, of the others, that matches it best; 0 if none does."""
    options = SearchOptions(mode=mode)
    texts = [text for _, text in pieces]
    vectors = None if mode == "keywords" else model.encode_queries(texts)
    hits = index.find(vectors, 2, texts if vectors is None else [], options)
    best = []
    for (id, _), row, values in zip(
        pieces, hits, match_values(index, texts, vectors, hits, options) or (), strict=True
    ):
        others = [value for hit, value in zip(row, values, strict=True) if hit.id != id]
        best.append(max(others, default=0.0))
    return best
