"""Searches of a collection: MaxSim of candidates or of all documents, keywords, and both fused.

A search by vectors is one request: Qdrant prefetches candidates by their single vectors and scores their token vectors.
Fusion is done here, by the same functions as in other indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.base import SearchOptions, effort_factor
from latelier.indexes.hybrid import fuse_ranks, fuse_scores
from latelier.indexes.qdrant.collection import FIRST_STAGE, KEYWORDS, TOKENS, QdrantCollection
from latelier.indexes.qdrant.points import PLACE, check_payload, query_vector
from latelier.indexes.results import Cause, Hit, Id, Ranking, StageLoss
from latelier.utils.checks import check_count

if TYPE_CHECKING:
    from qdrant_client import models


__all__ = ["CollectionSearch", "choose_candidates", "lost_candidate"]

# Candidates of effort 1.0 for a search of k hits; benchmarks/first_stage.py measures the recall they give.
_CANDIDATES, _CANDIDATES_PER_HIT = 200, 10
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


# Returns the request of one query for at most so many documents.
_Request: TypeAlias = "Callable[[int], models.QueryRequest]"


def choose_candidates(k: int, effort: object, candidates: object) -> int | None:
    """Return the number of candidates of a search; None scores all documents.

    Examples
    --------
    >>> choose_candidates(10, "balanced", None)
    200
    >>> choose_candidates(10, "exact", None) is None
    True
    >>> choose_candidates(10, 0.5, None), choose_candidates(10, "balanced", 5)
    (100, 10)
    """
    factor = effort_factor(effort)
    if candidates is not None:
        return max(k, check_count("candidates", candidates))
    if effort == "exact":
        return None
    return max(k, int(max(_CANDIDATES, _CANDIDATES_PER_HIT * k) * factor))


def lost_candidate(documents: int, wanted: int | None) -> StageLoss | None:
    """Return the loss of a document that was not among the candidates; see `latelier.indexes.Index.find_loss`."""
    if wanted is None:
        return None
    text = f"{wanted:,} candidates were chosen by their single vectors, and this document is not among them"
    return StageLoss(Cause("not_candidate", text, {"candidates": wanted}), "candidates", wanted, documents)


class CollectionSearch:
    """One search of a collection.

    `condition`: the condition of Qdrant that documents must meet; None for all. `candidates`: documents that are scored
    by MaxSim for each query; None for all. `timeout`, `filter`: seconds for each request, and the filter that an error
    names.
    """

    def __init__(
        self,
        collection: QdrantCollection,
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
        """Return the `k` best documents of each query.

        `queries`: their token vectors; None for the mode ``"keywords"``. `k`: maximum number of documents per query.
        """
        if queries is None:
            found = self._by_keywords(texts, k)
        elif options.mode == "vectors":
            found = self._by_vectors(queries, k)
        elif options.mode == "rerank":
            found = self._reranked(queries, k, texts, options.depth_for(k))
        else:
            found = self._fused(queries, k, texts, options)
        return [[Hit(each.id, each.score) for each in best] for best in found]

    def _by_vectors(self, queries: TokenEmbeddings, k: int) -> list[list[_Found]]:
        from qdrant_client import models

        if self._candidates is None:
            # The local mode is always exact, and warns of parameters.
            params = None if self._collection.connection.is_local else models.SearchParams(exact=True)
            return self._run([self._maxsim(query, None, params=params) for query in queries], k)
        singles = self._collection.configuration.first_stage.encode_queries(queries)
        requests = []
        for query, single in zip(queries, singles, strict=True):
            prefetch = models.Prefetch(
                query=single.tolist(), using=FIRST_STAGE, limit=self._candidates, filter=self._condition
            )
            requests.append(self._maxsim(query, prefetch))
        return self._run(requests, k)

    def _by_keywords(self, texts: list[str], k: int) -> list[list[_Found]]:
        vectors = self._words(texts)
        wanted = [i for i, vector in enumerate(vectors) if vector is not None]

        def request(vector: Any) -> _Request:
            return self._request(vector, KEYWORDS, None)

        found = iter(self._run([request(vectors[i]) for i in wanted], k))
        return [next(found) if vector is not None else [] for vector in vectors]

    def _reranked(self, queries: TokenEmbeddings, k: int, texts: list[str], depth: int) -> list[list[_Found]]:
        """Return the best documents by keywords in the order of MaxSim."""
        from qdrant_client import models

        requests = []
        vectors = self._words(texts)
        for query, vector in zip(queries, vectors, strict=True):
            if vector is not None:
                prefetch = models.Prefetch(query=vector, using=KEYWORDS, limit=depth, filter=self._condition)
                requests.append(self._maxsim(query, prefetch))
        found = iter(self._run(requests, k))
        return [next(found) if vector is not None else [] for vector in vectors]

    def _fused(self, queries: TokenEmbeddings, k: int, texts: list[str], options: SearchOptions) -> list[list[_Found]]:
        depth = options.depth_for(k)
        by_keywords = self._by_keywords(texts, depth)
        if self._candidates is not None:
            self._candidates = max(self._candidates, depth)
        by_vectors = self._by_vectors(queries, depth)
        if options.fusion == "relative":
            missing = []
            for vectors, words in zip(by_vectors, by_keywords, strict=True):
                known = {each.point for each in vectors}
                missing.append([each.point for each in words if each.point not in known])
            for vectors, scored in zip(by_vectors, self._scored(queries, missing), strict=True):
                vectors += scored
        fused = []
        for sides in zip(by_vectors, by_keywords, strict=True):
            order = sorted({(each.sequence, each.point): each for side in sides for each in side}.items())
            number = {point: i for i, ((_, point), _) in enumerate(order)}
            rankings = [
                Ranking(
                    np.array([number[each.point] for each in side], dtype="int64"),
                    np.array([each.score for each in side], dtype="float64"),
                )
                for side in sides
            ]
            fuse = fuse_ranks if options.fusion == "rrf" else fuse_scores
            best = fuse(rankings, options.weights, k)
            pairs = zip(best.numbers, best.scores, strict=True)
            fused.append([order[number][1]._replace(score=float(score)) for number, score in pairs])
        return fused

    def _scored(self, queries: TokenEmbeddings, points: Sequence[list[str]]) -> list[list[_Found]]:
        """Return some documents of each query with their MaxSim scores."""
        from qdrant_client import models

        requests = []
        for query, wanted in zip(queries, points, strict=True):
            own = models.Filter(must=[models.HasIdCondition(has_id=list(wanted))])
            requests.append(self._request(query.tolist(), TOKENS, None, condition=own))
        most = max(map(len, points), default=0)
        found = iter(self._run([request for request, own in zip(requests, points, strict=True) if own], max(1, most)))
        return [next(found) if own else [] for own in points]

    def _words(self, texts: list[str]) -> list[Any]:
        """Return the sparse vector of each text; None for one without a word."""
        from qdrant_client import models

        tokenizer = self._collection.configuration.tokenizer or ""
        vectors = [query_vector(text, tokenizer) for text in texts]
        return [models.SparseVector(indices=v.indices, values=v.values) if v.indices else None for v in vectors]

    def _maxsim(self, query: Any, prefetch: Any, params: Any = None) -> _Request:
        return self._request(query.tolist(), TOKENS, prefetch, params=params)

    def _request(self, query: Any, using: str, prefetch: Any, *, condition: Any = None, params: Any = None) -> _Request:
        from qdrant_client import models

        def request(limit: int) -> models.QueryRequest:
            return models.QueryRequest(
                query=query,
                using=using,
                prefetch=prefetch,
                filter=condition or self._condition,
                params=params,
                limit=limit,
                with_payload=PLACE,
            )

        return request

    def _run(self, requests: Sequence[_Request], k: int) -> list[list[_Found]]:
        """Return the `k` best documents of each request; equal scores in the order of insertion."""
        found: list[list[_Found]] = []
        for first in range(0, len(requests), _QUERIES):
            found += self._send(requests[first : first + _QUERIES], k)
        return found

    def _send(self, requests: Sequence[_Request], k: int) -> list[list[_Found]]:
        limit = k + 1
        waiting = list(range(len(requests)))
        found: list[list[_Found]] = [[] for _ in requests]
        while waiting:
            with self._collection.connection.use(filter=self._filter) as client:
                answers = client.query_batch_points(
                    self._collection.name, [requests[i](limit) for i in waiting], timeout=self._timeout
                )
            tied = []
            for i, answer in zip(waiting, answers, strict=True):
                points = answer.points
                # Which of several documents with the k-th score come back is up to Qdrant, so ask for all of them.
                if len(points) == limit and points[-1].score == points[k - 1].score:
                    tied.append(i)
                    continue
                found[i] = sorted(map(_as_found, points), key=lambda each: (-each.score, each.sequence))[:k]
            waiting, limit = tied, limit * _MORE
        return found


def _as_found(point: Any) -> _Found:
    payload = check_payload(point, PLACE)
    return _Found(point.score, payload["sequence"], str(point.id), payload["id"])
