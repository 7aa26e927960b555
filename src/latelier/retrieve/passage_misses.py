"""Why a search does not find a document that is stored as passages: the report of its best passage, by documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes import Cause, Change, Hit, Id, Index, WhyNotReport
from latelier.indexes.catalog.values import as_id
from latelier.indexes.why_not import not_stored_cause
from latelier.retrieve.explaining import best_part
from latelier.retrieve.stored_documents import StoredDocuments

__all__ = ["explain_passage_miss"]


def explain_passage_miss(index: Index, query: TokenEmbeddings, id: Id, arguments: Mapping[str, Any]) -> WhyNotReport:
    """Return why a search does not find a document of an index of passages.

    Parameters
    ----------
    index
        An index of passages.
    query
        One query.
    id
        The document.
    arguments
        All arguments of the search but the query; `k` is a number of documents.

    Returns
    -------
    WhyNotReport
        Ranks and `k` count documents; the score and the stage are those of its best passage.
    """
    stored, id, k = StoredDocuments(index), as_id(id), arguments["k"]
    hits, passages = _search(stored, query, arguments)
    ids = [stored.document(hit.id) for hit in hits]
    report = WhyNotReport(id, k, last_id=ids[-1] if hits else None, last_score=hits[-1].score if hits else None)
    if id in ids:
        return replace(report, rank=ids.index(id) + 1, score=hits[ids.index(id)].score)
    if id not in stored:
        return replace(report, causes=(not_stored_cause(id, stored.ids()),))
    inner = index.why_not(query, best_part(index, np.asarray(query[0]), id), **{**arguments, "k": passages})
    text = f"at least {k:,} document{'s have' if k > 1 else ' has'} a passage that scores higher"
    higher = Cause("scored_lower", text, {"least_higher": k})
    by_score = [cause.kind in ("scored_lower", "tied") for cause in inner.causes]
    causes = [higher if is_score else cause for is_score, cause in zip(by_score, inner.causes, strict=True)] or [higher]
    changes = [_by_documents(stored, query, id, arguments, change) for change in inner.changes or (Change({}),)]
    return replace(
        report,
        score=inner.score,
        causes=tuple(causes),
        changes=tuple(change for change in changes if change is not None),
        differences=inner.differences,
        unexamined=("truncation and quantisation: the document is stored as passages",),
    )


def _search(stored: StoredDocuments, query: TokenEmbeddings, arguments: Mapping[str, Any]) -> tuple[list[Hit], int]:
    """Return the hits of the best documents, and the number of passages that were searched for."""
    limits = []

    def search(rows: Any, most: int) -> list[list[Hit]]:
        limits.append(most)
        return stored.index.search(query, **{**arguments, "k": most})

    return stored.search(search, 1, arguments["k"])[0], limits[-1]


def _by_documents(
    stored: StoredDocuments, query: TokenEmbeddings, id: Id, arguments: Mapping[str, Any], change: Change
) -> Change | None:
    """Return a change that finds a passage with the number of documents that finds its document; None if none does."""
    changed = {name: value for name, value in change.arguments.items() if name != "k"}
    most = len(stored)
    k = arguments["k"]
    while k <= most:
        found = [stored.document(hit.id) for hit in _search(stored, query, {**arguments, **changed, "k": k})[0]]
        if id in found:
            rank = found.index(id) + 1
            if rank <= arguments["k"]:
                return Change(changed, change.target)
            ids = [stored.document(hit.id) for hit in _search(stored, query, {**arguments, **changed, "k": rank})[0]]
            return Change({**changed, "k": rank if id in ids else k}, change.target)
        if k == most:
            return None
        k = min(2 * k, most)
    return None
