"""Searches of all shards: the request that each of them gets, and the hits of all of them merged.

The numbers of documents ascend in the order of insertion over all shards, so sorting by score and number gives the
order that one index gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latelier.indexes.base import SearchOptions
from latelier.indexes.hybrid import check_queries, combine_sides
from latelier.indexes.results import Hit, Ranking
from latelier.indexes.sharded.requests import ShardFindings, ShardRequest
from latelier.indexes.sharded.views import ShardsView
from latelier.indexes.store.keywords import KeywordStatistics
from latelier.indexes.store.storage import without_texts

__all__ = ["search_view"]


def search_view(view: ShardsView, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[Hit]]:
    """Return the best documents of all shards. `view`: the commit to search; for the others see `Index.find`."""
    vectors, statistics = check_queries(queries, view.dim, texts, options.mode), None
    if options.mode != "vectors":
        if view.tokenizer is not None and view.documents and not view.has_texts:
            raise without_texts()
        statistics = KeywordStatistics.total(view.ask("keyword_statistics", texts))
    request = ShardRequest(vectors, k, texts, options, statistics)
    by_shard: list[list[ShardFindings]] = view.ask("search", request)
    return [_merge(found, options, k) for found in zip(*by_shard, strict=True)]


def _merge(found: Sequence[ShardFindings], options: SearchOptions, k: int) -> list[Hit]:
    """Return the best documents of one query from those of each shard."""
    if options.mode == "vectors":
        ranking = _best([each.by_vectors for each in found], k)
    elif options.mode == "keywords":
        ranking = _best([each.by_keywords for each in found], k)
    else:
        depth = options.depth_for(k)
        by_vectors = _best([each.by_vectors for each in found], depth)
        by_keywords = _best([each.by_keywords for each in found], depth)
        scored = _best([each.scored for each in found])

        def score(numbers: np.ndarray) -> Ranking:
            kept = np.isin(scored.numbers, numbers)
            return Ranking(scored.numbers[kept], scored.scores[kept])

        ranking = combine_sides(options, by_vectors, by_keywords, score, k)
    ids = {number: id for each in found for number, id in each.ids.items()}
    return [Hit(ids[int(number)], float(score)) for number, score in zip(*ranking, strict=True)]


def _best(rankings: Sequence[Ranking], k: int | None = None) -> Ranking:
    """Return the best documents of several rankings; without `k` all of them."""
    numbers, scores = (np.concatenate(column) for column in zip(*rankings, strict=True))
    return Ranking.sorted(numbers, scores, len(numbers) if k is None else k)
