"""Efforts and search parameters."""

from __future__ import annotations

from dataclasses import dataclass

from latelier.indexes.base import SearchOptions, effort_factor

# nprobe and candidates of effort 1.0, for k <= 25, dim >= 128 and at least 2**20 tokens; benchmarks/index.py measures
# the recall they give.
_NPROBE, _CANDIDATES, _CANDIDATES_PER_HIT = 40, 500, 20
# The sign stage is left out for at most _FEW + _FEW_PER_HIT * k documents: reranking them at once is about as fast, and
# a search of a small collection misses none.
_FEW, _FEW_PER_HIT = 80, 4
# Sign codes of fewer than 128 bits are less precise, so candidates are multiplied by 128 / dim, by 8 at most.
_SIGN_BITS, _MAX_DIM_FACTOR = 128, 8.0
# `SearchParameters.slack` of effort 1.0, and `share`, which is `_SHARE ** effort` for k <= 25. Beyond, the k-th imputed
# score is less above those of all documents, and the exponent grows with k.
_SLACK, _SHARE = 2.0, 0.5
# Collections above 10 million tokens: with s = tokens / 10 million, candidates grow by s ** 0.3, which doubles them at
# 100 million. Inverted lists get smaller as well then, so nprobe grows more slowly (exponent 0.18).
_LARGE, _CANDIDATES_EXPONENT, _NPROBE_EXPONENT = 10_000_000, 0.3, 0.18
# Below 2**20 tokens, nprobe is multiplied by 2**20 / tokens, by 2 at most: short queries need it to find what comparing
# all sign codes finds. For 4,045 package descriptions of 400,000 tokens and queries of 11 tokens, recall@10 is 0.994 by
# all sign codes, 0.994 with 80 lists per token and 0.987 with 40.
_SMALL, _MAX_SMALL_FACTOR = 1 << 20, 2.0
# list_count = 14.4 * sqrt(tokens) * size_factor ** 0.3: in large indexes, lists would get too long without the factor.
_LISTS_PER_ROOT, _LISTS_EXPONENT = 14.4, 0.3
# Inverted lists come in groups of so many, which kernels multiply together.
GROUP = 16


@dataclass(frozen=True)
class SearchParameters:
    """Numbers of inverted lists and documents in each stage of a search.

    `nprobe`: number of inverted lists probed per query token. `candidates`: maximum number of documents from the probed
    lists that enter the sign stage, which scores them by their sign codes. `rerank`: number of documents that leave the
    sign stage and are scored by their codes; ``None`` for all documents within `slack` of the k-th best. `slack`:
    tolerance of the sign stage, in standard deviations of its scores; used if `rerank` is None. `share`: a document
    enters the sign stage only if ``excess >= share * (k-th highest excess)``, where its excess is its imputed score
    minus that of a document in no probed list. `exact`: score all documents by their codes, and ignore the other
    parameters.
    """

    nprobe: int
    candidates: int
    rerank: int | None
    slack: float = _SLACK
    share: float = 0.0
    exact: bool = False


def choose_search_parameters(k: int, dim: int, options: SearchOptions, *, tokens: int = 0) -> SearchParameters:
    """Return the search parameters of an effort, with ``k <= rerank <= candidates``; those given replace its own.

    `dim` is also the number of bits of a sign code. `tokens`: of the whole index: above ten million, the defaults grow
    with it; below one million, `nprobe` grows as it falls.
    """
    factor, size = effort_factor(options.effort), size_factor(tokens)
    small = min(_MAX_SMALL_FACTOR, max(1.0, _SMALL / max(1, tokens)))
    nprobe = max(1, round(_NPROBE * factor * small * size**_NPROBE_EXPONENT))
    factor *= size**_CANDIDATES_EXPONENT
    candidates_factor = factor * max(1.0, min(_MAX_DIM_FACTOR, _SIGN_BITS / max(1, dim)))
    candidates = round(candidates_factor * max(_CANDIDATES, _CANDIDATES_PER_HIT * k))
    share = _SHARE ** (factor * max(1.0, _CANDIDATES_PER_HIT * k / _CANDIDATES))
    rerank = None if options.rerank is None else max(k, options.rerank)
    return SearchParameters(
        nprobe=options.nprobe or nprobe,
        candidates=max(rerank or k, options.candidates or candidates),
        rerank=rerank,
        slack=_SLACK * factor**0.5,
        # If a number of documents is given, so many are scored.
        share=share if options.candidates is None and options.rerank is None else 0.0,
        exact=options.effort == "exact",
    )


def most_without_signs(k: int) -> int:
    """Return the number of documents up to which the sign stage is left out: all are reranked at once."""
    return _FEW + _FEW_PER_HIT * k


def size_factor(tokens: int) -> float:
    """Return ``max(1, tokens / 10 million)``."""
    return max(1.0, tokens / _LARGE)


def list_count(tokens: int) -> int:
    """Return the number of inverted lists for a number of tokens, a multiple of 16."""
    return GROUP * max(1, round(_LISTS_PER_ROOT / GROUP * tokens**0.5 * size_factor(tokens) ** _LISTS_EXPONENT))


def coarse_count(lists: int) -> int:
    """Return the number of coarse centroids for a number of inverted lists, a multiple of 16."""
    return GROUP * max(1, round(lists**0.5 / GROUP))
