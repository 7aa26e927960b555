"""How queries of a model that was not trained for late interaction are changed before a search.

The token vectors of a dense model share a large common part, of which MaxSim knows nothing: it lets a query token match
almost any token. So the mean of the documents' token vectors is subtracted, and the direction of the whole query is
added, which tells the meanings of a word apart. No document vector changes: an index can be searched either way.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import IndexFormatError
from latelier.indexes import Index
from latelier.indexes.results import TokenMean
from latelier.utils.checks import describe

# The key among the settings of an index, and the name of the only transform.
_SETTING = "query_transform"
_NAME = "context-centred"
# The number of token vectors in an index of which half the mean is subtracted.
_FEW_TOKENS = 5000


class QueryTransform(NamedTuple):
    """For each token vector q of a query: ``q' = unit(q + context * unit(sum of all q)) - share * mean``.

    ``mean`` is `Index.mean_vector`, and ``share = centre * tokens / (tokens + 5,000)``: the mean of few documents is
    mostly these documents themselves. benchmarks/quality.py chooses the weights.
    """

    context: float = 0.25
    centre: float = 1.0

    @classmethod
    def stored_in(cls, index: Index) -> QueryTransform | None:
        """Return the transform of an index; None if its queries are left as they are."""
        stored = index.settings.get(_SETTING)
        if stored is None:
            return None
        weights: list[Any] = [stored.get(name) for name in cls._fields] if isinstance(stored, dict) else [None]
        are_numbers = all(type(weight) in (int, float) and math.isfinite(weight) for weight in weights)
        if not are_numbers or stored.get("name") != _NAME:
            raise IndexFormatError(
                f"the index names a change of queries that this version of latelier does not know: {describe(stored)}; "
                "search with plain_query=True, or upgrade with: pip install --upgrade latelier"
            )
        return cls(*map(float, weights))

    def store_in(self, index: Index) -> None:
        """Store that searches of an index change queries in this way."""
        index.settings[_SETTING] = {"name": _NAME, **self._asdict()}

    @classmethod
    def remove_from(cls, index: Index) -> None:
        """Leave the queries of an index as they are: it was emptied, and another model fills it."""
        if _SETTING in index.settings:
            del index.settings[_SETTING]

    def changed(self, queries: TokenEmbeddings, mean: TokenMean | None) -> TokenEmbeddings:
        """Return queries changed, with the norms that they had before the mean is subtracted; None: no mean."""
        if not queries.num_tokens:
            return queries
        vectors: Any = queries.vectors.astype("float32")
        sums = np.add.reduceat(vectors, queries.offsets[:-1], axis=0)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        directions = np.repeat(_unit(sums), queries.lengths, axis=0)
        changed = _unit(_unit(vectors) + self.context * directions)
        if mean is not None:
            share = self.centre * mean.tokens / (mean.tokens + _FEW_TOKENS)
            changed = changed - (share * mean.vector).astype("float32")
        return TokenEmbeddings((norms * changed).astype("float32"), queries.offsets)


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: np.ndarray = vectors / np.where(norms > 0, norms, 1)
    return unit


def change_queries(queries: TokenEmbeddings, index: Index, *, plain: bool = False) -> TokenEmbeddings:
    """Return the vectors of texts as a search of an index takes them; `plain`: unchanged."""
    transform = None if plain else QueryTransform.stored_in(index)
    if transform is None:
        return queries
    return transform.changed(queries, index.token_mean)
