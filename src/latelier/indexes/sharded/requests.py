"""Reads of one shard: a search request, what the shard finds, and `ShardReader`, which answers for one commit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.base import SearchOptions
from latelier.indexes.hybrid import score_documents
from latelier.indexes.results import Id, Ranking, Record
from latelier.indexes.sharded.handover import Sizes, divide, sizes_of
from latelier.indexes.sharded.staging import StagedBatch
from latelier.indexes.store.keywords import KeywordStatistics
from latelier.indexes.stored import StoredIndex
from latelier.scores.topk import TopK

__all__ = ["ShardFindings", "ShardReader", "ShardRequest"]


class ShardRequest(NamedTuple):
    """The checked arguments of a search, as all shards get them.

    `queries`: the vectors of the queries; None for ``"keywords"``. `statistics`: keyword statistics of the whole index;
    None for ``"vectors"``.
    """

    queries: TokenEmbeddings | None
    k: int
    texts: list[str]
    options: SearchOptions
    statistics: KeywordStatistics | None


class ShardFindings(NamedTuple):
    """What a shard finds for one query, by number of the documents.

    Attributes
    ----------
    by_vectors, by_keywords
        The best documents of each side; empty if the mode does not use the side.
    scored
        MaxSim of the documents that keywords have found, for the modes that use both.
    ids
        The id of each of these documents.
    """

    by_vectors: Ranking
    by_keywords: Ranking
    scored: Ranking
    ids: dict[int, Id]


class ShardReader:
    """Reads an index within its `snapshot`."""

    def __init__(self, index: StoredIndex) -> None:
        self._index, self._storage = index, index.storage

    def search(self, request: ShardRequest) -> list[ShardFindings]:
        """Return what is found for each query."""
        options, queries, count = request.options, request.queries, len(request.texts)
        search = partial(self._index.search_parts, options=options)
        snapshot, allowed = self._storage.snapshot(), None
        if options.filter is not None:
            allowed = self._storage.select(options.filter, options.parameters, options.filter_timeout)[1]
        depth = request.k if options.mode in ("vectors", "keywords") else options.depth_for(request.k)
        by_keywords = [_nothing()] * count
        if options.mode != "vectors":
            by_keywords = self._storage.rank_by_keywords(request.texts, depth, allowed, request.statistics)
        if queries is None:
            return [self._found(_nothing(), own, _nothing()) for own in by_keywords]
        # Arrays from another process are read-only, which compiled kernels treat as another type.
        queries = TokenEmbeddings(np.array(queries.vectors), np.array(queries.offsets))
        best = TopK(len(queries), min(depth, max(1, snapshot.documents)))
        if options.mode != "rerank":
            search(snapshot, snapshot.parts(allowed), queries, best)
        found = []
        for i in range(len(queries)):
            own = by_keywords[i] if count else _nothing()
            scored = score_documents(search, snapshot, queries[i : i + 1], own.numbers)
            found.append(self._found(Ranking(best.numbers[i], best.scores[i]), own, scored))
        return found

    def keyword_statistics(self, texts: Sequence[str]) -> KeywordStatistics:
        """See `Storage.keyword_statistics`."""
        return self._storage.keyword_statistics(texts)

    def records(self, ids: Sequence[Id]) -> dict[Id, Record]:
        """Return texts and metadata by id; ids that are not in the shard are left out."""
        known = list(self._storage.numbers(ids))
        return {record.id: record for record in self._storage.records(known)}

    def embeddings(self, ids: Sequence[Id]) -> tuple[list[Id], TokenEmbeddings]:
        """Return vectors, and the ids that they are of; ids that are not in the shard are left out."""
        known = list(self._storage.numbers(ids))
        return known, self._index.get_embeddings(known)

    def known(self, ids: Sequence[Id]) -> list[Id]:
        """Return those of some ids that are in the shard."""
        return list(self._storage.numbers(ids))

    def numbered_ids(self, prefix: str | None) -> tuple[list[Id], list[int]]:
        """See `Storage.numbered_ids`."""
        return self._storage.numbered_ids(prefix)

    def sizes(self, check: bool) -> Sizes:
        """See `sizes_of`."""
        return sizes_of(self._index, check=check)

    def divide(self, numbers: tuple[int, int], shards: int) -> dict[int, StagedBatch]:
        """See `latelier.indexes.sharded.handover.divide`."""
        return divide(self._index, numbers, shards)

    def _found(self, by_vectors: Ranking, by_keywords: Ranking, scored: Ranking) -> ShardFindings:
        numbers = np.unique(np.concatenate([by_vectors.numbers, by_keywords.numbers]))
        ids = self._storage.snapshot().ids(numbers)
        return ShardFindings(by_vectors, by_keywords, scored, dict(zip(numbers.tolist(), ids, strict=True)))


def _nothing() -> Ranking:
    return Ranking(np.zeros(0, "int64"), np.zeros(0, "float32"))
