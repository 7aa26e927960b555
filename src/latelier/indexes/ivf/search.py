"""The stages of one query of IVF, and in which of them a document is lost.

1. Probing: each query token finds its best inverted lists, by two levels of centroids.
2. Candidates: documents in these lists with the highest sums of imputed scores, if these are near that of the k-th.
3. Binary stage: MaxSim of the query with the candidates' binary codes (1 bit per number).
4. Reranking: MaxSim of the codes with the query in 8 bits, and for the few best in single precision.

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
from latelier.indexes.ivf.layout import PLAIN_BITS, size_factor
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

# At 2 and 1 bits, what a wider search adds is less than what the codes lose: 0.004 of recall@10 at most.
_FEW_BITS = 0.8


@dataclass(frozen=True)
class SearchParameters:
    """Numbers of inverted lists and documents in each stage of a search.

    `candidates` documents of the probed lists at most enter the binary stage, if ``excess >= share * (k-th highest
    excess)``; `rerank` leave it, or all within `slack` standard deviations of the k-th best. `exact`: score all
    documents by their codes.
    """

    nprobe: int
    candidates: int
    rerank: int | None
    slack: float = _SLACK
    share: float = 0.0
    exact: bool = False


def choose_search_parameters(
    k: int, dim: int, options: SearchOptions, *, tokens: int = 0, bits: int = 8
) -> SearchParameters:
    """Return the search parameters of an effort, with ``k <= rerank <= candidates``; those given replace its own.

    `dim` is also the number of bits of a binary code. `tokens`: of the whole index: above ten million, the defaults
    grow with it; below one million, `nprobe` grows as it falls. `bits`: per number of the codes.
    """
    factor = effort_factor(options.effort)
    size = size_factor(tokens)
    factor *= 1 if bits in PLAIN_BITS else _FEW_BITS
    small = min(_MAX_SMALL_FACTOR, max(1.0, _SMALL / max(1, tokens)))
    nprobe = max(1, round(_NPROBE * factor * small * size**_NPROBE_EXPONENT))
    factor *= size**_CANDIDATES_EXPONENT
    candidates_factor = factor * max(1.0, min(_MAX_DIM_FACTOR, _SIGN_BITS / max(1, dim)))
    candidates = round(candidates_factor * max(_CANDIDATES, _CANDIDATES_PER_HIT * k))
    share = _SHARE ** (factor * max(1.0, _CANDIDATES_PER_HIT * k / _CANDIDATES))
    if options.rerank is None:
        rerank = None
    else:
        rerank = max(k, options.rerank)
    return SearchParameters(
        nprobe=options.nprobe or nprobe,
        candidates=max(rerank or k, options.candidates or candidates),
        rerank=rerank,
        slack=_SLACK * factor**0.5,
        # If a number of documents is given, so many are scored.
        share=share if options.candidates is None and options.rerank is None else 0.0,
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
    documents with the best 8-bit scores, by falling `scores` in single precision, then by row id (`numbers`).
    """

    nprobe: int | None
    candidates: np.ndarray
    reranked: np.ndarray
    scored: np.ndarray
    scores: np.ndarray
    numbers: np.ndarray


class RotatedQuery(NamedTuple):
    """A query as `Codec.rotate` returns it: ``(tokens, dim)`` rests and ``(tokens,)`` leads, float32."""

    rests: np.ndarray
    leads: np.ndarray


def search_query(scope: Scope, query: RotatedQuery, k: int, parameters: SearchParameters) -> Stages:
    """Run the stages of one query; the first k of the documents scored last are the best."""
    vectors = query.rests
    table = scope.table
    used = None
    candidates = scope.eligible
    for lists, nprobe in _probings(scope, parameters):
        found = probe_for_candidates(scope, lists, vectors, nprobe, k, parameters)
        if found.total >= (parameters.rerank or max(k, parameters.candidates // 2)):
            used = nprobe
            candidates = found.documents
            unlisted = scope.eligible[np.searchsorted(scope.eligible, table.listed) :]
            if len(unlisted):
                candidates = np.concatenate([candidates, unlisted])
            break
    reranked = candidates
    if len(candidates) > (parameters.rerank or _FEW + _FEW_PER_HIT * k) and not parameters.exact:
        reranked = keep_by_signs(table, candidates, vectors, k, parameters)
    scores = np.empty((len(reranked), 2), dtype="float32")
    highest = np.full(k + _MARGIN, -np.inf, dtype="float32")
    for some, documents, places in table.windows(reranked, *table.codec.arrays):
        rerank_scores(documents, places, table.codec.shape, vectors, query.leads, highest, scores[some])
    missing = _best_of_documents(table, reranked, scores, k + _MARGIN)
    if len(missing):
        highest = np.full(len(missing), -np.inf, dtype="float32")
        more = np.empty((len(missing), 2), dtype="float32")
        for some, documents, places in table.windows(reranked[missing], *table.codec.arrays):
            rerank_scores(documents, places, table.codec.shape, vectors, query.leads, highest, more[some])
        scores[missing] = more
    best = np.flatnonzero(scores[:, 1] == scores[:, 1])  # NaN where a document was not among the best in 8 bits
    best = best[np.lexsort((table.numbers[reranked[best]], -scores[best, 1]))]
    if table.owners is not None:
        _, firsts = np.unique(table.owners[reranked[best]], return_index=True)
        best = best[np.sort(firsts)]
    scored = reranked[best]
    return Stages(used, candidates, reranked, scored, scores[best, 1], table.numbers[scored])


def _best_of_documents(table: DocumentTable, reranked: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    """Return the passages of the best `k` documents, by scores in 8 bits, that have none in single precision yet."""
    if table.owners is None:
        return np.zeros(0, dtype="int64")
    rows = _rows_of_best(table.owners[reranked], scores[:, 0], k)
    least = np.partition(scores[:, 0], -rows)[-rows] if rows else 0.0
    return np.flatnonzero((scores[:, 0] >= least) & (scores[:, 1] != scores[:, 1]))


def _rows_of_best(owners: np.ndarray, scores: np.ndarray, k: int) -> int:
    """Return how many passages score at least as high as the best one of the document that is number `k`."""
    order = np.lexsort((-scores, owners))
    firsts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    best = scores[order[firsts]]
    if len(best) <= k:
        return len(scores)
    return int(np.count_nonzero(scores >= np.partition(best, -k)[-k]))


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


# The words of 32 dims that are scored first, if there are half as many more and at least _MANY documents.
_FIRST_WORDS = 4
_MANY = 300
# At most so many words are scored, so that the sums of the kernel fit 16 bits: 8,192 dims.
_MOST_WORDS = 256
# Standard deviation of the product of a unit vector with the signs of another, given their cosine. Each number of the
# other explains a part of its sign: for independent normal numbers it is sqrt(1 - 2 / pi) = 0.6, and somewhat more for
# real vectors. If only some dims are scored, the cosine of all says less about them: that of independent signs is 1.
_DEVIATION = 0.7
_PART_DEVIATION = 1.0
# Above _MANY_TOKENS tokens, the variance is estimated from _SAMPLED of them, so that its time grows with the tokens and
# not with their square. Multiples of the golden ratio, modulo 1, are spread evenly, and no period of the tokens
# coincides with theirs.
_MANY_TOKENS = 1024
_SAMPLED = 512
_GOLDEN = (5**0.5 - 1) / 2


def keep_by_signs(
    table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray, k: int, parameters: SearchParameters
) -> np.ndarray:
    """Return the documents that may be among the best, those with the highest sign scores first.

    With `parameters.rerank`, so many documents are kept; otherwise those within `slack` standard deviations.
    """
    words = min(table.codec.shape.sign_words, _MOST_WORDS)

    def count(scores: np.ndarray) -> int:
        if parameters.rerank is not None or table.owners is None:
            return parameters.rerank or k
        return _rows_of_best(table.owners[chosen], scores, k)

    if 2 * words >= 3 * _FIRST_WORDS and len(chosen) >= _MANY:
        scores = _sign_scores(table, chosen, vectors, _FIRST_WORDS)
        chosen = keep_near_best(chosen, scores, count(scores), tolerance(vectors, _FIRST_WORDS, parameters))
    scores = _sign_scores(table, chosen, vectors, words)
    everything = np.arange(len(chosen))
    if parameters.rerank is None:
        kept = keep_near_best(everything, scores, count(scores), tolerance(vectors, words, parameters))
    elif len(chosen) <= parameters.rerank:
        kept = everything
    else:
        kept = highest_places(scores, parameters.rerank)
    return chosen[kept[np.argsort(-scores[kept], kind="stable")]]


def _sign_scores(table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray, words: int) -> np.ndarray:
    """Return the MaxSim of the query with some words of the documents' binary codes, float32."""
    scores = np.empty(len(chosen), dtype="float32")
    for some, documents, places in table.windows(chosen, *table.codec.sign_arrays):
        sign_scores(documents, places, table.codec.shape, vectors, words, scores[some])
    return scores


def keep_near_best(chosen: np.ndarray, scores: np.ndarray, k: int, tolerance: float) -> np.ndarray:
    """Return the documents with ``score >= k-th best score - tolerance``, in the given order; no score is NaN."""
    return chosen[scores >= nth_highest(scores, min(k, len(chosen))) - tolerance]


def highest_places(scores: np.ndarray, most: int) -> np.ndarray:
    """Return the positions of the highest scores, ascending; of scores equal to the lowest of them, the first."""
    edge = nth_highest(scores, most)
    chosen = scores > edge
    chosen[np.flatnonzero(scores == edge)[: most - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def nth_highest(scores: np.ndarray, n: int) -> float:
    """Return the n-th highest number, n from 1 on."""
    return float(np.partition(scores, len(scores) - n)[len(scores) - n])


def tolerance(vectors: np.ndarray, words: int, parameters: SearchParameters) -> float:
    """Return the largest distance below the k-th best sign score at which a document is still kept."""
    tokens, dim = vectors.shape
    scored = min(dim, 32 * words)
    if scored == dim:
        deviation = _DEVIATION
    else:
        deviation = _PART_DEVIATION
    return parameters.slack * deviation * math.sqrt(product_variance(vectors, scored, variance_rows(tokens)))


def variance_rows(tokens: int) -> np.ndarray:
    """Return the tokens that are compared with all others: all of them, or 512 if there are more than 1,024."""
    if tokens <= _MANY_TOKENS:
        return np.arange(tokens)
    return (np.arange(_SAMPLED) * _GOLDEN % 1 * tokens).astype("int64")


def product_variance(vectors: np.ndarray, dims: int, rows: np.ndarray) -> float:
    """Return the sum over pairs of query tokens of ``norm_i * norm_j * max(0, cosine_ij) ** 8``, by the first dims.

    `vectors`: ``(tokens, dim)`` float32. `rows`: from `variance_rows`: the tokens to compare with all; with a part of
    them, the result is an estimate.
    """
    own = vectors[:, :dims].astype("float64")
    norms = np.sqrt(np.einsum("td,td->t", own, own))
    directions = (own / np.maximum(norms, 1e-300)[:, None]).astype("float32")
    powers = np.maximum(directions[rows] @ directions.T, 0)
    for _ in range(3):
        powers *= powers
    return float(norms[rows] @ (powers @ norms)) * len(vectors) / max(1, len(rows))


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
        return StageLoss(cause, "rerank", max(k, kept), documents)
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
