"""Why a search that uses keywords does not find a document: its words, and its ranks by keywords and by vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from latelier.embeddings import TokenEmbeddings
from latelier.indexes import Cause, Change, Hit, Id, Index, WhyNotReport
from latelier.indexes.catalog.keyword_search import query_words
from latelier.indexes.catalog.values import as_id
from latelier.indexes.filter_misses import excluding_conditions, filter_arguments, filter_cause, split_filter
from latelier.indexes.search_mode import SearchMode
from latelier.indexes.why_not import not_stored_cause, smallest_value, without_filter
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.utils.checks import short

__all__ = ["explain_mode_miss"]

# Words of the query that a cause lists.
_SHOWN_WORDS = 8
_MODES = ("vectors", "keywords", "hybrid", "rerank")


def explain_mode_miss(
    index: Index, query: str, vectors: TokenEmbeddings, id: Id, arguments: Mapping[str, Any]
) -> WhyNotReport:
    """Return why a search with ``mode="keywords"``, ``"hybrid"`` or ``"rerank"`` does not find a document.

    Parameters
    ----------
    index
        The index; all reads should see one commit, see `Index.snapshot`.
    query, vectors
        The text of one query, and its vectors.
    id
        The document.
    arguments
        All arguments of the search but the query; `k` is a number of documents.

    Returns
    -------
    WhyNotReport
        A cause for each side that ranks the document below `k`, or both if none does. Ranks count documents. The scores
        of the report are those of the mode.
    """
    return _ModeMiss(index, query, vectors, as_id(id), arguments).report()


class _Side(NamedTuple):
    """A document in a ranking by keywords or by vectors: its rank, 0 if it is missing, and its score."""

    kind: str
    rank: int
    score: float
    documents: int
    passage_rank: int


class _ModeMiss:
    def __init__(
        self, index: Index, query: str, vectors: TokenEmbeddings, id: Id, arguments: Mapping[str, Any]
    ) -> None:
        self.index, self.query, self.vectors, self.id = index, query, vectors, id
        self.arguments, self.stored = dict(arguments), StoredDocuments(index)
        self.k, self.mode = arguments["k"], arguments["mode"]
        self.searched = self.k  # hits of the index that the last search asked for: passages, if there are any

    def report(self) -> WhyNotReport:
        hits = self._search()
        depth = self._depth()
        report = WhyNotReport(self.id, self.k, query=self.query, mode=self.mode)
        if hits:
            report = replace(report, last_id=hits[-1].id, last_score=hits[-1].score)
        ids = [hit.id for hit in hits]
        if self.id in ids:
            rank = ids.index(self.id)
            return replace(report, rank=rank + 1, score=hits[rank].score)
        if self.id not in self.stored:
            return replace(report, causes=(not_stored_cause(self.id, self.stored.ids()),))
        return self._filtered(report) or replace(report, causes=self._causes(depth), changes=self._changes(depth))

    def _search(self, **changes: Any) -> list[Hit]:
        """Return the hits of the best documents in a search with changed arguments, by the ids of users."""
        arguments = {**self.arguments, **changes}
        k = arguments.pop("k")

        def search(rows: Any, most: int) -> list[list[Hit]]:
            self.searched = most
            return self.index.search(self.vectors, most, texts=[self.query], **arguments)

        return [Hit(self.stored.document(hit.id), hit.score) for hit in self.stored.search(search, 1, k)[0]]

    def _finds(self, **changes: Any) -> bool:
        return any(hit.id == self.id for hit in self._search(**changes))

    def _depth(self) -> int:
        """Return the number of documents, or of passages, that each side contributed to the last search."""
        given = {name: self.arguments[name] for name in ("mode", "fusion", "weights", "depth")}
        return SearchMode.checked(self.searched, texts=self.query, **given).depth

    def _filtered(self, report: WhyNotReport) -> WhyNotReport | None:
        """Return the report of a document that the filter excludes; None if it does not."""
        conditions = split_filter(self.arguments["filter"], self.arguments["parameters"])
        part, timeout = self.stored.parts(self.id)[0], self.arguments["filter_timeout"]
        excluding = excluding_conditions(self.index, self.vectors, part, conditions, timeout)
        if not excluding:
            return None
        cause = filter_cause(self.index, part, excluding, len(conditions))
        relaxed = filter_arguments([each for each in conditions if each not in excluding])
        inner = explain_mode_miss(self.index, self.query, self.vectors, self.id, {**self.arguments, **relaxed})
        return without_filter(inner, report, cause, relaxed)

    def _causes(self, depth: int) -> tuple[Cause, ...]:
        keywords = self._side("keyword_rank", "keywords", len(self.index))
        if self.mode == "keywords":
            return (self._cause(keywords),)
        if self.mode == "rerank":
            if not keywords.rank or keywords.passage_rank > depth:
                return (self._cause(keywords, f"; the best {depth:,} are ordered by vectors"),)
            among = f" among the best {depth:,} by keywords"
            return (self._cause(self._side("vector_rank", "rerank", depth), among),)
        by_vectors, by_keywords = self.arguments["weights"]
        sides = [keywords] * (by_keywords > 0)
        sides += [self._side("vector_rank", "vectors", len(self.index))] * (by_vectors > 0)
        low = [side for side in sides if not side.rank or side.rank > self.k]
        low.sort(key=lambda side: -side.rank if side.rank else -float("inf"))
        return tuple(self._cause(side) for side in low or sides)

    def _side(self, kind: str, mode: str, most: int) -> _Side:
        """Return the place of the document in a ranking of all documents, or of those that are reranked."""
        change: dict[str, Any] = {"mode": mode, **({"depth": most} if mode == "rerank" else {})}
        if self.index.nbits is not None:
            change["effort"] = "exact"
        [hits] = self.index.search(
            self.vectors, max(1, most), texts=[self.query], **{**_without_k(self.arguments), **change}
        )
        found = [self.stored.document(hit.id) for hit in hits]
        documents = list(dict.fromkeys(found))
        if self.id not in documents:
            return _Side(kind, 0, 0.0, len(documents), 0)
        first = found.index(self.id)
        return _Side(kind, documents.index(self.id) + 1, hits[first].score, len(documents), first + 1)

    def _cause(self, side: _Side, more: str = "") -> Cause:
        if not side.rank:
            return self._no_word()
        details = {"rank": side.rank, "documents": side.documents, "score": side.score}
        place = f"rank {side.rank:,} of {side.documents:,} documents"
        if side.kind == "vector_rank":
            return Cause("vector_rank", f"by vectors it has {place}{more}, and scores {side.score:.3f}", details)
        place += " with a word of the query"
        return Cause("keyword_rank", f"by keywords it has {place}, and scores {side.score:.3f}{more}", details)

    def _no_word(self) -> Cause:
        words = query_words(self.query)
        if not words:
            text = "the query has no word"
        elif all(record.text is None for record in self.index.get(self.stored.parts(self.id))):
            text = "it was stored without its text"
        else:
            listed = ", ".join(map(short, words[:_SHOWN_WORDS])) + (", ..." if len(words) > _SHOWN_WORDS else "")
            text = f"its text has no word of the query: {listed}"
        return Cause("no_query_word", text, {"words": words})

    def _changes(self, depth: int) -> tuple[Change, ...]:
        """Return the smallest `k` and `depth` that find the document, and the other modes that do.

        If there are none, return the smallest `k` of a search by vectors.
        """
        found: list[dict[str, Any]] = []
        k = smallest_value(lambda value: self._finds(k=value), self.k, len(self.stored))
        found += [] if k is None else [{"k": k}]
        if self.mode != "keywords":
            deeper = smallest_value(lambda value: self._finds(depth=value), depth, len(self.index))
            found += [] if deeper is None else [{"depth": deeper}]
        found += [{"mode": mode} for mode in _MODES if mode != self.mode and self._finds(mode=mode)]
        if not found:
            k = smallest_value(lambda value: self._finds(mode="vectors", k=value), self.k, len(self.stored))
            found += [] if k is None else [{"mode": "vectors", "k": k}]
        return tuple(Change(each) for each in found)


def _without_k(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "k"}
