"""Exact scores in blocks, and the recall of a search beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.base import Index
from latelier.indexes.results import CheckReport, Hit
from latelier.scores.topk import TopK
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

__all__ = ["BlockSize", "SearchCall", "exact_scores", "measure_recall", "score_blocks", "split_positions"]


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
