"""Modes, passages, truncation, quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import IVF, Cause, Change, Flat, Hit, Id, Index, WhyNotReport
from latelier.indexes.base import SearchKeywords, SearchOptions, check_texts
from latelier.indexes.exact import exact_scores
from latelier.indexes.ivf.layout import BITS
from latelier.indexes.store.keywords import query_words
from latelier.indexes.values import as_id
from latelier.indexes.why_not import (
    excluding_conditions,
    filter_arguments,
    filter_cause,
    not_stored_cause,
    smallest_value,
    split_filter,
    without_filter,
)
from latelier.retrieve.explanation import best_part
from latelier.retrieve.model import QueryModel, checked_queries
from latelier.retrieve.passages import StoredDocuments
from latelier.utils.checks import check_count, describe, short

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Passage",
    "explain_miss",
    "explain_mode_miss",
    "explain_passage_miss",
    "find_quantisation_loss",
    "left_out_passages",
    "rounds_vectors",
    "scores_when_stored",
    "truncation_cause",
    "truncation_changes",
]

# Words of the query that a cause lists.
_SHOWN_WORDS = 8
_MODES = ("vectors", "keywords", "hybrid", "rerank")


def explain_mode_miss(
    index: Index, query: str, vectors: TokenEmbeddings, id: Id, arguments: Mapping[str, Any]
) -> WhyNotReport:
    """Return why a search with ``mode="keywords"``, ``"hybrid"`` or ``"rerank"`` does not find a document.

    `index`: the index; all reads should see one commit, see `Index.snapshot`. `arguments`: all arguments of the search
    but the query; `k` is a number of documents. Returns: a cause for each side that ranks the document below `k`, or
    both if none does. Ranks count documents. The scores of the report are those of the mode.
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
        return SearchOptions(depth=self.arguments["depth"]).depth_for(self.searched)

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


def explain_passage_miss(index: Index, query: TokenEmbeddings, id: Id, arguments: Mapping[str, Any]) -> WhyNotReport:
    """Return why a search does not find a document of an index of passages.

    `arguments`: all arguments of the search but the query; `k` is a number of documents. Returns: ranks and `k` count
    documents; the score and the stage are those of its best passage.
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


# Documents that are encoded again, a few seconds on a CPU: those ranked best, down to twice the document's rank.
_MOST_ENCODED, _FURTHER = 200, 2


def rounds_vectors(index: Index) -> bool:
    """Whether an index stores vectors with less than single precision."""
    return index.nbits is not None or index.dtype != "float32"


def scores_when_stored(index: Index, query: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return the scores that documents would have in an index, after the rounding of their vectors.

    `index`: the index; it is left as it is. Returns: ``(documents,)``.

    Examples
    --------
    >>> one = TokenEmbeddings.from_list([[[0.6, 0.8]]])
    >>> scores_when_stored(Flat(), one, one).round(3)
    array([1.])
    >>> scores_when_stored(IVF(nbits=1), one, one).round(3)
    array([0.99])
    """
    documents = documents.to("numpy")
    if not rounds_vectors(index):
        return exact_scores(query, documents)[0]
    nbits: Any = index.nbits
    with Flat(dtype="float16") if nbits is None else IVF(nbits=nbits) as stored:
        stored.add(range(len(documents)), documents)
        return exact_scores(query, stored.get_embeddings(range(len(documents))))[0]


def find_quantisation_loss(
    model: QueryModel, index: Index, query: TokenEmbeddings, id: Id, rank: int, arguments: Mapping[str, Any]
) -> tuple[Cause, tuple[Change, ...]] | None:
    """Return the cause and the changes if a document would be found by the vectors as the model encodes them.

    Raises `LatelierError` if the documents ranked near it cannot be encoded again; the message says why.
    """
    if rank > _MOST_ENCODED:
        raise LatelierError(f"its rank is {rank:,}, and only {_MOST_ENCODED} documents are encoded again.")
    k, count = arguments["k"], min(_MOST_ENCODED, _FURTHER * rank + arguments["k"])
    exact = {**arguments, "k": count, **({} if index.nbits is None else {"effort": "exact"})}
    hits = index.search(query, **exact)[0]
    ids = [hit.id for hit in hits]
    if id not in ids:  # an approximate search without `effort`
        return None
    vectors = _encode_again(model, index, ids)
    scores = exact_scores(query, vectors)[0]
    mine = ids.index(id)
    by_floats = 1 + int(np.count_nonzero(scores > scores[mine]))
    if by_floats > k:
        return None
    last = float(np.sort(scores)[-min(k, len(scores))])
    text = (
        f"by vectors that are not rounded it has rank {by_floats} and scores {scores[mine]:.3f} (the last hit then "
        f"{last:.3f}); by the stored ones rank {rank} and {hits[mine].score:.3f}"
    )
    details = {"rank": by_floats, "score": float(scores[mine]), "last_score": last, "encoded": len(ids)}
    return Cause("quantised", text, details), _finer(index, vectors, query, mine, k)


def _encode_again(model: QueryModel, index: Index, ids: list[Id]) -> TokenEmbeddings:
    """Return the vectors of stored documents as the model encodes their texts."""
    texts = [record.text for record in index.get(ids)]
    if None in texts:
        raise LatelierError(
            f"document {ids[texts.index(None)]!r}, which is ranked near it, was stored without its text."
        )
    vectors = model.encode_documents([str(text) for text in texts], batch_size=8).to("numpy")
    changed = np.flatnonzero(np.asarray(vectors.lengths) != np.asarray(index.get_embeddings(ids).lengths))
    if len(changed):
        raise LatelierError(
            f"the vectors of document {ids[changed[0]]!r}, which is ranked near it, are not those of its text."
        )
    return vectors


def _finer(index: Index, vectors: TokenEmbeddings, query: TokenEmbeddings, mine: int, k: int) -> tuple[Change, ...]:
    """Return the smallest number of bits with which the document is found among those encoded again."""
    bits: list[Any] = sorted(each for each in BITS if index.nbits is not None and each > index.nbits)
    for nbits in bits:
        with IVF(nbits=nbits) as finer:
            finer.add(range(len(vectors)), vectors)
            if mine in [hit.id for hit in finer.search(query, k, effort="exact")[0]]:
                return (Change({"nbits": nbits}, "index"),)
    return (Change({"kind": "flat", "dtype": "float32"}, "index"),)


# Passages of a left-out part that are encoded; the report then says that there are more.
_MOST_PASSAGES = 64
# Characters that are tokenised for one passage, as a multiple of those that the model read of the text, and at least.
_WINDOW, _LEAST_WINDOW = 4, 2000


class Passage(NamedTuple):
    """A piece of a text that the model reads whole: its first character, the one after its last, its tokens.

    Examples
    --------
    >>> Passage(start=1200, end=2400, tokens=254).tokens
    254
    """

    start: int
    end: int
    tokens: int


def left_out_passages(model: QueryModel, text: str) -> list[Passage]:
    """Return the parts of a document's text that the model does not read, each as long as it reads at once.

    Returns: in the order of the text, at most 64; empty if the model reads the whole text.
    """
    first, last = _read(model, text)
    window = max(_LEAST_WINDOW, _WINDOW * (last - first))  # to tokenise the whole rest each time is quadratic
    passages: list[Passage] = []
    for begin, end in ((0, first), (last, len(text))):
        while begin < end and text[begin:end].strip() and len(passages) < _MOST_PASSAGES:
            piece = text[begin : min(end, begin + window)]
            ranges = [each for each in model.token_ranges(piece, is_query=False) if each is not None]
            if not ranges:  # characters without a vector, such as punctuation
                break
            passages.append(Passage(begin + ranges[0][0], begin + ranges[-1][1], len(ranges)))
            begin += ranges[-1][1]
    return sorted(passages)


def truncation_cause(
    model: QueryModel, index: Index, query: TokenEmbeddings, text: str, score: float, passages: list[Passage]
) -> Cause | None:
    """Return the cause if a part of a text that was left out scores higher than what was encoded.

    `model`: encodes documents; `index`: holds the document; `query`: one query; `text`: the text of the document;
    `passages`: from `left_out_passages`, at least one.
    """
    pieces = [text[passage.start : passage.end] for passage in passages]
    scores = scores_when_stored(index, query, model.encode_documents(pieces, batch_size=8))
    best = int(scores.argmax())
    if scores[best] <= score:
        return None
    tokens, left_out = sum(passage.tokens for passage in passages), (passages[0].start, passages[-1].end)
    more = ", and more follow" if len(passages) == _MOST_PASSAGES else ""
    message = (
        f"characters {left_out[0]:,} to {left_out[1]:,} of its text were not encoded ({tokens:,} tokens{more}); alone, "
        f"characters {passages[best].start:,} to {passages[best].end:,} score {scores[best]:.3f}"
    )
    details: dict[str, Any] = {
        "left_out": list(left_out),
        "tokens": tokens,
        "best_passage": list(passages[best][:2]),
        "best_score": float(scores[best]),
    }
    return Cause("truncated", message, details)


def truncation_changes(
    model: QueryModel, index: Index, query: TokenEmbeddings, text: str, cause: Cause, last_score: float | None
) -> list[Change]:
    """Return the changes that give the document a higher score than the last hit has: a maximum length, or passages.

    `model`, `index`, `query`, `text`: as for `truncation_cause`. `cause`: from `truncation_cause`. `last_score`: score
    of the last hit; None if any score is enough.
    """
    changes, least = [], -np.inf if last_score is None else last_score
    if model.can_load:
        from latelier.models.encoding import document_length, encode_up_to

        length = document_length(model.loaded, text)
        if length is not None:
            whole = TokenEmbeddings.from_list([encode_up_to(model.loaded, text, length)])
            if scores_when_stored(index, query, whole)[0] > least:
                changes.append(Change({"max_length_document": length}, "model"))
    if cause.details["best_score"] > least:
        start, end = cause.details["best_passage"]
        changes.append(Change({"start": start, "end": end}, "passages"))
    return changes


def _read(model: QueryModel, text: str) -> tuple[int, int]:
    """Return the first character that the model reads, and the one after the last."""
    ranges = [each for each in model.token_ranges(text, is_query=False) if each is not None]
    return (ranges[0][0], ranges[-1][1]) if ranges else (0, len(text))


def explain_miss(
    model: QueryModel,
    index: Index,
    query: str,
    id: Id,
    k: int,
    **options: Unpack[SearchKeywords],
) -> WhyNotReport:
    """Return why a search does not find a document; see `latelier.retrieve.Retriever.why_not`.

    `k`, `options`: those of the search.
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} as the query; why_not is about one query, a text.")
    chosen = index.checked_options(options)
    check_texts(query, chosen.mode)
    check_count("k", k)
    mode = chosen.mode
    given = {field.name: getattr(chosen, field.name) for field in fields(chosen)}
    way = {name: given.pop(name) for name in ("mode", "fusion", "weights", "depth")}
    arguments = {"k": k, **given}
    vectors = model.encode_queries(checked_queries(query))
    with index.snapshot():
        if mode != "vectors":
            return explain_mode_miss(index, query, vectors, id, {**arguments, **way})
        if StoredDocuments(index).has_passages:
            return _named_tokens(explain_passage_miss(index, vectors, id, arguments), query, model)
        report = _named_tokens(index.why_not(vectors, id, **arguments), query, model)
        if report.is_found or report.exact_rank is None:
            return report
        return _Texts(model, index, vectors, arguments).examine(report)


class _Texts:
    """What texts say about a document that is stored, and that the filter selects, but that is not found."""

    def __init__(self, model: QueryModel, index: Index, query: TokenEmbeddings, arguments: dict[str, Any]) -> None:
        self.model, self.index, self.query, self.arguments = model, index, query, arguments

    def examine(self, report: WhyNotReport) -> WhyNotReport:
        """Add the causes that need the document's text, and name what cannot be examined."""
        text = self.index.get([report.id])[0].text
        reason = "its text was not stored" if text is None else self._why_not_comparable(report.id, text)
        if text is None or reason is not None:
            return replace(report, unexamined=(f"truncation and quantisation: {reason}",))
        found: list[tuple[Cause, tuple[Change, ...]]] = []
        unexamined = []
        for name, examine in (
            ("truncation", partial(self._truncation, report, text)),
            ("quantisation", partial(self._quantisation, report)),
        ):
            try:
                found += examine()
            except LatelierError as error:
                unexamined.append(f"{name}: {error}")
        return replace(
            report,
            causes=(*report.causes, *(cause for cause, _ in found)),
            changes=(*report.changes, *(change for _, changes in found for change in changes)),
            unexamined=tuple(unexamined),
        )

    def _why_not_comparable(self, id: Id, text: str) -> str | None:
        """Return why the vectors of a document cannot be compared with its text; None if they can."""
        try:
            tokens = len(self.model.token_ranges(text, is_query=False))
        except LatelierError as error:
            return str(error)
        stored = len(self.index.get_embeddings([id])[0])
        if tokens == stored:
            return None
        return f"it has {stored} vectors, but its text has {tokens} tokens for this model: they were pooled or changed"

    def _truncation(self, report: WhyNotReport, text: str) -> list[tuple[Cause, tuple[Change, ...]]]:
        passages = left_out_passages(self.model, text)
        if not passages or report.score is None:
            return []
        cause = truncation_cause(self.model, self.index, self.query, text, report.score, passages)
        if cause is None:
            return []
        return [(cause, tuple(truncation_changes(self.model, self.index, self.query, text, cause, report.last_score)))]

    def _quantisation(self, report: WhyNotReport) -> list[tuple[Cause, tuple[Change, ...]]]:
        rank = report.exact_rank
        if rank is None or rank <= report.k or not rounds_vectors(self.index):
            return []
        found = find_quantisation_loss(self.model, self.index, self.query, report.id, rank, self.arguments)
        return [] if found is None else [found]


def _named_tokens(report: WhyNotReport, query: str, model: QueryModel) -> WhyNotReport:
    """Add the query's text and its tokens to a report; the tokens only if the model does not pool them."""
    report = replace(report, query=query)
    try:
        tokens = model.tokens(query, is_query=True)
    except LatelierError:
        return report
    if len(tokens) != len(report.differences):
        return report
    pairs = zip(report.differences, tokens, strict=True)
    return replace(report, differences=tuple(each._replace(token=token) for each, token in pairs))
