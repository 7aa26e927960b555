"""Documents scored by MaxSim in blocks, and ranked: by scores, and by the fusion of what vectors and keywords find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.options import SearchOptions
from latelier.utils.batching import lengths_to_offsets, split_by_rows


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
    """Yield some of the `positions`, ascending, and the scores ``(queries, documents)`` of these documents."""
    for block in split_positions(vectors.offsets, positions, size.tokens, size.scores // max(1, len(queries))):
        first = block[0]
        last = block[-1] + 1
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


def exact_scores(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return MaxSim in float64, ``(n_queries, n_documents)``; every query and document must have a token."""
    similarities = queries.vectors.astype("float64") @ documents.vectors.astype("float64").T
    best = np.maximum.reduceat(similarities, documents.offsets[:-1], axis=1)
    return np.add.reduceat(best, queries.offsets[:-1], axis=0)


class Ranking(NamedTuple):
    """Documents of one query, best first, those with equal scores by row id; both ``(documents,)``."""

    row_ids: np.ndarray
    scores: np.ndarray

    @classmethod
    def empty(cls) -> Ranking:
        """Return a ranking of no document."""
        return cls(np.zeros(0, "int64"), np.zeros(0, "float32"))

    @classmethod
    def sorted(cls, row_ids: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
        """Return the `k` best of some documents."""
        order = np.lexsort((row_ids, -scores))[:k]
        return cls(row_ids[order], scores[order])


# The constant of reciprocal rank fusion in its paper.
_RANK_CONSTANT = 60


def fuse_scores(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Ranking:
    """Relative-score fusion: the weighted sum of the scores, each ranking's scaled to 0 to 1.

    That is ``weight * (s - a) / (b - a)`` for the lowest score ``a`` and the highest ``b``, or the weight if they are
    equal; 0 for a document that is missing.
    """
    return _weighted_sum([ranking.row_ids for ranking in rankings], [_scaled(r.scores) for r in rankings], weights, k)


def fuse_ranks(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Ranking:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009), with weights.

    A ranking gives the document at rank ``r = 1, 2, ...`` the score ``weight / (60 + r)``, and documents that are
    missing in it 0. The paper has no weights. `rankings`, `weights`, `k`: as for `fuse_scores`.
    """
    reciprocals = [1 / (_RANK_CONSTANT + np.arange(1, len(ranking.row_ids) + 1)) for ranking in rankings]
    return _weighted_sum([ranking.row_ids for ranking in rankings], reciprocals, weights, k)


def _scaled(scores: np.ndarray) -> np.ndarray:
    """Return scores scaled to the range from 0 to 1; ones if all are equal."""
    if not len(scores):
        return np.zeros(0)
    low = float(scores.min())
    high = float(scores.max())
    if high == low:
        return np.ones(len(scores))
    return (scores.astype("float64") - low) / (high - low)


def _weighted_sum(
    row_ids: Sequence[np.ndarray], scores: Sequence[np.ndarray], weights: Sequence[float], k: int
) -> Ranking:
    every = np.unique(np.concatenate([np.zeros(0, "int64"), *row_ids]))
    total = np.zeros(len(every))
    for own, given, weight in zip(row_ids, scores, weights, strict=True):
        total[np.searchsorted(every, own)] += weight * given
    return Ranking.sorted(every, total, k)


def combine_sides(
    options: SearchOptions,
    by_vectors: Ranking,
    by_keywords: Ranking,
    score: Callable[[np.ndarray], Ranking],
    k: int,
) -> Ranking:
    """Return the best documents of one query from those that vectors and those that keywords have found."""
    if options.mode == "rerank":
        return Ranking.sorted(*score(by_keywords.row_ids), k)
    if options.fusion == "rrf":
        return fuse_ranks([by_vectors, by_keywords], options.weights, k)
    scored = score(np.setdiff1d(by_keywords.row_ids, by_vectors.row_ids))
    every = Ranking(*(np.concatenate(pair) for pair in zip(by_vectors, scored, strict=True)))
    return fuse_scores([every, by_keywords], options.weights, k)
