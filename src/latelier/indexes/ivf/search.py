"""The stages of one query of IVF, and in which of them a document is lost.

1. Probing: each query token finds its best inverted lists, by two levels of centroids.
2. Candidates: documents in these lists with the highest sums of imputed scores, if these are near that of the k-th.
3. Binary stage: MaxSim of the query with the candidates' binary codes (1 bit per number).
4. Reranking: MaxSim of the codes with the query in 8 bits, and for the few best in single precision, of the documents
   with the highest scores of the binary stage, and then of all others that may be among the best k by what these say.

If few documents are eligible, because the index is small, has no inverted lists yet or a filter selects few, then stage
3 takes all of them, which is faster than probing and misses none. Any other filter is applied in stage 2; the more
documents it excludes, the more lists are probed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.codec import DocumentTable
from latelier.indexes.ivf.kernels.candidates import MOST_TOKENS, imputed_sums, select_candidates, sum_bits
from latelier.indexes.ivf.kernels.centroids import ProbedLists, find_lists
from latelier.indexes.ivf.kernels.rerank import rerank_scores
from latelier.indexes.ivf.kernels.signs import sign_scores
from latelier.indexes.ivf.layout import size_factor
from latelier.indexes.ivf.lists import Centroids, InvertedLists
from latelier.indexes.options import SearchOptions, effort_factor
from latelier.indexes.results import Cause, StageLoss

# nprobe and candidates of effort 1.0, for k <= 25, dim >= 128 and at least 2**20 tokens; benchmarks/index.py measures
# the recall they give.
_NPROBE = 40
_CANDIDATES = 500
_CANDIDATES_PER_HIT = 20
# The binary stage is left out for at most _FEW + _FEW_PER_HIT * k documents: reranking them at once is about as fast,
# and a search of a small collection misses none.
_FEW = 80
_FEW_PER_HIT = 4
# Binary codes of fewer than 128 bits are less precise, so candidates are multiplied by 128 / dim, by 8 at most.
_SIGN_BITS = 128
_MAX_DIM_FACTOR = 8.0
# `SearchParameters.slack` of effort 1.0, and `share`, which is `_SHARE ** effort` for k <= 25. Beyond, the k-th imputed
# score is less above those of all documents, and the exponent grows with k.
_SLACK = 2.0
_SHARE = 0.4
# Collections above 10 million tokens: with s = tokens / 10 million, candidates grow by s ** 0.3, which doubles them at
# 100 million. Inverted lists get smaller as well then, so nprobe grows more slowly (exponent 0.18).
_CANDIDATES_EXPONENT = 0.3
_NPROBE_EXPONENT = 0.18
# Below 2**20 tokens, nprobe is multiplied by 2**20 / tokens, by 2 at most: short queries need it to find what comparing
# all binary codes finds. For 4,045 package descriptions of 400,000 tokens and queries of 11 tokens, recall@10 is 0.994
# by all binary codes, 0.994 with 80 lists per token and 0.987 with 40.
_SMALL = 1 << 20
_MAX_SMALL_FACTOR = 2.0


@dataclass(frozen=True)
class SearchParameters:
    """Numbers of inverted lists and documents in each stage of a search.

    `candidates` documents of the probed lists at most enter the binary stage, if ``excess >= share * (k-th highest
    excess)``; those leave it that may be among the best k within `slack` standard deviations. `exact`: score all
    documents by their codes.
    """

    nprobe: int
    candidates: int
    slack: float = _SLACK
    share: float = 0.0
    exact: bool = False


def choose_search_parameters(k: int, dim: int, options: SearchOptions, *, tokens: int = 0) -> SearchParameters:
    """Return the search parameters of an effort, with ``k <= candidates``; those given replace its own.

    `dim` is also the number of bits of a binary code. `tokens`: of the whole index: above ten million, the defaults
    grow with it; below one million, `nprobe` grows as it falls.
    """
    factor = effort_factor(options.effort)
    slack = _SLACK * factor**0.5
    size = size_factor(tokens)
    small = min(_MAX_SMALL_FACTOR, max(1.0, _SMALL / max(1, tokens)))
    nprobe = max(1, round(_NPROBE * factor * small * size**_NPROBE_EXPONENT))
    factor *= size**_CANDIDATES_EXPONENT
    candidates_factor = factor * max(1.0, min(_MAX_DIM_FACTOR, _SIGN_BITS / max(1, dim)))
    candidates = round(candidates_factor * max(_CANDIDATES, _CANDIDATES_PER_HIT * k))
    share = _SHARE ** (factor * max(1.0, _CANDIDATES_PER_HIT * k / _CANDIDATES))
    return SearchParameters(
        nprobe=options.nprobe or nprobe,
        candidates=max(k, options.candidates or candidates),
        slack=slack,
        # If a number of documents is given, so many are compared.
        share=share if options.candidates is None else 0.0,
        exact=options.effort == "exact",
    )


# k + _MARGIN documents are scored in single precision, since scores in 8 bits may rank the last of them wrongly.
_MARGIN = 4
# Lists are probed only where
#     eligible documents in lists > (3 + widening) / 2 * candidates,
# and otherwise the binary codes of all eligible documents are compared. `widening` is the factor by which a filter
# raises nprobe: probing as many lists takes about as long as comparing those of widening / 2 * candidates documents.
_SCAN = 3
_MAX_WIDENING = 16
# A query token is compared with the centroids under its max(4, nprobe // 8) best coarse centroids.
_MIN_COARSE = 4
_LISTS_PER_COARSE = 8


class Scope(NamedTuple):
    """The documents that a search may find.

    `lists`: the inverted lists of the snapshot, None if there are none. `allowed`: ``(documents,)`` uint8, 1 for
    eligible documents; empty if all documents of the table are. `eligible`: their ordinals, ascending.
    """

    table: DocumentTable
    lists: InvertedLists | None
    allowed: np.ndarray
    eligible: np.ndarray


class Stages(NamedTuple):
    """The documents that each stage of one search passes on, as ordinals; a stage that is left out passes on all.

    In an index of passages these are passages, and `scored` has the best one of each document.

    `nprobe`: inverted lists probed by each query token at most; None if none, since few documents are eligible.
    `candidates`: documents that enter the binary stage. `reranked`: documents that leave it. `scored`: of these, the
    documents with the best 8-bit scores, by falling `scores` in single precision, then by row id (`numbers`). `rough`:
    the scores of all `reranked`, in single precision or, where they have none, in 8 bits.
    """

    nprobe: int | None
    candidates: np.ndarray
    reranked: np.ndarray
    scored: np.ndarray
    scores: np.ndarray
    numbers: np.ndarray
    rough: np.ndarray


class RotatedQuery(NamedTuple):
    """A query as `Codec.rotate` returns it: ``(tokens, dim)`` rests and ``(tokens,)`` leads, float32."""

    rests: np.ndarray
    leads: np.ndarray


_NONE = np.zeros(0, dtype="int64")


def search_query(
    scope: Scope,
    query: RotatedQuery,
    k: int,
    parameters: SearchParameters,
    joined: np.ndarray = _NONE,
    least: int = 0,
) -> Stages:
    """Run the stages of one query; the first k of the documents scored last are the best.

    `joined`: ordinals of eligible documents that join the last stage; `least`: how many others it scores at least.
    """
    table = scope.table
    used = None
    candidates = scope.eligible
    for lists, nprobe in _probings(scope, parameters):
        found = probe_for_candidates(scope, lists, query.rests, nprobe, k, parameters)
        if found.total >= max(k, parameters.candidates // 2):
            used = nprobe
            candidates = found.documents
            unlisted = scope.eligible[np.searchsorted(scope.eligible, table.listed) :]
            if len(unlisted):
                candidates = np.concatenate([candidates, unlisted])
            break
    scored = Scored(table, query, k)
    if parameters.exact or len(candidates) <= _FEW + _FEW_PER_HIT * k:
        scored.add(candidates)
    else:
        score_promising(scored, candidates, parameters.slack, least)
    if len(joined):
        known = {*scored.documents.tolist()}
        scored.add(np.array([each for each in joined.tolist() if each not in known], dtype="int64"))
    best, scores = scored.best()
    rough = np.where(np.isnan(scored.scores[:, 1]), *scored.scores.T)
    return Stages(used, candidates, scored.documents, best, scores, table.numbers[best], rough)


class Scored:
    """Documents that were scored by their codes for one query, in any number of steps.

    `documents`: their ordinals, ``(n,)``; `scores`: ``(n, 2)`` float32, with the query in 8 bits and in single
    precision, NaN where a document was not among the best in 8 bits when it was added.
    """

    def __init__(self, table: DocumentTable, query: RotatedQuery, k: int) -> None:
        self.table = table
        self.query = query
        self.k = k
        self.documents = np.zeros(0, dtype="int64")
        self.scores = np.zeros((0, 2), dtype="float32")
        self._highest = np.full(k + _MARGIN, -np.inf, dtype="float32")

    def add(self, documents: np.ndarray) -> None:
        """Score more documents; the earlier the best ones come, the fewer others are scored in single precision."""
        self.documents = np.concatenate([self.documents, documents])
        self.scores = np.concatenate([self.scores, self._score(documents, self._highest)])

    def _score(self, documents: np.ndarray, highest: np.ndarray) -> np.ndarray:
        scores = np.empty((len(documents), 2), dtype="float32")
        for some, coded, places in self.table.windows(documents, *self.table.codec.arrays):
            rerank_scores(coded, places, self.table.codec.shape, *self.query, highest, scores[some])
        return scores

    def kth(self) -> float:
        """Return the score in 8 bits of the k-th best document, minus infinity if there are fewer."""
        rows = _rows_of_best(self.table, self.documents, self.scores[:, 0], self.k)
        if rows == 0:
            return -np.inf
        return nth_highest(self.scores[:, 0], rows)

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the best documents and their scores in single precision, best first, then by row id.

        Of the passages of a document, the best one.
        """
        table = self.table
        missing = self._missing()
        if len(missing):
            lowest = np.full(len(missing), -np.inf, dtype="float32")
            self.scores[missing] = self._score(self.documents[missing], lowest)
        precise = self.scores[:, 1]
        best = np.flatnonzero(precise == precise)
        best = best[np.lexsort((table.numbers[self.documents[best]], -precise[best]))]
        if table.owners is not None:
            _, firsts = np.unique(table.owners[self.documents[best]], return_index=True)
            best = best[np.sort(firsts)]
        return self.documents[best], precise[best]

    def _missing(self) -> np.ndarray:
        """Return the passages of the best documents, by scores in 8 bits, that have none in single precision."""
        if self.table.owners is None or not len(self.documents):
            return np.zeros(0, dtype="int64")
        rough, precise = self.scores.T
        rows = _rows_of_best(self.table, self.documents, rough, self.k + _MARGIN) or len(rough)
        return np.flatnonzero((rough >= nth_highest(rough, rows)) & (precise != precise))


def _rows_of_best(table: DocumentTable, documents: np.ndarray, scores: np.ndarray, k: int) -> int:
    """Return how many rows score at least as high as the best one of document number `k`, 0 if there are fewer."""
    if table.owners is None:
        return k if len(scores) >= k else 0
    owners = table.owners[documents]
    order = np.lexsort((-scores, owners))
    best = scores[order[np.flatnonzero(np.diff(owners[order], prepend=-1))]]
    if len(best) < k:
        return 0
    return int(np.count_nonzero(scores >= nth_highest(best, k)))


def _probings(scope: Scope, parameters: SearchParameters) -> Iterator[tuple[InvertedLists, int]]:
    """Yield how many lists to probe, more each time, as long as too few documents are found; none for few documents."""
    listed = int(np.searchsorted(scope.eligible, scope.table.listed))
    widening = min(_MAX_WIDENING, max(1, round(scope.table.listed / max(1, listed))))
    if parameters.exact or scope.lists is None or 2 * listed <= (_SCAN + widening) * parameters.candidates:
        return
    while widening <= _MAX_WIDENING:
        yield scope.lists, parameters.nprobe * widening
        widening *= 4


class Candidates(NamedTuple):
    """Documents in the probed lists.

    `total`: how many were found, at most ``parameters.candidates``. `documents`: ordinals of those with a sum near that
    of the k-th, see `SearchParameters.share`; ascending.
    """

    total: int
    documents: np.ndarray


def probe_for_candidates(
    scope: Scope, lists: InvertedLists, vectors: np.ndarray, nprobe: int, k: int, parameters: SearchParameters
) -> Candidates:
    """Return the documents in the probed lists with the highest imputed scores; only 65,535 query tokens are used."""
    probed = probe_lists(lists.centroids, vectors, nprobe)
    entries = lists.entries
    if lists.is_released:
        numbers, entries = lists.read_entries(probed.lists)
        probed = probed._replace(lists=numbers)
    bits = sum_bits(len(probed.lists))
    documents = len(scope.table.numbers)
    found, sums = select_candidates(probed, entries, bits, scope.allowed, documents, parameters.candidates)
    if len(found) <= k:
        return Candidates(len(found), found)
    return Candidates(len(found), found[sums >= parameters.share * nth_highest(sums, k)])


def probe_lists(centroids: Centroids, vectors: np.ndarray, nprobe: int) -> ProbedLists:
    """Find the inverted lists of the centroids nearest to each of the first 65,535 query tokens."""
    vectors = vectors[:MOST_TOKENS]
    return find_lists(vectors, centroids.levels, _coarse_count(centroids, nprobe), nprobe, sum_bits(len(vectors)))


def _coarse_count(centroids: Centroids, nprobe: int) -> int:
    """Return the number of coarse centroids under which a query token looks for lists."""
    return min(len(centroids.fine_offsets) - 1, max(_MIN_COARSE, nprobe // _LISTS_PER_COARSE))


# The words of 32 dims that are scored first, if there are half as many more and at least _MANY documents: the better
# half of them goes on.
_FIRST_WORDS = 4
_MANY = 300
# At most so many words are scored, so that the sums of the kernel fit 16 bits: 8,192 dims.
_MOST_WORDS = 256
# Of the documents by falling sign scores, the first k + _FIRST and _SPREAD of all others are scored by their codes.
# What these say of the others decides which of them are scored, _ROUNDS times at most.
_FIRST = 6
_SPREAD = 4
_ROUNDS = 3


def score_promising(scored: Scored, candidates: np.ndarray, slack: float, least: int = 0) -> None:
    """Score the documents that may be among the best k, those with the highest sign scores first, `least` at least.

    The scores of some documents, by their sign scores, give a line and the standard deviation from it. A document is
    left out if it lies `slack` standard deviations below the k-th best score at the place of its sign score. That score
    is a true one, unlike the k-th best sign score, which would rise with the number of candidates by chance alone.
    """
    candidates, signs = compare_signs(scored.table, candidates, scored.query.rests)
    first = _rows_of_best(scored.table, candidates, signs, scored.k + _FIRST) or len(signs)
    first = max(first, min(least, len(signs)))
    left = np.ones(len(signs), dtype=bool)
    chosen = np.arange(first)
    if first < len(signs):
        chosen = np.concatenate([chosen, np.linspace(first, len(signs) - 1, _SPREAD).astype("int64")])
        chosen = np.unique(chosen)
    known = np.zeros(0)
    for _ in range(1 + _ROUNDS):
        scored.add(candidates[chosen])
        left[chosen] = False
        known = np.concatenate([known, signs[chosen]])
        lowest = lowest_promising(known, scored.scores[:, 0], scored.kth(), slack)
        chosen = np.flatnonzero(left & (signs >= lowest))
        if not len(chosen):
            break


def compare_signs(table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return documents by falling MaxSim of the query with their binary codes, and this, float32.

    If there are many, these are the half with the higher scores by the first numbers.
    """
    words = min(table.codec.shape.sign_words, _MOST_WORDS)
    if 2 * words >= 3 * _FIRST_WORDS and len(chosen) >= _MANY:
        chosen = chosen[highest_places(_sign_scores(table, chosen, vectors, _FIRST_WORDS), len(chosen) // 2)]
    signs = _sign_scores(table, chosen, vectors, words)
    order = np.argsort(-signs, kind="stable")
    return chosen[order], signs[order]


def _sign_scores(table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray, words: int) -> np.ndarray:
    """Return the MaxSim of the query with some words of the documents' binary codes, float32."""
    scores = np.empty(len(chosen), dtype="float32")
    for some, documents, places in table.windows(chosen, *table.codec.sign_arrays):
        sign_scores(documents, places, table.codec.shape, vectors, words, scores[some])
    return scores


def lowest_promising(signs: np.ndarray, scores: np.ndarray, kth: float, slack: float) -> float:
    """Return the lowest sign score at which a document may have the score `kth`, by those of some documents.

    By least squares: ``intercept + slope * sign score + slack * deviation >= kth``. Minus infinity, for all, if the
    sign scores say nothing.
    """
    usable = np.isfinite(signs) & np.isfinite(scores)
    x = signs[usable].astype("float64")
    y = scores[usable].astype("float64")
    if len(x) < 3 or not np.isfinite(kth):
        return -np.inf
    x_mean = x.mean()
    y_mean = y.mean()
    x = x - x_mean
    y = y - y_mean
    spread = x @ x
    if not 0 < spread < np.inf or not 0 < x @ y < np.inf:
        return -np.inf
    slope = x @ y / spread
    deviation = math.sqrt(((y - slope * x) ** 2).sum() / (len(x) - 2))
    return float(x_mean + (kth - slack * deviation - y_mean) / slope)


def highest_places(scores: np.ndarray, most: int) -> np.ndarray:
    """Return the positions of the highest scores, ascending; of scores equal to the lowest of them, the first."""
    edge = nth_highest(scores, most)
    chosen = scores > edge
    chosen[np.flatnonzero(scores == edge)[: most - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def nth_highest(scores: np.ndarray, n: int) -> float:
    """Return the n-th highest number, n from 1 on."""
    return float(np.partition(scores, len(scores) - n)[len(scores) - n])


def find_loss(
    scope: Scope, query: RotatedQuery, k: int, parameters: SearchParameters, ordinal: int
) -> StageLoss | None:
    """Return the stage in which a search loses a document; None if the search scores it in single precision."""
    stages = search_query(scope, query, k, parameters)
    if ordinal in stages.scored:
        return None
    documents = len(scope.eligible)
    if ordinal not in stages.candidates and stages.nprobe is not None and scope.lists is not None:
        probed = probe_lists(scope.lists.centroids, query.rests, stages.nprobe)
        return _loss_in_lists(scope, scope.lists, probed, stages.candidates, parameters.nprobe, ordinal)
    if ordinal not in stages.reranked:
        candidates = len(stages.candidates)
        kept = len(stages.reranked)
        text = f"its binary codes score too low: {kept:,} of {candidates:,} documents leave the binary stage"
        cause = Cause("binary_stage", text, {"candidates": candidates, "reranked": kept})
        return StageLoss(cause, None)
    reranked = len(stages.reranked)
    kept = len(stages.scored)
    text = f"with the query in 8 bits it is not among the best of {reranked:,} reranked documents; {kept:,} are"
    return StageLoss(Cause("query_rounding", text, {"reranked": reranked, "scored": kept}), "k", k, documents)


def _loss_in_lists(
    scope: Scope, lists: InvertedLists, probed: ProbedLists, candidates: np.ndarray, nprobe: int, ordinal: int
) -> StageLoss:
    """Return the loss of a document that is none of the candidates: no probed list holds it, or too many others."""
    sums = imputed_sums(probed, lists.entries, len(scope.table.numbers))
    per_token = probed.lists.shape[1]
    count = len(lists.offsets) - 1
    if not sums[ordinal]:
        holding = np.searchsorted(lists.offsets, np.flatnonzero(lists.documents == ordinal), side="right") - 1
        text = (
            f"no query token probes an inverted list that holds it: {per_token} of {count:,} lists are probed per "
            f"token, the document is in {len(holding)} others"
        )
        cause = Cause("not_probed", text, {"nprobe": per_token, "lists": count, "document_lists": holding.tolist()})
        return StageLoss(cause, "nprobe", nprobe, count)
    allowed = scope.eligible[sums[scope.eligible] > 0]
    better = int(np.count_nonzero(sums[allowed] > sums[ordinal]))
    kept = int(np.searchsorted(candidates, scope.table.listed))
    text = (
        f"by imputed scores it is number {better + 1:,} of the {len(allowed):,} documents in the probed lists; the "
        f"best {kept:,} are candidates"
    )
    details = {"imputed_rank": better + 1, "in_probed_lists": len(allowed), "candidates": kept}
    return StageLoss(Cause("not_candidate", text, details), "candidates", kept, len(scope.eligible))
