"""Exact scores in blocks, and the recall of a search measured by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.options import Searchable, SearchOptions
from latelier.indexes.results import CheckReport
from latelier.scores.topk import TopK
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
    """Score some of many documents, block by block.

    `positions`: which of them to score, ascending; `score`: ``score(queries, documents)`` returns scores
    ``(queries, documents)``; yields: some of the positions, in order, and the scores of these documents.
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


# A hit counts as found if score >= s - _TOLERANCE * max(1, |s|), s being the exact score of the k-th best document:
# scores of the index are in single precision.
_TOLERANCE = 1e-5
# A document that serves as a query is cut to this many tokens, the usual length of a query.
_QUERY_TOKENS = 32
# Number of documents scored at a time.
_CHUNK = 256
# Efforts that are measured of an index that has them, the default first; the recommended one has this recall at least.
_EFFORTS, _ENOUGH = (1.0, 0.5, 2.0, 4.0), 0.97


def measure_recall(index: Searchable, k: int, queries: int) -> CheckReport:
    """Search with documents of the index as queries; return the share of hits that are among the exact best `k`.

    All reads should see one commit, see `Index.snapshot`. An empty index has recall 1.
    """
    ids = index.ids()
    if not ids:
        return CheckReport(k=k, recall=1.0, worst=1.0, queries=0, documents=0)
    spread = np.unique(np.linspace(0, len(ids) - 1, min(len(ids), queries)).astype("int64"))
    documents = index.get_embeddings([ids[i] for i in spread])
    sample = TokenEmbeddings.from_list([matrix[:_QUERY_TOKENS] for matrix in documents])
    exact = TopK(len(sample), min(k, len(ids)))
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        exact.add(exact_scores(sample, index.get_embeddings(chunk)), np.arange(first, first + len(chunk)))

    def recalls(options: SearchOptions) -> np.ndarray:
        found = []
        for i, hits in enumerate(index.find(sample, k, [], options)):
            lowest = exact.scores[i][-1]
            scores = exact_scores(sample[i : i + 1], index.get_embeddings([hit.id for hit in hits]))[0]
            right = np.count_nonzero(scores >= lowest - _TOLERANCE * max(1.0, abs(lowest)))
            found.append(right / len(exact.scores[i]))
        return np.array(found)

    if "effort" not in index.search_options:
        own, advice = recalls(SearchOptions()), ""
    else:
        by_effort = {effort: recalls(SearchOptions(effort=effort)) for effort in _EFFORTS}
        own, advice = by_effort[1.0], _advise({effort: float(each.mean()) for effort, each in by_effort.items()})
    return CheckReport(k, float(own.mean()), float(own.min()), len(sample), len(ids), advice)


def _advise(recalls: Mapping[float, float]) -> str:
    """Recommend an effort, given the recall at several, which include 1.0."""
    effort = min((effort for effort, recall in recalls.items() if recall >= _ENOUGH), default=None)
    if effort is None:
        return f"approximate recall stays below {_ENOUGH} at every effort tried; use effort='exact'"
    if effort > 1:
        return f"search with effort={effort} to find {recalls[effort]:.3f}"
    return f"effort='fast' finds {recalls[effort]:.3f} in about half the time" if effort < 1 else ""


def exact_scores(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return MaxSim in float64, ``(n_queries, n_documents)``; every query and document must have a token."""
    similarities = queries.vectors.astype("float64") @ documents.vectors.astype("float64").T
    best = np.maximum.reduceat(similarities, documents.offsets[:-1], axis=1)
    return np.add.reduceat(best, queries.offsets[:-1], axis=0)
