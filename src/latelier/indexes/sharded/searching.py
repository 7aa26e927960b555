"""Searches of all shards: the request that each of them gets, and the hits of all of them merged.

The numbers of documents ascend in the order of insertion over all shards, so sorting by score and number gives the
order that one index gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latelier.indexes.base import Parameters, SearchMode
from latelier.indexes.filters.evaluation import check_limits
from latelier.indexes.hybrid import check_queries, combine_sides
from latelier.indexes.results import Hit, Ranking
from latelier.indexes.sharded.requests import ShardFindings, ShardRequest
from latelier.indexes.sharded.views import ShardsView
from latelier.indexes.store.keywords import KeywordStatistics
from latelier.indexes.store.storage import without_texts
from latelier.utils.checks import check_count

__all__ = ["search_view"]


def search_view(
    view: ShardsView,
    queries: Any,
    k: int,
    mode: SearchMode,
    filter: str | Sequence[str] | None,
    parameters: Parameters,
    timeout: float | None,
    options: Mapping[str, Any],
) -> list[list[Hit]]:
    """Return the best documents of all shards.

    `view`: the commit to search; `queries`, `k`, `filter`, `parameters`, `timeout`: as users gave them, see
    `latelier.indexes.Index.search`.
    """
    k, seconds = check_count("k", k), check_limits(filter, parameters, timeout)
    vectors, statistics = check_queries(queries, view.dim, mode), None
    if mode.name != "vectors":
        if view.tokenizer is not None and view.documents and not view.has_texts:
            raise without_texts()
        statistics = KeywordStatistics.total(view.ask("keyword_statistics", mode.texts))
    request = ShardRequest(vectors, k, mode, filter, parameters, seconds, options, statistics)
    by_shard: list[list[ShardFindings]] = view.ask("search", request)
    return [_merge(found, mode, k) for found in zip(*by_shard, strict=True)]


def _merge(found: Sequence[ShardFindings], mode: SearchMode, k: int) -> list[Hit]:
    """Return the best documents of one query from those of each shard."""
    if mode.name == "vectors":
        ranking = _best([each.by_vectors for each in found], k)
    elif mode.name == "keywords":
        ranking = _best([each.by_keywords for each in found], k)
    else:
        by_vectors = _best([each.by_vectors for each in found], mode.depth)
        by_keywords = _best([each.by_keywords for each in found], mode.depth)
        scored = _best([each.scored for each in found])

        def score(numbers: np.ndarray) -> Ranking:
            kept = np.isin(scored.numbers, numbers)
            return Ranking(scored.numbers[kept], scored.scores[kept])

        ranking = combine_sides(mode, by_vectors, by_keywords, score, k)
    ids = {number: id for each in found for number, id in each.ids.items()}
    return [Hit(ids[int(number)], float(score)) for number, score in zip(*ranking, strict=True)]


def _best(rankings: Sequence[Ranking], k: int | None = None) -> Ranking:
    """Return the best documents of several rankings; without `k` all of them."""
    numbers, scores = (np.concatenate(column) for column in zip(*rankings, strict=True))
    return Ranking.sorted(numbers, scores, len(numbers) if k is None else k)
