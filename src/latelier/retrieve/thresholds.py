"""Thresholds of `mean_score`, estimated from the documents of an index, and which results are weak."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.indexes.options import SearchOptions
from latelier.indexes.results import WEAK
from latelier.retrieve.queries import find
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.results import weak_below


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
# Pieces that reach what is not weak. Measured on three collections and a folder of documents (docs/scores.md).
WEAK_SHARE = 0.8
_FEWEST = 20  # pieces from which a threshold is stored


def estimate(model: QueryModel, index: Index, share: float, queries: int) -> Threshold:
    """Estimate the `mean_score` that a share of pieces of the documents reaches in another document."""
    with index.snapshot():
        pieces = _pieces(index, queries)
        options = SearchOptions(min_mean_score=-math.inf)  # with means
        texts = [text for _, text in pieces]
        encoded = model.encode_for_search(texts, index, whole=False, plain=False, with_own=True)
        found = find(index, encoded, 2, options)
    best = []
    for (id, _), hits in zip(pieces, found, strict=True):
        others = [mean for hit, mean in hits if hit.id != id]
        best += [mean for mean in others[:1] if mean is not None]
    scores = sorted(best)
    count = len(best)
    place = (1 - share) * count
    deviation = _SURE * math.sqrt(count * share * (1 - share))
    at = [scores[min(max(round(each) - 1, 0), count - 1)] for each in (place - deviation, place, place + deviation)]
    return Threshold(share, at[1], at[0], at[2], count)


def _pieces(index: Index, queries: int) -> list[tuple[Id, str]]:
    """Return pieces of texts with the ids of their documents; several of a long one if there are few documents."""
    ids = index.ids()
    spread = np.linspace(0, len(ids) - 1, min(queries, len(ids))).astype("int64").tolist()
    words = {record.id: (record.text or "").split() for record in index.get([ids[i] for i in spread])}
    words = {id: each for id, each in words.items() if each}
    if len(ids) < 2 or not words:
        raise InvalidArgumentError("an estimate needs at least 2 documents that are stored with their texts.")
    each = max(1, queries // len(words))
    chance = random.Random(0)
    pieces = []
    for id, own in words.items():
        for _ in range(min(each, max(1, len(own) // _WORDS))):
            start = chance.randint(0, max(0, len(own) - _WORDS))
            pieces.append((id, " ".join(own[start : start + _WORDS])))
    return pieces


def store_weak(index: Index, threshold: Threshold, documents: int) -> None:
    """Store below which `mean_score` results are weak, and of how many documents it was estimated."""
    if threshold.queries < _FEWEST:
        raise InvalidArgumentError(
            f"the documents give {threshold.queries} pieces of text; an estimate of what is weak needs {_FEWEST}."
        )
    index.settings[WEAK] = {"min_mean_score": threshold.min_mean_score, "documents": documents}


def weak_documents(index: Index) -> int:
    """Return of how many documents it was estimated what is weak; 0 if it was not."""
    stored = index.settings.get(WEAK)
    count = stored.get("documents") if isinstance(stored, Mapping) else 0
    if isinstance(count, int):
        return count
    return 0


def needs_means(index: Index, options: SearchOptions) -> bool:
    """Whether a search computes mean scores: for a threshold, or to say which results are weak."""
    return options.min_mean_score is not None or weak_below(index) is not None
