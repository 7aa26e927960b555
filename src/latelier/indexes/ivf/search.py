"""The search of one query, in stages; each stage passes fewer documents to the next.

1. Probing: each query token finds its best inverted lists, by two levels of centroids.
2. Candidates: documents in these lists with the highest sums of imputed scores, if these are near that of the k-th.
3. Sign stage: MaxSim of the query with the candidates' sign codes.
4. Reranking: MaxSim of the codes with the query in 8 bits, and for the few best in single precision.

If few documents are eligible, because the index is small, has no inverted lists yet or a filter selects few, then stage
3 takes all of them, which is faster than probing and misses none. Any other filter is applied in stage 2; the more
documents it excludes, the more lists are probed.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.centroids import Centroids
from latelier.indexes.ivf.document_table import DocumentTable
from latelier.indexes.ivf.inverted_lists import InvertedLists
from latelier.indexes.ivf.kernels.candidates import MOST_TOKENS, select_candidates, sum_bits
from latelier.indexes.ivf.kernels.probing import find_lists
from latelier.indexes.ivf.kernels.queries import QuantisedQuery, quantise_query
from latelier.indexes.ivf.kernels.rerank import rerank_scores
from latelier.indexes.ivf.search_parameters import SearchParameters, most_without_signs
from latelier.indexes.ivf.sign_stage import keep_by_signs
from latelier.kernels.instruction_sets import instruction_set

__all__ = [
    "Candidates",
    "Found",
    "ProbedLists",
    "Scope",
    "Stages",
    "find_candidates",
    "probe_lists",
    "run_stages",
    "search_query",
]

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

    Attributes
    ----------
    table, lists
        Document table and inverted lists of the snapshot; `lists` is None if there are none.
    allowed
        ``(documents,)`` uint8, 1 for eligible documents; empty if all documents of the table are eligible.
    eligible
        Ordinals of the documents that may be found, ascending.
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

    Both are ``(query_tokens, nprobe)`` int32, see `latelier.indexes.ivf.kernels.probing.find_lists`.
    """

    lists: np.ndarray
    excess: np.ndarray


class Candidates(NamedTuple):
    """Documents in the probed lists, ascending, and their sums of excesses, both ``(documents,)`` int64."""

    documents: np.ndarray
    sums: np.ndarray

    def near(self, k: int, share: float) -> np.ndarray:
        """Return the documents with at least this share of the k-th highest sum."""
        if len(self.sums) <= k or share <= 0:
            return self.documents
        return self.documents[self.sums >= share * np.partition(self.sums, -k)[-k]]


class Stages(NamedTuple):
    """The documents that each stage of one search passes on, as ordinals; a stage that is left out passes on all.

    Attributes
    ----------
    probed
        The probed inverted lists; None if none were probed, since few documents are eligible.
    candidates
        Documents that enter the sign stage.
    reranked
        Documents that leave it, to be scored with the query in 8 bits.
    scored
        The documents whose 8-bit score was among the best when they were scored; these are scored again in single
        precision.
    scores
        Their scores in single precision, float32.
    """

    probed: ProbedLists | None
    candidates: np.ndarray
    reranked: np.ndarray
    scored: np.ndarray
    scores: np.ndarray


def search_query(scope: Scope, vectors: np.ndarray, k: int, parameters: SearchParameters) -> Found:
    """Find the best documents of one query.

    Parameters
    ----------
    scope
        The documents that may be found.
    vectors
        ``(tokens, dim)`` float32, at least one token.
    k
        Maximum number of documents to return.
    parameters
        The search parameters.

    Returns
    -------
    Found
        Sorted by falling score; documents with equal scores by catalog number.
    """
    table, query = scope.table, quantise_query(vectors)
    stages = run_stages(scope, query, k, parameters)
    scores, numbers = stages.scores, table.numbers[stages.scored]
    order = np.lexsort((numbers, -scores))[:k]
    return Found(scores[order], numbers[order])


def run_stages(scope: Scope, query: QuantisedQuery, k: int, parameters: SearchParameters) -> Stages:
    """Run the stages of one query, the last of which scores documents in single precision.

    Parameters
    ----------
    scope
        The documents that may be found.
    query
        The query, with at least one token.
    k
        Maximum number of documents to return.
    parameters
        The search parameters.

    Returns
    -------
    Stages
        What each stage passes on.
    """
    table, probed, candidates = scope.table, None, scope.eligible
    if not parameters.exact:
        probed, candidates = _candidates(scope, query, k, parameters)
    reranked = candidates
    if len(candidates) > (parameters.rerank or most_without_signs(k)) and not parameters.exact:
        reranked = keep_by_signs(table, candidates, query.vectors, k, parameters)
    return Stages(probed, candidates, reranked, *_score_codes(table, reranked, query, k + _MARGIN))


def _candidates(
    scope: Scope, query: QuantisedQuery, k: int, parameters: SearchParameters
) -> tuple[ProbedLists | None, np.ndarray]:
    """Return the probed lists, and the documents for the sign stage: candidates and all documents in no list.

    Without probed lists, these are all eligible documents.
    """
    table, eligible = scope.table, scope.eligible
    listed = int(np.searchsorted(eligible, table.listed))
    enough = parameters.rerank or max(k, parameters.candidates // 2)
    widening = min(_MAX_WIDENING, max(1, round(table.listed / max(1, listed))))
    if scope.lists is None or 2 * listed <= (_SCAN + widening) * parameters.candidates:
        return None, eligible
    while widening <= _MAX_WIDENING:
        probed = probe_lists(scope.lists.centroids, query, parameters.nprobe * widening)
        found = find_candidates(scope.lists, table, probed, scope.allowed, parameters.candidates)
        if len(found.documents) >= enough:
            near = found.near(k, parameters.share)
            return probed, np.concatenate([near, eligible[listed:]])
        widening *= 4
    return None, eligible


def probe_lists(centroids: Centroids, query: QuantisedQuery, nprobe: int) -> ProbedLists:
    """Find the inverted lists of the centroids nearest to each query token.

    Parameters
    ----------
    centroids
        The centroids of the index.
    query
        The query; only its first 65,535 tokens are used.
    nprobe
        Maximum number of lists per query token.

    Returns
    -------
    ProbedLists
        The lists, and the excess of their imputed scores.
    """
    rows, tokens = query.rows[:MOST_TOKENS], min(MOST_TOKENS, len(query.rows))
    most = min(len(centroids.fine_offsets) - 1, max(_MIN_COARSE, nprobe // _LISTS_PER_COARSE))
    room = (1 << sum_bits(tokens)) - 1 - tokens
    isa, arrays = instruction_set().argument, centroids[:-1]  # all but the statistics
    return ProbedLists(*find_lists(isa, rows, query.scales, arrays, most, nprobe, room))


def find_candidates(
    lists: InvertedLists, table: DocumentTable, probed: ProbedLists, allowed: np.ndarray, most: int
) -> Candidates:
    """Return the documents in the probed lists with the highest imputed scores.

    Parameters
    ----------
    lists
        The inverted lists of the index.
    table
        Its documents.
    probed
        From `probe_lists`.
    allowed
        See `Scope`.
    most
        Maximum number of documents to return.
    """
    best, best_sums = np.empty(most, dtype="int64"), np.empty(most, dtype="int64")
    numbers, entries = lists.entries(probed.lists)
    count = select_candidates(
        numbers,
        probed.excess,
        tuple(entries),
        sum_bits(len(probed.lists)),
        allowed,
        len(table.numbers),
        _sums(),
        best,
        best_sums,
    )
    return Candidates(best[:count], best_sums[:count])


def _sums() -> np.ndarray:
    """Return this thread's memory for the sums of a block of documents."""
    if not hasattr(_SCRATCH, "sums"):
        _SCRATCH.sums = np.empty(_BLOCK, dtype="uint32")
    return _SCRATCH.sums


def _score_codes(
    table: DocumentTable, chosen: np.ndarray, query: QuantisedQuery, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents whose 8-bit score was among the `most` best so far, and their MaxSim in single precision."""
    isa, shape = instruction_set().argument, tuple(table.codec.shape)
    scores, highest = np.empty((len(chosen), 2), dtype="float32"), np.full(most, -np.inf, dtype="float32")
    for some, documents, places in table.windows(chosen, *table.codec.arrays):
        rerank_scores(isa, tuple(documents), places, shape, tuple(query), highest, scores[some])
    best = np.flatnonzero(scores[:, 1] == scores[:, 1])
    return chosen[best], scores[best, 1]
