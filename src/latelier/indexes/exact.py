"""Exact scores in blocks, and the recall of a search beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.base import Index
from latelier.indexes.results import CheckReport, Hit
from latelier.scores.topk import TopK
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

__all__ = [
    "BlockSize",
    "SearchCall",
    "check_efforts",
    "exact_scores",
    "measure_recall",
    "score_blocks",
    "split_positions",
]


class BlockSize(NamedTuple):
    """Maximum size of a block: its number of tokens, and its number of scores, one per query and document.

    A document is never cut; a document with more tokens forms a block alone.
    """

    tokens: int
    scores: int


def score_blocks(
    vectors: TokenEmbeddings,
    positions: np.ndarray,
    queries: TokenEmbeddings,
    score: Callable[[TokenEmbeddings, TokenEmbeddings], Any],
    size: BlockSize,
) -> Iterator[tuple[np.ndarray, Any]]:
    """Score some of many documents, block by block.

    `positions`: which of them to score, ascending; `score`: ``score(queries, documents)`` returns scores
    ``(queries, documents)``; yields: some of the positions, in order, and the scores of these documents.

    Examples
    --------
    >>> queries = TokenEmbeddings.from_list([[[1.0]]])
    >>> vectors = TokenEmbeddings.from_list([[[2.0]], [[3.0]]])
    >>> def score(queries, documents):
    ...     return queries.vectors @ documents.vectors.T
    >>> list(score_blocks(vectors, np.array([1]), queries, score, BlockSize(8, 8)))
    [(array([1]), array([[3.]], dtype=float32))]
    """
    for block in split_positions(vectors.offsets, positions, size.tokens, size.scores // max(1, len(queries))):
        first, last = block[0], block[-1] + 1
        if len(block) == len(vectors):
            yield block, score(queries, vectors)
        elif last - first == len(block):
            yield block, score(queries, vectors[first:last])
        elif vectors.offsets[last] - vectors.offsets[first] <= 2 * _lengths(vectors.offsets, block).sum():
            # Scoring also the unwanted documents between them is cheaper than copying the wanted ones together.
            yield block, score(queries, vectors[first:last])[:, block - first]
        else:
            yield block, score(queries, vectors[block])


def split_positions(
    offsets: np.ndarray, positions: np.ndarray, max_tokens: int, max_documents: int
) -> Iterator[np.ndarray]:
    """Cut the ascending positions of documents with these token offsets into blocks of one or more documents."""
    if len(positions) < len(offsets) - 1:
        offsets = lengths_to_offsets(_lengths(offsets, positions))
    for first, last in split_by_rows(offsets, max_tokens, max(1, max_documents)):
        yield positions[first:last]


def _lengths(offsets: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.asarray(offsets[positions + 1] - offsets[positions])


# search(queries, k) returns the k best documents of each query.
SearchCall: TypeAlias = "Callable[[Any, int], list[list[Hit]]]"

# A hit counts as found if score >= s - _TOLERANCE * max(1, |s|), s being the exact score of the k-th best document:
# scores of the index are in single precision.
_TOLERANCE = 1e-5
# A document that serves as a query is cut to this many tokens, the usual length of a query.
_QUERY_TOKENS = 32
# Number of documents scored at a time.
_CHUNK = 256


def measure_recall(index: Index, k: int, queries: int, searches: Sequence[SearchCall] = ()) -> list[CheckReport]:
    """Search with documents of the index as queries, and measure the share of hits that are among the exact best `k`.

    `index`: any index; an empty one has recall 1. `k`, `queries`: as for `Index.check`. `searches`: the searches to
    measure, such as one per effort; by default only `index.search`. Returns: one report per search.
    """
    searches = searches or [index.search]
    ids = index.ids()
    if not ids:
        return [CheckReport(k=k, recall=1.0, worst=1.0, queries=0, documents=0)] * len(searches)
    documents = index.get_embeddings([ids[i] for i in _spread(len(ids), queries)])
    sample = TokenEmbeddings.from_list([matrix[:_QUERY_TOKENS] for matrix in documents])
    exact = TopK(len(sample), min(k, len(ids)))
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        exact.add(exact_scores(sample, index.get_embeddings(chunk)), np.arange(first, first + len(chunk)))
    return [_compare(index, sample, exact, search(sample, k), k, len(ids)) for search in searches]


# Efforts that `check_efforts` measures besides the default, and the recall that the recommended one has at least.
_EFFORTS, _ENOUGH = (0.5, 2.0, 4.0), 0.97


def check_efforts(index: Index, k: int, queries: int) -> CheckReport:
    """Measure the recall of the default effort of an index whose search has efforts, and recommend one."""
    ways = [partial(index.search, effort=effort) for effort in (1.0, *_EFFORTS)]
    report, *others = measure_recall(index, k, queries, ways)
    recalls = {1.0: report.recall, **dict(zip(_EFFORTS, (other.recall for other in others), strict=True))}
    return replace(report, advice=advise(recalls)) if report.queries else report


def advise(recalls: Mapping[float, float]) -> str:
    """Return a recommendation for `effort`, given the recall at several efforts, which include 1.0.

    Examples
    --------
    >>> advise({1.0: 0.95, 2.0: 0.981, 4.0: 0.99})
    'search with effort=2.0 to find 0.981'
    >>> advise({0.5: 0.94, 1.0: 0.98})
    ''
    >>> advise({0.5: 0.99, 1.0: 1.0})
    "effort='fast' finds 0.990 in about half the time"
    >>> print(advise({1.0: 0.2, 2.0: 0.3}))
    approximate recall stays below 0.97 at every effort tried; use effort='exact'
    """
    enough = sorted(effort for effort, recall in recalls.items() if recall >= _ENOUGH)
    if not enough:
        return f"approximate recall stays below {_ENOUGH} at every effort tried; use effort='exact'"
    effort = enough[0]
    if effort > 1:
        return f"search with effort={effort} to find {recalls[effort]:.3f}"
    return f"effort='fast' finds {recalls[effort]:.3f} in about half the time" if effort < 1 else ""


def _compare(
    index: Index, sample: TokenEmbeddings, exact: TopK, found: list[list[Hit]], k: int, documents: int
) -> CheckReport:
    recalls = []
    for i, hits in enumerate(found):
        lowest = exact.scores[i][-1]
        scores = exact_scores(sample[i : i + 1], index.get_embeddings([hit.id for hit in hits]))[0]
        found_count = np.count_nonzero(scores >= lowest - _TOLERANCE * max(1.0, abs(lowest)))
        recalls.append(found_count / len(exact.scores[i]))
    return CheckReport(k, float(np.mean(recalls)), float(np.min(recalls)), len(sample), documents)


def exact_scores(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return MaxSim in float64, ``(n_queries, n_documents)``; every query and document must have a token.

    Examples
    --------
    >>> queries = TokenEmbeddings.from_list([[[1.0, 0.0], [0.0, 1.0]]])
    >>> documents = [[[1.0, 0.0]], [[-0.5, 0.0], [0.0, -0.25]]]
    >>> exact_scores(queries, TokenEmbeddings.from_list(documents))
    array([[1., 0.]])
    """
    similarities = queries.vectors.astype("float64") @ documents.vectors.astype("float64").T
    best = np.maximum.reduceat(similarities, documents.offsets[:-1], axis=1)
    return np.add.reduceat(best, queries.offsets[:-1], axis=0)


def _spread(n: int, most: int) -> np.ndarray:
    """Return up to `most` positions of `n`, spread evenly from the first to the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype("int64"))
