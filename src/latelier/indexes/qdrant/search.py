"""Searches of a collection: MaxSim of candidates or of all documents, keywords, and both fused.

A search by vectors is one request: Qdrant prefetches candidates by their single vectors and scores their token vectors.
Fusion is done here, by the same functions as in other indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.hybrid import fuse_ranks, fuse_scores
from latelier.indexes.options import SearchOptions
from latelier.indexes.qdrant.collection import FIRST_STAGE, KEYWORDS, TOKENS, QdrantCollection
from latelier.indexes.qdrant.points import PLACE, check_payload, query_vector
from latelier.indexes.results import Hit, Id, Ranking

if TYPE_CHECKING:
    from qdrant_client import models

# Queries of one request.
_QUERIES = 32
# A request asks for one document more than k, to see whether the k-th score is tied; then for this many times as many.
_MORE = 4


class _Found(NamedTuple):
    """A document that a request has found."""

    score: float
    sequence: int
    point: str
    id: Id


class CollectionSearch:
    """One search of a collection.

    `condition`: that of the documents; None for all. `candidates`: documents that MaxSim scores for each query; None
    for all. `timeout`, `filter`: seconds for each request, and the filter that an error names.
    """

    def __init__(
        self,
        collection: QdrantCollection,
        *,
        condition: models.Filter | None,
        candidates: int | None,
        timeout: int | None,
        filter: str | None,
    ) -> None:
        self._collection, self._condition, self._candidates = collection, condition, candidates
        self._timeout, self._filter = timeout, filter

    def hits(
        self, queries: TokenEmbeddings | None, k: int, texts: list[str], options: SearchOptions
    ) -> list[list[Hit]]:
        """Return the `k` best documents of each query; `queries` is None for the mode ``"keywords"``."""
        if queries is None:
            found = self._by_keywords(texts, k)
        elif options.mode == "vectors":
            found = self._by_vectors(queries, k)
        elif options.mode == "rerank":
            depth, pairs = options.depth_for(k), zip(queries, self._words(texts), strict=True)
            requests = [
                None if words is None else self._maxsim(query, self._prefetch(words, KEYWORDS, depth))
                for query, words in pairs
            ]
            found = self._run(requests, k)
        else:
            found = self._fused(queries, k, texts, options)
        return [[Hit(each.id, each.score) for each in best] for best in found]

    def _by_vectors(self, queries: TokenEmbeddings, k: int) -> list[list[_Found]]:
        if self._candidates is None:
            return self._run([self._maxsim(query) for query in queries], k)
        singles = self._collection.configuration.first_stage.encode_queries(queries)
        candidates = [self._prefetch(single.tolist(), FIRST_STAGE, self._candidates) for single in singles]
        return self._run([self._maxsim(*pair) for pair in zip(queries, candidates, strict=True)], k)

    def _by_keywords(self, texts: list[str], k: int) -> list[list[_Found]]:
        vectors = self._words(texts)
        return self._run([None if words is None else self._request(words, KEYWORDS) for words in vectors], k)

    def _words(self, texts: list[str]) -> list[models.SparseVector | None]:
        tokenizer = self._collection.configuration.tokenizer or ""
        return [query_vector(text, tokenizer) for text in texts]

    def _fused(self, queries: TokenEmbeddings, k: int, texts: list[str], options: SearchOptions) -> list[list[_Found]]:
        depth = options.depth_for(k)
        by_keywords = self._by_keywords(texts, depth)
        if self._candidates is not None:
            self._candidates = max(self._candidates, depth)
        by_vectors = self._by_vectors(queries, depth)
        if options.fusion == "relative":
            self._add_missing(queries, by_vectors, by_keywords)
        fuse = fuse_ranks if options.fusion == "rrf" else fuse_scores
        fused = []
        for sides in zip(by_vectors, by_keywords, strict=True):
            order = sorted({each.point: each for side in sides for each in side}.values(), key=lambda e: e[1:3])
            rows = {each.point: row for row, each in enumerate(order)}
            rankings = [
                Ranking(
                    np.array([rows[each.point] for each in side], dtype="int64"),
                    np.array([each.score for each in side], dtype="float64"),
                )
                for side in sides
            ]
            pairs = zip(*fuse(rankings, options.weights, k), strict=True)
            fused.append([order[row]._replace(score=float(score)) for row, score in pairs])
        return fused

    def _add_missing(
        self, queries: TokenEmbeddings, by_vectors: list[list[_Found]], by_keywords: list[list[_Found]]
    ) -> None:
        """Add the MaxSim scores of the documents that only keywords have found."""
        from qdrant_client import models

        requests, most = [], 1
        for query, vectors, words in zip(queries, by_vectors, by_keywords, strict=True):
            missing = sorted({each.point for each in words} - {each.point for each in vectors})
            own = models.Filter(must=[models.HasIdCondition(has_id=list(missing))])
            requests.append(self._request(query.tolist(), TOKENS, condition=own) if missing else None)
            most = max(most, len(missing))
        for vectors, scored in zip(by_vectors, self._run(requests, most), strict=True):
            vectors += scored

    # Requests.

    def _maxsim(self, query: Any, prefetch: models.Prefetch | None = None) -> models.QueryRequest:
        return self._request(query.tolist(), TOKENS, prefetch=prefetch)

    def _prefetch(self, query: Any, using: str, limit: int) -> models.Prefetch:
        from qdrant_client import models

        return models.Prefetch(query=query, using=using, limit=limit, filter=self._condition)

    def _request(self, query: Any, using: str, *, prefetch: Any = None, condition: Any = None) -> models.QueryRequest:
        from qdrant_client import models

        # The local mode is always exact, and warns of parameters.
        is_exact = using == TOKENS and prefetch is None and not self._collection.connection.is_local
        return models.QueryRequest(
            query=query,
            using=using,
            prefetch=prefetch,
            filter=condition or self._condition,
            params=models.SearchParams(exact=True) if is_exact else None,
            with_payload=PLACE,
        )

    def _run(self, requests: Sequence[models.QueryRequest | None], k: int) -> list[list[_Found]]:
        """Return the `k` best documents of each request, none of None; equal scores in the order of insertion."""
        found: list[list[_Found]] = [[] for _ in requests]
        waiting = [i for i, request in enumerate(requests) if request is not None]
        limit = k + 1
        while waiting:
            tied = []
            for first in range(0, len(waiting), _QUERIES):
                some = waiting[first : first + _QUERIES]
                batch = [requests[i].model_copy(update={"limit": limit}) for i in some]  # type: ignore[union-attr]
                with self._collection.connection.use(filter=self._filter) as client:
                    answers = client.query_batch_points(self._collection.name, batch, timeout=self._timeout)
                for i, answer in zip(some, answers, strict=True):
                    points = answer.points
                    # Which of several documents with the k-th score come back is up to Qdrant: ask for all of them.
                    if len(points) == limit and points[-1].score == points[k - 1].score:
                        tied.append(i)
                    else:
                        found[i] = sorted(map(_as_found, points), key=lambda each: (-each.score, each.sequence))[:k]
            waiting, limit = tied, limit * _MORE
        return found


def _as_found(point: Any) -> _Found:
    payload = check_payload(point, PLACE)
    return _Found(point.score, payload["sequence"], str(point.id), payload["id"])
