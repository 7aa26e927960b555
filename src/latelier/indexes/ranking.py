"""Documents scored by MaxSim in blocks, and ranked: by scores, and by the fusion of what vectors and keywords find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.options import VECTORS_PER_WORD, SearchOptions
from latelier.indexes.results import Hit
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
    numbers: np.ndarray | None = None,
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield some of the `positions`, ascending, and the scores ``(queries, documents)`` of these documents.

    `numbers`: of each position, the number of the document that it is a passage of; no block ends within one.
    """
    most = size.scores // max(1, len(queries))
    for block in split_positions(vectors.offsets, positions, size.tokens, most, numbers):
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
    offsets: np.ndarray,
    positions: np.ndarray,
    max_tokens: int,
    max_documents: int,
    numbers: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
    """Cut the ascending positions of documents with these token offsets into blocks of one or more documents.

    `numbers`: see `score_blocks`.
    """
    if len(positions) < len(offsets) - 1:
        offsets = lengths_to_offsets(_lengths(offsets, positions))
    if numbers is None or not len(positions):
        begins = np.arange(len(positions) + 1)
    else:
        begins = np.append(np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1)), len(positions))
    most = max(1, max_documents * (len(begins) - 1) // max(1, len(positions)))
    for first, last in split_by_rows(offsets[begins], max_tokens, most):
        yield positions[begins[first] : begins[last]]


def _lengths(offsets: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.asarray(offsets[positions + 1] - offsets[positions])


def exact_scores(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return MaxSim in float64, ``(n_queries, n_documents)``; every query and document must have a token."""
    similarities = queries.vectors.astype("float64") @ documents.vectors.astype("float64").T
    best = np.maximum.reduceat(similarities, documents.offsets[:-1], axis=1)
    return np.add.reduceat(best, queries.offsets[:-1], axis=0)


class Ranking(NamedTuple):
    """Documents of one query, best first, those with equal scores in the order of insertion; all ``(documents,)``.

    `numbers`: those of the documents; `rows`: the row id of each, or of its best passage.
    """

    numbers: np.ndarray
    scores: np.ndarray
    rows: np.ndarray

    @classmethod
    def empty(cls) -> Ranking:
        """Return a ranking of no document."""
        return cls(np.zeros(0, "int64"), np.zeros(0), np.zeros(0, "int64"))

    def best_rows(self, k: int) -> Ranking:
        """Return the first `k` documents of rows in their order, each with its first row."""
        _, firsts = np.unique(self.numbers, return_index=True)
        order = np.sort(firsts)[:k]
        return Ranking(self.numbers[order], self.scores[order], self.rows[order])

    def among(self, numbers: np.ndarray) -> Ranking:
        """Return those of some documents."""
        chosen = np.isin(self.numbers, numbers)
        return Ranking(*(column[chosen] for column in self))

    def joined(self, other: Ranking) -> Ranking:
        """Return the documents of both, of which none is in both."""
        return Ranking(*map(np.append, self, other))

    def sorted(self, k: int) -> Ranking:
        """Return the `k` best documents, of documents in any order."""
        order = np.lexsort((self.numbers, -self.scores))[:k]
        return Ranking(self.numbers[order], self.scores[order], self.rows[order])


# The constant of reciprocal rank fusion in its paper.
_RANK_CONSTANT = 60


def fuse_scores(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Ranking:
    """Relative-score fusion: the weighted sum of the scores, each ranking's scaled to 0 to 1.

    That is ``weight * (s - a) / (b - a)`` for the lowest score ``a`` and the highest ``b``, or the weight if they are
    equal; 0 for a document that is missing.
    """
    return _weighted_sum(rankings, [_scaled(ranking.scores) for ranking in rankings], weights, k)


def fuse_ranks(rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Ranking:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009), with weights.

    A ranking gives the document at rank ``r = 1, 2, ...`` the score ``weight / (60 + r)``, and documents that are
    missing in it 0. The paper has no weights. `rankings`, `weights`, `k`: as for `fuse_scores`.
    """
    reciprocals = [1 / (_RANK_CONSTANT + np.arange(1, len(ranking.numbers) + 1)) for ranking in rankings]
    return _weighted_sum(rankings, reciprocals, weights, k)


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
    rankings: Sequence[Ranking], scores: Sequence[np.ndarray], weights: Sequence[float], k: int
) -> Ranking:
    """Return the `k` best by their sums; of a document, the row is that of the first ranking that has it."""
    every = np.unique(np.concatenate([np.zeros(0, "int64"), *(ranking.numbers for ranking in rankings)]))
    total = np.zeros(len(every))
    rows = np.zeros(len(every), "int64")
    places = [np.searchsorted(every, ranking.numbers) for ranking in rankings]
    for own, given, weight in zip(places, scores, weights, strict=True):
        total[own] += weight * given
    for own, ranking in reversed(list(zip(places, rankings, strict=True))):
        rows[own] = ranking.rows
    return Ranking(every, total, rows).sorted(k)


def with_words(by_vectors: Ranking, by_words: Ranking, most: int) -> Ranking:
    """Return the `most` best documents by vectors, and those that only words have found, with their scores.

    `by_vectors`: in any order; all of those by words are among them.
    """
    order = np.lexsort((by_vectors.numbers, -by_vectors.scores))
    wanted = {*by_words.numbers.tolist()}
    others = by_vectors.numbers[order[most:]].tolist()  # few: a set takes less time than numpy's search
    chosen = np.append(order[:most], order[[most + i for i, number in enumerate(others) if number in wanted]])
    return Ranking(*(column[chosen] for column in by_vectors))


def vector_scores(ranking: Ranking, by_vectors: Ranking) -> list[float | None]:
    """Return the scores by vectors of the documents of a fused ranking; None of those that have none."""
    known = dict(zip(by_vectors.numbers.tolist(), by_vectors.scores.tolist(), strict=True))
    return [known.get(number) for number in ranking.numbers.tolist()]


def combine_sides(options: SearchOptions, by_vectors: Ranking, by_words: Ranking, k: int) -> Ranking:
    """Return the best documents of one query by the fusion of two rankings.

    `by_vectors`: in any order, see `with_words`.
    """
    if options.fusion == "rrf":
        return fuse_ranks([by_vectors.sorted(len(by_vectors.numbers)), by_words], options.weights, k)
    return fuse_scores([by_vectors, by_words], options.weights, k)


class ShardFindings(NamedTuple):
    """What a shard finds for one query: the best of each side that the mode uses, and hits by document number.

    `by_vectors`: of hybrid and rerank, all of those by words are among them.
    """

    by_vectors: Ranking
    by_words: Ranking
    hits: dict[int, Hit]


def merge_findings(found: Sequence[ShardFindings], options: SearchOptions, k: int) -> list[Hit]:
    """Return the best documents of one query from those of each shard."""

    def best(rankings: Iterable[Ranking], count: int | None = None) -> Ranking:
        joined = Ranking(*(np.concatenate(column) for column in zip(*rankings, strict=True)))
        return joined.sorted(len(joined.numbers) if count is None else count)

    by_vectors = best(each.by_vectors for each in found)
    depth = k if options.mode == "keywords" else options.depth_for(k)
    by_words = best((each.by_words for each in found), depth)
    if options.mode == "vectors":
        ranking = by_vectors.sorted(k)
    elif options.mode == "keywords":
        ranking = by_words
    elif options.mode == "rerank":
        ranking = by_vectors.among(by_words.numbers).sorted(k)
    else:
        ranking = combine_sides(options, with_words(by_vectors, by_words, VECTORS_PER_WORD * depth), by_words, k)
    hits = {number: hit for each in found for number, hit in each.hits.items()}
    pairs = zip(ranking.numbers.tolist(), ranking.scores.tolist(), strict=True)
    best_hits = [hits[number].scored(score) for number, score in pairs]
    if options.mode == "hybrid":
        for hit, score in zip(best_hits, vector_scores(ranking, by_vectors), strict=True):
            hit.vector_score = score
    return best_hits
