"""Why a search by text does not find a document: what the index says, and what the document's text adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Cause, Change, Id, Index, Parameters, WhyNotReport
from latelier.indexes.search_mode import Fusion, Mode, SearchMode
from latelier.retrieve.index_options import check_index_options
from latelier.retrieve.mode_misses import explain_mode_miss
from latelier.retrieve.passage_misses import explain_passage_miss
from latelier.retrieve.quantisation import find_quantisation_loss, rounds_vectors
from latelier.retrieve.queries import checked_queries
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.retrieve.truncation import left_out_passages, truncation_cause, truncation_changes
from latelier.utils.checks import describe

__all__ = ["explain_miss"]


def explain_miss(
    model: QueryModel,
    index: Index,
    query: str,
    id: Id,
    k: int,
    *,
    mode: Mode = "vectors",
    fusion: Fusion = "relative",
    weights: Sequence[float] = (0.5, 0.5),
    depth: int | None = None,
    filter: str | Sequence[str] | None = None,
    parameters: Parameters = (),
    filter_timeout: float | None = 10.0,
    **index_options: Any,
) -> WhyNotReport:
    """Return why a search does not find a document; see `latelier.retrieve.Retriever.why_not`.

    Parameters
    ----------
    model
        Encodes queries and documents.
    index
        The index that is searched.
    query
        One query.
    id
        The document.
    k, mode, fusion, weights, depth, filter, parameters, filter_timeout
        Those of the search, see `latelier.indexes.Index.search`.
    **index_options
        Further options of the index's `search`.
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} as the query; why_not is about one query, a text.")
    check_index_options(index, index_options)
    way = {"mode": mode, "fusion": fusion, "weights": weights, "depth": depth}
    SearchMode.checked(k, texts=query, **way)
    arguments = {"k": k, "filter": filter, "parameters": parameters, "filter_timeout": filter_timeout, **index_options}
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
