"""Where a search of the IVF index loses a document: the stages of that search, and the document's place in them."""

from __future__ import annotations

import numpy as np

from latelier.indexes.ivf.lists import InvertedLists
from latelier.indexes.ivf.parameters import SearchParameters
from latelier.indexes.ivf.search import ProbedLists, Scope, probe_lists, run_stages
from latelier.indexes.results import Cause, StageLoss

__all__ = ["find_loss", "imputed_sums"]


def find_loss(
    scope: Scope, vectors: np.ndarray, k: int, parameters: SearchParameters, ordinal: int
) -> StageLoss | None:
    """Return the stage in which a search loses a document; None if the search scores it in single precision.

    `vectors`: ``(tokens, dim)`` float32: the query; `ordinal`: the document, one of ``scope.eligible``.
    """
    stages = run_stages(scope, vectors, k, parameters)
    if ordinal in stages.scored:
        return None
    documents = len(scope.eligible)
    if ordinal not in stages.candidates and stages.nprobe is not None and scope.lists is not None:
        probed = probe_lists(scope.lists.centroids, vectors, stages.nprobe)
        return _loss_in_lists(scope, scope.lists, probed, stages.candidates, parameters.nprobe, ordinal)
    if ordinal not in stages.reranked:
        candidates, kept = len(stages.candidates), len(stages.reranked)
        text = f"its sign codes score too low: {kept:,} of {candidates:,} documents leave the sign stage"
        cause = Cause("sign_stage", text, {"candidates": candidates, "reranked": kept})
        return StageLoss(cause, "rerank", max(k, kept), documents)
    reranked, kept = len(stages.reranked), len(stages.scored)
    text = f"with the query in 8 bits it is not among the best of {reranked:,} reranked documents; {kept:,} are"
    return StageLoss(Cause("query_rounding", text, {"reranked": reranked, "scored": kept}), "k", k, documents)


def _loss_in_lists(
    scope: Scope,
    lists: InvertedLists,
    probed: ProbedLists,
    candidates: np.ndarray,
    nprobe: int,
    ordinal: int,
) -> StageLoss:
    """Return the loss of a document that is none of the candidates: no probed list holds it, or too many others."""
    sums = imputed_sums(lists, probed, len(scope.table.numbers))
    per_token, count = probed.lists.shape[1], len(lists.offsets) - 1
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


def imputed_sums(lists: InvertedLists, probed: ProbedLists, documents: int) -> np.ndarray:
    """Return the sum over query tokens of the excess of the first probed list that holds each document.

    Candidates are the documents with the highest sums, see `latelier.indexes.ivf.kernels.candidates`. Returns:
    ``(documents,)`` int64, 0 for documents in no probed list.
    """
    sums = np.zeros(documents, dtype="int64")
    for row, excess in zip(probed.lists, probed.excess, strict=True):
        best = np.zeros(documents, dtype="int64")
        for i, added in zip(row.tolist(), excess.tolist(), strict=True):
            if i < 0:  # ends the row
                break
            held = lists.documents[lists.offsets[i] : lists.offsets[i + 1]]
            best[held] = np.maximum(best[held], added)
        sums += best
    return sums
