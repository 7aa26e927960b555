"""Which scores irrelevant documents reach in a collection, and the threshold that follows.

Pieces of a few words out of the documents stand for questions. The document that a piece is from is left out, so the
best of the others is what a question without an answer would find. Some of them do answer the piece, which makes the
threshold rather too high than too low.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Index
from latelier.indexes.options import SearchOptions
from latelier.retrieve.model import QueryModel
from latelier.retrieve.passages import StoredDocuments
from latelier.utils.checks import check_count, check_number

_WORDS = 5  # of a piece: the thresholds of longer ones are higher than those of questions
_SURE = 1.96  # standard deviations of an interval of 95%


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


def estimate_threshold(model: QueryModel, index: Index, share: float, queries: int) -> Threshold:
    """Return the threshold of a collection; see `Retriever.estimate_threshold`."""
    share, queries = check_number("share", share, most=0.5), check_count("queries", queries, 20)
    with index.snapshot():
        stored = StoredDocuments(index)
        ids = stored.ids()
        if len(ids) < 2:
            raise InvalidArgumentError(f"the index has {len(ids)} documents; an estimate needs at least 2.")
        spread = [ids[i] for i in np.linspace(0, len(ids) - 1, min(queries, len(ids))).astype("int64").tolist()]
        given = [
            (record.id, record.text.split()) for record in stored.get(spread) if record.text and record.text.strip()
        ]
        if not given:
            raise LatelierError("the documents were stored without their texts, so there are no pieces to search with.")
        chance = random.Random(0)
        starts = [chance.randint(0, max(0, len(words) - _WORDS)) for _, words in given]
        pieces = [" ".join(words[start : start + _WORDS]) for (_, words), start in zip(given, starts, strict=True)]
        vectors = model.encode_queries(pieces)
        found = stored.find(vectors, pieces, 2, SearchOptions(), model.own_vectors(pieces, vectors))
    best = []
    for (id, _), hits in zip(given, found, strict=True):
        others = [hit.mean_score for hit in hits if stored.document(hit.id) != id]
        best += [mean for mean in others[:1] if mean is not None]
    scores, count = sorted(best), len(best)
    place, spread_of = (1 - share) * count, _SURE * math.sqrt(count * share * (1 - share))
    at = [scores[min(max(round(each) - 1, 0), count - 1)] for each in (place - spread_of, place, place + spread_of)]
    return Threshold(share, at[1], at[0], at[2], count)
