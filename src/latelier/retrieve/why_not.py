"""Why a search by text does not find a document: by mode, in passages, and in the part of a text that was not encoded.

What an index can say without texts is in `latelier.indexes.why_not`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import LatelierError
from latelier.indexes import IVF, Cause, Change, Flat, Hit, Id, Index, WhyNotReport
from latelier.indexes.options import Mode, SearchKeywords, SearchOptions
from latelier.indexes.ranking import exact_scores
from latelier.indexes.why_not import Tester, beside_thresholds, examine, token_differences, why_not_by_vectors
from latelier.indexes.words import query_words
from latelier.retrieve.queries import EncodedQueries, find
from latelier.retrieve.query_model import QueryModel, checked_queries
from latelier.utils.checks import check_count, short
from latelier.utils.values import as_id

if TYPE_CHECKING:
    from typing_extensions import Unpack


def explain_miss(
    model: QueryModel, index: Index, query: str, id: Id, k: int, **options: Unpack[SearchKeywords]
) -> WhyNotReport:
    """Return why a search does not find a document; see `latelier.retrieve.Retriever.why_not`."""
    chosen = index.checked_options(options, is_text=True)
    k = check_count("k", k)
    id = as_id(id)
    model = model.reading(query, whole=chosen.whole_query)
    has_least = chosen.min_mean_score is not None
    queries = model.encode_for_search(checked_queries([query], "query"), whole=False, with_own=has_least)

    def is_found() -> bool:
        return id in [each.hit.id for each in find(index, queries, k, chosen)[0]]

    with index.snapshot():
        return beside_thresholds(chosen, partial(_explain, model, index, replace(queries, own=None), id, k), is_found)


def _explain(
    model: QueryModel, index: Index, queries: EncodedQueries, id: Id, k: int, chosen: SearchOptions
) -> WhyNotReport:
    [query] = queries.texts
    vectors = queries.needed_vectors
    if chosen.mode == "vectors":
        report = _with_tokens(why_not_by_vectors(index, vectors, id, k, chosen), model, query)
        if report.is_found or report.exact_rank is None:
            return report
        if index.get([id])[0].passages:
            return replace(report, unexamined=("truncation: the document is stored as passages",))
        return _examine_text(_Asked(index, query, vectors, model), report, report.score or 0.0, with_changes=True)

    def search(k: int = k, **changes: Any) -> list[Hit]:
        return [each.hit for each in find(index, queries, k, replace(chosen, **changes))[0]]

    asked = _Asked(index, query, vectors, model)
    report = examine(index, vectors, Tester(search, id, k, chosen), partial(_by_mode, asked))
    return _with_tokens(report, model, query)


class _Asked(NamedTuple):
    """The index that is searched, and the one query, with its vectors in every mode, and the model."""

    documents: Index
    query: str
    vectors: TokenEmbeddings
    model: QueryModel


def _with_tokens(report: WhyNotReport, model: QueryModel, query: str) -> WhyNotReport:
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


class _Side(NamedTuple):
    """A document in a ranking by keywords or by vectors: its rank, 0 if it is missing, its score, and its hit."""

    mode: Mode
    rank: int
    score: float
    documents: int
    hit: Hit | None = None


# Words of the query that a cause lists.
_SHOWN_WORDS = 8


def _by_mode(asked: _Asked, tester: Tester, report: WhyNotReport, hits: list[Hit]) -> WhyNotReport:
    """Explain a search with keywords: by each side that ranks the document below `k`, or by both if none does."""
    options = tester.options
    k = tester.k
    depth = options.depth_for(k)
    most = len(asked.documents)
    by_vectors: _Side | None = None  # of hybrid, if its rank is among the causes
    keywords = _side(asked, tester, "keywords", most)
    if options.mode == "keywords":
        causes = [_side_cause(asked, tester, keywords)]
    elif options.mode == "rerank" and (not keywords.rank or keywords.rank > depth):
        causes = [_side_cause(asked, tester, keywords, f"; the best {depth:,} are ordered by vectors")]
    elif options.mode == "rerank":
        among = f" among the best {depth:,} by keywords"
        causes = [_side_cause(asked, tester, _side(asked, tester, "rerank", depth), among)]
    else:
        for_vectors, for_keywords = options.weights
        sides = [keywords] * (for_keywords > 0)
        sides += [_side(asked, tester, "vectors", most)] * (for_vectors > 0)
        low = sorted((side for side in sides if not side.rank or side.rank > k), key=lambda side: -side.rank or -np.inf)
        causes = [_side_cause(asked, tester, side) for side in low or sides]
        by_vectors = next((side for side in low or sides if side.mode == "vectors" and side.hit), None)
    found: list[dict[str, Any]] = []
    if (more := tester.smallest("k", k, most)) is not None:
        found.append({"k": more})
    if options.mode != "keywords" and (deeper := tester.smallest("depth", depth, most)) is not None:
        found.append({"depth": deeper})
    if "effort" in asked.documents.search_options and options.mode == "hybrid" and options.effort != "exact":
        found += [{"effort": "exact"}] * (tester.rank(effort="exact") is not None)
    found += [{"mode": mode} for mode in get_args(Mode) if mode != options.mode and tester.rank(mode=mode) is not None]
    if not found and (more := tester.smallest("k", k, most, mode="vectors")) is not None:
        found.append({"mode": "vectors", "k": more})
    report = replace(report, causes=tuple(causes), changes=tuple(map(Change, found)))
    if by_vectors is None or by_vectors.hit is None:
        return report
    differences = token_differences(asked.documents, asked.vectors[0], by_vectors.hit, hits[-1]) if hits else ()
    if asked.documents.get([tester.id])[0].passages:
        return replace(report, differences=differences)
    # What would find it is not said: that takes the fused score that it would have.
    return _examine_text(asked, replace(report, differences=differences), by_vectors.score, with_changes=False)


def _side(asked: _Asked, tester: Tester, mode: Mode, most: int) -> _Side:
    """Return the place of the document in a ranking of all documents, or of those that are reranked."""
    options = replace(tester.options, mode=mode, depth=most if mode == "rerank" else tester.options.depth)
    if "effort" in asked.documents.search_options:
        options = replace(options, effort="exact")
    [hits] = asked.documents.find(asked.vectors, max(1, most), [] if mode == "vectors" else [asked.query], options)
    for rank, hit in enumerate(hits, start=1):
        if hit.id == tester.id:
            return _Side(mode, rank, hit.score, len(hits), hit)
    return _Side(mode, 0, 0.0, len(hits))


def _side_cause(asked: _Asked, tester: Tester, side: _Side, more: str = "") -> Cause:
    if side.rank:
        details = {"rank": side.rank, "documents": side.documents, "score": side.score}
        place = f"rank {side.rank:,} of {side.documents:,} documents"
        if side.mode != "keywords":
            return Cause("vector_rank", f"by vectors it has {place}{more}, and scores {side.score:.3f}", details)
        place += " with a word of the query"
        return Cause("keyword_rank", f"by keywords it has {place}, and scores {side.score:.3f}{more}", details)
    words = query_words(asked.query)
    if not words:
        text = "the query has no word"
    elif asked.documents.get([tester.id])[0].text is None:
        text = "it was stored without its text"
    else:
        listed = ", ".join(map(short, words[:_SHOWN_WORDS])) + (", ..." if len(words) > _SHOWN_WORDS else "")
        text = f"its text has no word of the query: {listed}"
    return Cause("no_query_word", text, {"words": words})


def _examine_text(asked: _Asked, report: WhyNotReport, score: float, *, with_changes: bool) -> WhyNotReport:
    """Add the cause that a part of the text, which was not encoded, scores higher; or say why that is unknown."""
    index, _, query, model = asked
    text = index.get([report.id])[0].text
    if text is None:
        return replace(report, unexamined=("truncation: its text was not stored",))
    try:
        tokens = len(model.token_ranges(text, is_query=False))
        stored = len(index.get_embeddings([report.id])[0])
        if tokens != stored:
            reason = f"it has {stored} vectors, but its text has {tokens} tokens for this model: they were pooled or "
            return replace(report, unexamined=(f"truncation: {reason}changed",))
        passages = _left_out_passages(model, text)
        cause = passages and _truncation(model, index, query, text, score, passages)
        if not cause:
            return report
        changes: list[Change] = []
        if with_changes:
            changes = _truncation_changes(model, index, query, text, cause, report.last_score)
    except LatelierError as error:
        return replace(report, unexamined=(f"truncation: {error}",))
    return replace(report, causes=(*report.causes, cause), changes=(*report.changes, *changes))


class _Passage(NamedTuple):
    """A piece of a text that the model reads whole: ``text[start:end]``, and its number of tokens."""

    start: int
    end: int
    tokens: int


# Passages of a left-out part that are encoded; the report then says that there are more.
_MOST_PASSAGES = 64
# Characters that are tokenised for one passage, as a multiple of those that the model read of the text, and at least.
_WINDOW = 4
_LEAST_WINDOW = 2000


def _left_out_passages(model: QueryModel, text: str) -> list[_Passage]:
    """Return the parts of a text that the model does not read, each as long as it reads at once; at most 64."""
    read = [each for each in model.token_ranges(text, is_query=False) if each is not None]
    if read:
        first = read[0][0]
        last = read[-1][1]
    else:
        first = 0
        last = len(text)
    window = max(_LEAST_WINDOW, _WINDOW * (last - first))  # to tokenise the whole rest each time is quadratic
    passages: list[_Passage] = []
    for begin, end in ((0, first), (last, len(text))):
        while begin < end and text[begin:end].strip() and len(passages) < _MOST_PASSAGES:
            piece = text[begin : min(end, begin + window)]
            ranges = [each for each in model.token_ranges(piece, is_query=False) if each is not None]
            if not ranges:  # characters without a vector, such as punctuation
                break
            passages.append(_Passage(begin + ranges[0][0], begin + ranges[-1][1], len(ranges)))
            begin += ranges[-1][1]
    return sorted(passages)


def _truncation(
    model: QueryModel, index: Index, query: TokenEmbeddings, text: str, score: float, passages: Sequence[_Passage]
) -> Cause | None:
    """Return the cause if a passage that was left out scores higher than what was encoded."""
    pieces = [text[passage.start : passage.end] for passage in passages]
    scores = _scores_when_stored(index, query, model.encode_documents(pieces, batch_size=8))
    best = int(scores.argmax())
    if scores[best] <= score:
        return None
    tokens = sum(passage.tokens for passage in passages)
    left_out = (passages[0].start, passages[-1].end)
    if len(passages) == _MOST_PASSAGES:
        more = ", and more follow"
    else:
        more = ""
    message = (
        f"characters {left_out[0]:,} to {left_out[1]:,} of its text were not encoded ({tokens:,} tokens{more}); alone, "
        f"characters {passages[best].start:,} to {passages[best].end:,} score {scores[best]:.3f}"
    )
    best_passage = [passages[best].start, passages[best].end]
    details: dict[str, Any] = {"left_out": list(left_out), "tokens": tokens, "best_passage": best_passage}
    return Cause("truncated", message, {**details, "best_score": float(scores[best])})


def _truncation_changes(
    model: QueryModel, index: Index, query: TokenEmbeddings, text: str, cause: Cause, last_score: float | None
) -> list[Change]:
    """Return the changes with which the document scores higher than the last hit: a maximum length, or passages."""
    changes = []
    least = -np.inf if last_score is None else last_score
    if model.model is not None:
        from latelier.models.encoding import document_length, encode_up_to

        length = document_length(model.model.loaded, text)
        if length is not None:
            whole = TokenEmbeddings.from_list([encode_up_to(model.model.loaded, text, length)])
            if _scores_when_stored(index, query, whole)[0] > least:
                changes.append(Change({"max_length_document": length}, "model"))
    if cause.details["best_score"] > least:
        start, end = cause.details["best_passage"]
        changes.append(Change({"start": start, "end": end}, "passages"))
    return changes


def _scores_when_stored(index: Index, query: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return the scores that documents would have in an index, which rounds their vectors."""
    documents = documents.to("numpy")
    if index.nbits is None and index.dtype == "float32":
        return exact_scores(query, documents)[0]
    nbits: Any = index.nbits
    with Flat(dtype="float16") if nbits is None else IVF(nbits=nbits) as stored:
        stored.add(range(len(documents)), documents)
        return exact_scores(query, stored.get_embeddings(range(len(documents))))[0]
