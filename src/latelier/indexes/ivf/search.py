"""The stages of one query, with kernels.

1. Probing: each query token finds its best inverted lists, by two levels of centroids.
2. Candidates: documents in these lists with the highest sums of imputed scores, if these are near that of the k-th.
3. Sign stage: MaxSim of the query with the candidates' sign codes.
4. Reranking: MaxSim of the codes with the query in 8 bits, and for the few best in single precision.

If few documents are eligible, because the index is small, has no inverted lists yet or a filter selects few, then stage
3 takes all of them, which is faster than probing and misses none. Any other filter is applied in stage 2; the more
documents it excludes, the more lists are probed.

With many dims, the first 128 are scored first, which excludes most documents in a fraction of the time.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.codec import SIGNS, DocumentTable
from latelier.indexes.ivf.kernels.candidates import (
    MOST_TOKENS,
    CandidateLimits,
    find_candidates,
    find_lists,
    highest_places,
    near_highest,
    select_near,
    sum_bits,
)
from latelier.indexes.ivf.kernels.rerank import rerank_scores
from latelier.indexes.ivf.kernels.signs import make_sign_tables, product_variance, round_to_integers, sign_scores
from latelier.indexes.ivf.lists import Centroids, InvertedLists
from latelier.indexes.ivf.parameters import SearchParameters, most_without_signs, variance_rows
from latelier.kernels.instruction_sets import instruction_set

__all__ = [
    "Candidates",
    "Found",
    "ProbedLists",
    "Scope",
    "Stages",
    "keep_best",
    "keep_by_signs",
    "keep_near_best",
    "probe_for_candidates",
    "probe_lists",
    "run_stages",
    "search_query",
    "sign_passes",
    "tolerance",
]

# The words of 32 dims that are scored first, if there are half as many more and at least _MANY documents.
_FIRST_WORDS, _MANY = 4, 300
# At most so many words are scored, so that the sums of the kernel fit 16 bits: 8,192 dims.
_MOST_WORDS = 256
# Standard deviation of the product of a unit vector with the signs of another, given their cosine. Each number of the
# other explains a part of its sign: for independent normal numbers it is sqrt(1 - 2 / pi) = 0.6, and somewhat more for
# real vectors. If only some dims are scored, the cosine of all says less about them: that of independent signs is 1.
_DEVIATION, _PART_DEVIATION = 0.7, 1.0


def keep_by_signs(
    table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray, k: int, parameters: SearchParameters
) -> np.ndarray:
    """Return the documents that may be among the best, those with the highest sign scores first.

    `chosen`: ordinals of documents, with at least one token each. `vectors`: the query, ``(tokens, dim)`` float32.
    `parameters`: with `rerank`, so many documents are kept; otherwise those within `slack` standard deviations.
    """
    *first, words = sign_passes(table.codec.shape.sign_words, len(chosen))
    for some in first:
        scores = _score(table, chosen, vectors, some)
        chosen = keep_near_best(chosen, scores, parameters.rerank or k, tolerance(vectors, some, parameters))
    scores = _score(table, chosen, vectors, words)
    everything = np.arange(len(chosen))
    if parameters.rerank is not None:
        kept = keep_best(everything, scores, parameters.rerank)
    else:
        kept = keep_near_best(everything, scores, k, tolerance(vectors, words, parameters))
    return chosen[kept[np.argsort(-scores[kept], kind="stable")]]


def _score(table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray, words: int) -> np.ndarray:
    """Return the sign scores of documents, by some words of their sign codes, float32."""
    integers, units = round_to_integers(vectors, words)
    scores, row_bytes = np.empty(len(chosen), dtype="float32"), 4 * table.codec.shape.sign_words
    isa, query = instruction_set().argument, (make_sign_tables(integers), units)
    for some, documents, places in table.windows(chosen, SIGNS):
        sign_scores(isa, tuple(documents), places, row_bytes, query, scores[some])
    return scores


def keep_best(chosen: np.ndarray, scores: np.ndarray, most: int) -> np.ndarray:
    """Return the `most` documents with the highest scores, in the given order; among equal lowest ones, the first."""
    if len(chosen) <= most:
        return chosen
    kept = np.empty(most, dtype="int64")
    highest_places(scores, kept)
    return chosen[kept]


def keep_near_best(chosen: np.ndarray, scores: np.ndarray, k: int, tolerance: float) -> np.ndarray:
    """Return the documents with ``score >= k-th best score - tolerance``, in the given order.

    `chosen`: ``(documents,)`` int64; `scores`: ``(documents,)`` float32, no NaN.
    """
    kept = np.empty(len(chosen), dtype="int64")
    return chosen[kept[: near_highest(scores, min(k, len(chosen)), tolerance, kept)]]


def sign_passes(words: int, documents: int) -> tuple[int, ...]:
    """Return how many words of the sign codes are scored, first of all documents, then of those that this leaves."""
    words = min(words, _MOST_WORDS)
    return (_FIRST_WORDS, words) if 2 * words >= 3 * _FIRST_WORDS and documents >= _MANY else (words,)


def tolerance(vectors: np.ndarray, words: int, parameters: SearchParameters) -> float:
    """Return the largest distance below the k-th best score at which a document is still kept.

    `vectors`: ``(tokens, dim)`` float32: the query; `parameters`: of which `slack` is used.
    """
    tokens, dim = vectors.shape
    scored = min(dim, 32 * words)
    deviation = _DEVIATION if scored == dim else _PART_DEVIATION
    return parameters.slack * deviation * math.sqrt(product_variance(vectors, scored, variance_rows(tokens)))


# k + _MARGIN documents are scored in single precision, since scores in 8 bits may rank the last of them wrongly.
_MARGIN = 4
# Lists are probed only where
#     eligible documents in lists > (3 + widening) / 2 * candidates,
# and otherwise the sign codes of all eligible documents are compared. `widening` is the factor by which a filter raises
# nprobe: probing as many lists takes about as long as comparing the sign codes of widening / 2 * candidates documents.
_SCAN, _MAX_WIDENING = 3, 16
# A query token is compared with the centroids under its max(4, nprobe // 8) best coarse centroids.
_MIN_COARSE, _LISTS_PER_COARSE = 4, 8
# Documents in one block of candidate selection, in which their sums, 4 bytes each, stay in the L2 cache.
_BLOCK = 1 << 16
_SCRATCH = threading.local()


class Scope(NamedTuple):
    """The documents that a search may find.

    `table`, `lists`: document table and inverted lists of the snapshot; `lists` is None if there are none. `allowed`:
    ``(documents,)`` uint8, 1 for eligible documents; empty if all documents of the table are eligible. `eligible`:
    ordinals of the documents that may be found, ascending.
    """

    table: DocumentTable
    lists: InvertedLists | None
    allowed: np.ndarray
    eligible: np.ndarray


class Found(NamedTuple):
    """The best documents of one query: scores, best first, and catalog numbers."""

    scores: np.ndarray
    numbers: np.ndarray


class ProbedLists(NamedTuple):
    """The inverted lists that each query token probes, best first, and the excess of their imputed score.

    Both are ``(query_tokens, nprobe)`` int32, see `latelier.indexes.ivf.kernels.candidates.find_lists`.
    """

    lists: np.ndarray
    excess: np.ndarray


class Candidates(NamedTuple):
    """Documents in the probed lists.

    `found`: number of documents found, at most ``parameters.candidates``. `documents`: ordinals of those with a sum of
    excesses near that of the k-th, see `SearchParameters.share`; ascending.
    """

    found: int
    documents: np.ndarray


class Stages(NamedTuple):
    """The documents that each stage of one search passes on, as ordinals; a stage that is left out passes on all.

    `nprobe`: how many inverted lists each query token probed at most; None if none, since few documents are eligible.
    `candidates`: documents that enter the sign stage. `reranked`: documents that leave it, to be scored with the query
    in 8 bits. `scored`: the documents whose 8-bit score was among the best when they were scored; these are scored
    again in single precision. `scores`: their scores in single precision, float32.
    """

    nprobe: int | None
    candidates: np.ndarray
    reranked: np.ndarray
    scored: np.ndarray
    scores: np.ndarray


def search_query(scope: Scope, vectors: np.ndarray, k: int, parameters: SearchParameters) -> Found:
    """Find the best documents of one query.

    `scope`: the documents that may be found. `vectors`: ``(tokens, dim)`` float32, at least one token. `k`: maximum
    number of documents to return. `parameters`: the search parameters. Returns: sorted by falling score; documents with
    equal scores by catalog number.
    """
    stages = run_stages(scope, vectors, k, parameters)
    scores, numbers = stages.scores, scope.table.numbers[stages.scored]
    order = np.lexsort((numbers, -scores))[:k]
    return Found(scores[order], numbers[order])


def run_stages(scope: Scope, vectors: np.ndarray, k: int, parameters: SearchParameters) -> Stages:
    """Run the stages of one query, the last of which scores documents in single precision.

    `scope`, `vectors`, `k`, `parameters`: see `search_query`.
    """
    if not vectors.flags.carray:
        vectors = np.array(vectors, order="C")  # for read-only or other arrays, kernels would be compiled again
    table, nprobe, candidates = scope.table, None, scope.eligible
    if not parameters.exact:
        nprobe, candidates = _candidates(scope, vectors, k, parameters)
    reranked = candidates
    if len(candidates) > (parameters.rerank or most_without_signs(k)) and not parameters.exact:
        reranked = keep_by_signs(table, candidates, vectors, k, parameters)
    return Stages(nprobe, candidates, reranked, *_score_codes(table, reranked, vectors, k + _MARGIN))


def _candidates(
    scope: Scope, vectors: np.ndarray, k: int, parameters: SearchParameters
) -> tuple[int | None, np.ndarray]:
    """Return `nprobe`, and the documents for the sign stage: candidates and all documents in no list.

    Without probed lists, these are all eligible documents.
    """
    table, eligible = scope.table, scope.eligible
    listed = int(np.searchsorted(eligible, table.listed))
    enough = parameters.rerank or max(k, parameters.candidates // 2)
    widening = min(_MAX_WIDENING, max(1, round(table.listed / max(1, listed))))
    if scope.lists is None or 2 * listed <= (_SCAN + widening) * parameters.candidates:
        return None, eligible
    while widening <= _MAX_WIDENING:
        nprobe = parameters.nprobe * widening
        found, near = probe_for_candidates(scope, scope.lists, vectors, nprobe, k, parameters)
        if found >= enough:
            return nprobe, np.concatenate([near, eligible[listed:]]) if listed < len(eligible) else near
        widening *= 4
    return None, eligible


def probe_for_candidates(
    scope: Scope, lists: InvertedLists, vectors: np.ndarray, nprobe: int, k: int, parameters: SearchParameters
) -> Candidates:
    """Return the documents in the probed lists with the highest imputed scores.

    `scope`, `lists`: the documents that may be found, and their inverted lists. `vectors`: ``(tokens, dim)`` float32:
    the query; only its first 65,535 tokens are used. `nprobe`: maximum number of lists per query token. `k`,
    `parameters`: number of hits, and the search parameters, of which `candidates` and `share` are used. Returns: how
    many documents were found, and those near the k-th.
    """
    vectors, documents = vectors[:MOST_TOKENS], len(scope.table.numbers)
    bits = sum_bits(len(vectors))
    limits = tuple(CandidateLimits(bits, documents, parameters.candidates, k, float(parameters.share)))
    if lists.files is None:
        isa, centroids, entries = instruction_set().argument, lists.centroids.arrays, tuple(lists.all_entries())
        probing = _coarse_count(lists.centroids, nprobe), nprobe
        return Candidates(*find_candidates(isa, vectors, centroids, probing, entries, limits, scope.allowed, _sums()))
    probed = probe_lists(lists.centroids, vectors, nprobe)
    numbers, read = lists.read_entries(probed.lists)
    return Candidates(*select_near(numbers, probed.excess, tuple(read), limits, scope.allowed, _sums()))


def probe_lists(centroids: Centroids, vectors: np.ndarray, nprobe: int) -> ProbedLists:
    """Find the inverted lists of the centroids nearest to each query token.

    `vectors`: ``(tokens, dim)`` float32: the query; only its first 65,535 tokens are used. `nprobe`: maximum number of
    lists per query token.
    """
    isa, coarse, vectors = instruction_set().argument, _coarse_count(centroids, nprobe), vectors[:MOST_TOKENS]
    return ProbedLists(*find_lists(isa, vectors, centroids.arrays, coarse, nprobe, sum_bits(len(vectors))))


def _coarse_count(centroids: Centroids, nprobe: int) -> int:
    """Return the number of coarse centroids under which a query token looks for lists."""
    return min(len(centroids.fine_offsets) - 1, max(_MIN_COARSE, nprobe // _LISTS_PER_COARSE))


def _sums() -> np.ndarray:
    """Return this thread's memory for the sums of a block of documents."""
    if not hasattr(_SCRATCH, "sums"):
        _SCRATCH.sums = np.empty(_BLOCK, dtype="uint32")
    return _SCRATCH.sums


def _score_codes(
    table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents whose 8-bit score was among the `most` best so far, and their MaxSim in single precision."""
    isa, shape = instruction_set().argument, tuple(table.codec.shape)
    scores, highest = np.empty((len(chosen), 2), dtype="float32"), np.full(most, -np.inf, dtype="float32")
    for some, documents, places in table.windows(chosen, *table.codec.arrays):
        rerank_scores(isa, tuple(documents), places, shape, vectors, highest, scores[some])
    best = np.flatnonzero(scores[:, 1] == scores[:, 1])
    return chosen[best], scores[best, 1]
