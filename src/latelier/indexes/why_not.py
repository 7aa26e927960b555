"""Causes, changes, filters.

The decisive cause is the first of these that holds: the document is not stored; the filter excludes it; it scores
higher than the last hit, so a stage of an approximate search lost it; its score is equal to that of the last hit; its
score is lower.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.indexes.base import Index, Parameters, SearchOptions, effort_factor
from latelier.indexes.documents import prepare_queries
from latelier.indexes.filters.grammar import FieldName, parse_filter
from latelier.indexes.results import Cause, Change, Hit, Id, StageLoss, TokenDifference, WhyNotReport
from latelier.indexes.store.rows import fold_name
from latelier.indexes.values import as_id
from latelier.scores.topk import align
from latelier.utils.checks import short

__all__ = [
    "Condition",
    "excluding_conditions",
    "filter_arguments",
    "filter_cause",
    "find_causes",
    "near_ids",
    "not_stored_cause",
    "smallest_value",
    "split_filter",
    "wider_searches",
    "without_filter",
]

# Name of the parameter that holds the document's id, beside those of the user.
_ID_PARAMETER = "latelier_document"


class Condition:
    """One expression of a filter, and the values of its own parameters."""

    def __init__(self, expression: str, parameters: Parameters) -> None:
        self.expression, self.parameters = expression, parameters

    def selects(self, index: Index, query: Any, id: Id, filter_timeout: float | None) -> bool:
        """Whether an index's document meets the condition."""
        if isinstance(self.parameters, Mapping):
            name, parameters = f":{_ID_PARAMETER}", {**self.parameters, _ID_PARAMETER: id}
            arguments: dict[str, Any] = {"filter": [self.expression, f"id = {name}"], "parameters": parameters}
        else:
            arguments = {"filter": [self.expression, "id = ?"], "parameters": (*self.parameters, id)}
        return bool(index.search(query, 1, **arguments, filter_timeout=filter_timeout)[0])

    @property
    def fields(self) -> list[str]:
        """The fields that the expression names, as SQL compares names."""
        names = [piece.token for piece in parse_filter(self.expression).pieces if isinstance(piece, FieldName)]
        return list(dict.fromkeys(fold_name(name.text) for name in names))


def split_filter(filter: str | Sequence[str] | None, parameters: Parameters) -> list[Condition]:
    """Return the expressions of a filter, each with its parameters.

    `filter`, `parameters`: as in `Index.search`; they fit each other.

    Examples
    --------
    >>> split = split_filter(["year >= ?", "lang IN (?, ?)"], (2020, "en", "de"))
    >>> [(each.expression, each.parameters) for each in split]
    [('year >= ?', (2020,)), ('lang IN (?, ?)', ('en', 'de'))]
    """
    expressions = [] if filter is None else [filter] if isinstance(filter, str) else list(filter)
    if isinstance(parameters, Mapping):
        return [Condition(each, parameters) for each in expressions]
    values, first, conditions = tuple(parameters), 0, []
    for each in expressions:
        count = len(parse_filter(each).slots)
        conditions.append(Condition(each, values[first : first + count]))
        first += count
    return conditions


def excluding_conditions(
    index: Index, query: Any, id: Id, conditions: Sequence[Condition], filter_timeout: float | None
) -> list[Condition]:
    """Return the conditions that a stored document does not meet."""
    return [each for each in conditions if not each.selects(index, query, id, filter_timeout)]


def filter_arguments(conditions: Sequence[Condition]) -> dict[str, Any]:
    """Return the arguments `filter` and `parameters` of a search under these conditions.

    Examples
    --------
    >>> filter_arguments(split_filter(["year >= ?", "lang = 'en'"], (2020,))[:1])
    {'filter': 'year >= ?', 'parameters': (2020,)}
    >>> filter_arguments([])
    {'filter': None, 'parameters': ()}
    """
    if not conditions:
        return {"filter": None, "parameters": ()}
    expressions = [each.expression for each in conditions]
    named = conditions[0].parameters
    return {
        "filter": expressions[0] if len(expressions) == 1 else expressions,
        "parameters": named if isinstance(named, Mapping) else tuple(v for each in conditions for v in each.parameters),
    }


def filter_cause(index: Index, id: Id, excluding: Sequence[Condition], among: int) -> Cause:
    """Return the cause: the expressions that exclude a document, and its values of the fields that they name."""
    record = index.get([id])[0]
    stored = {fold_name(key): value for key, value in reversed(record.metadata.items())} | {"id": id}
    names = list(dict.fromkeys(name for each in excluding for name in each.fields if name not in ("text", "metadata")))
    values = {name: stored.get(name) for name in names}
    expressions = [each.expression for each in excluding]
    shown = ", ".join(f"{name}={value!r}" if name in stored else f"no {name}" for name, value in values.items())
    which = f" ({len(excluding)} of {among} expressions)" if among > 1 else ""
    has = f"; the document has {shown}" if shown else ""
    return Cause(
        "filtered",
        f"the filter excludes it: {' and '.join(expressions)}{which}{has}",
        {"expressions": expressions, "values": values},
    )


# Ids that are compared letter by letter with one that is not stored: the comparison takes 10 microseconds for each.
_MOST_COMPARED = 50_000
_NEAR = 3


# `wider_efforts` multiplies an effort by these.
_WIDER = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def wider_searches(index: Index, options: SearchOptions) -> list[dict[str, Any]]:
    """Return changes of a search that lead to more and more documents, and last to all; none for an exact index."""
    if "effort" not in index.search_options:
        return []
    reset = {name: None for name in ("nprobe", "candidates", "rerank") if getattr(options, name) is not None}
    factors = [] if options.effort == "exact" else [effort_factor(options.effort) * each for each in _WIDER]
    return [{"effort": effort, **reset} for effort in (*factors, "exact")]


def find_causes(index: Index, query: Any, id: Any, k: int, options: SearchOptions) -> WhyNotReport:
    """Return why one search does not find a document; see `Index.why_not`."""
    id = as_id(id)
    packed = prepare_queries(query, index.dim)
    if len(packed) != 1:
        raise InvalidArgumentError(f"received {len(packed)} queries; why_not is about the search of one.")
    hits = index.find(packed, k, [], options)[0]
    found = next((rank for rank, hit in enumerate(hits, start=1) if hit.id == id), None)
    last = hits[-1] if hits else None
    report = WhyNotReport(id, k, rank=found, last_id=last and last.id, last_score=last and last.score)
    if found is not None:
        return replace(report, score=hits[found - 1].score)
    if id not in index:
        return replace(report, causes=(not_stored_cause(id, index.ids()),))
    conditions = split_filter(options.filter, options.parameters)
    excluding = excluding_conditions(index, packed, id, conditions, options.filter_timeout)
    if excluding:
        cause = filter_cause(index, id, excluding, len(conditions))
        relaxed = filter_arguments([each for each in conditions if each not in excluding])
        return without_filter(find_causes(index, packed, id, k, replace(options, **relaxed)), report, cause, relaxed)
    return _Miss(index, packed, id, k, options, hits).report(report)


def without_filter(inner: WhyNotReport, report: WhyNotReport, cause: Cause, relaxed: dict[str, Any]) -> WhyNotReport:
    """Return the report of a document that the filter excludes.

    `inner`: the report of the search without the expressions that exclude the document; `report`: that of the search,
    without causes; `relaxed`: the arguments of the filter without them.
    """
    changes = [Change({**relaxed, **change.arguments}) for change in inner.changes]
    return replace(
        report,
        causes=(cause, *inner.causes),
        changes=(Change(relaxed),) if inner.is_found else tuple(changes),
        differences=inner.differences,
    )


class _Miss:
    """A document that is stored, and that the filter selects, but that the search did not find."""

    def __init__(
        self, index: Index, query: TokenEmbeddings, id: Id, k: int, options: SearchOptions, hits: Sequence[Hit]
    ) -> None:
        self.index, self.query, self.id, self.k, self.options, self.hits = index, query, id, k, options, hits
        self.wider = wider_searches(index, options)
        self.ranking = self._rank()
        self.rank = len(self.ranking)

    def report(self, report: WhyNotReport) -> WhyNotReport:
        """Complete a report: ranks, scores, causes and changes."""
        report = replace(report, exact_rank=self.rank, score=self.ranking[-1].score)
        above = {hit.id for hit in self.ranking}
        if len(self.hits) < report.k or self.hits[-1].id not in above:
            return self._lost(report)
        higher = sum(hit.score > self.ranking[-1].score for hit in self.ranking)
        details, changes = {"higher": higher, "equal": self.rank - 1 - higher}, self._raise_k()
        if higher < report.k:
            text = f"{higher} documents score higher, and {details['equal']} that were added earlier score the same"
            return replace(report, causes=(Cause("tied", text, details),), changes=changes)
        text = f"{higher:,} document{'s score' if higher > 1 else ' scores'} higher"
        cause = Cause("scored_lower", text, details)
        return replace(report, causes=(cause,), changes=changes, differences=self._differences())

    def _lost(self, report: WhyNotReport) -> WhyNotReport:
        """Complete the report of a document that scores higher than the last hit."""
        loss = self.index.find_loss(self.query, self.id, self.k, self.options)
        if loss is not None:
            changes = self._raise_parameter(loss) or self._raise_k()
            return replace(report, causes=(loss.cause,), changes=changes)
        cause = Cause("not_candidate", "the search of this index does not score every document, and left it out")
        return replace(report, causes=(cause,), changes=self._raise_k())

    def _rank(self) -> list[Hit]:
        """Return the ranking of the documents by their stored vectors, down to this one."""
        k, exact = self.k, self.wider[-1] if self.wider else {}
        while True:
            hits = self._search({**exact, "k": k})
            places = [place for place, hit in enumerate(hits, start=1) if hit.id == self.id]
            if places:
                return hits[: places[0]]
            k = min(10 * k, max(k + 1, len(self.index)))

    def _search(self, changes: Mapping[str, Any]) -> list[Hit]:
        options = {name: value for name, value in changes.items() if name != "k"}
        return self.index.find(self.query, changes.get("k", self.k), [], replace(self.options, **options))[0]

    def _finds(self, change: Mapping[str, Any]) -> int | None:
        """Return the rank of the document in a search with changed arguments."""
        hits = self._search(change)
        return next((rank for rank, hit in enumerate(hits, start=1) if hit.id == self.id), None)

    def _raise_parameter(self, loss: StageLoss) -> tuple[Change, ...]:
        """Return the smallest value of the parameter of a stage that finds the document, and the smallest effort."""
        value = smallest_value(lambda value: self._finds({loss.parameter: value}) is not None, loss.value, loss.most)
        wider = next((each for each in self.wider if self._finds(each) is not None), None)
        found = [None if value is None else {loss.parameter: value}, wider]
        return tuple(Change(dict(each)) for each in found if each is not None)

    def _raise_k(self) -> tuple[Change, ...]:
        """Return the smallest k that finds the document, as do those above it, with a higher effort if it takes one."""
        for wider in ({}, *self.wider):
            k = self._smallest_k(wider)
            if k is not None:
                return (Change({**wider, "k": k}),)
        return ()

    def _smallest_k(self, wider: Mapping[str, Any]) -> int | None:
        most = max(self.rank, self.k + 1)
        rank = self._finds({**wider, "k": most})
        if rank is None:
            return None
        if not self.wider:  # most indexes rank all documents, so that their ranks do not depend on k
            most = max(rank, self.k + 1)
            return most if self._finds({**wider, "k": most}) is not None else self.rank
        return smallest_value(lambda k: self._finds({**wider, "k": k}) is not None, self.k, most)

    def _differences(self) -> tuple[TokenDifference, ...]:
        """Compare the terms of the document's score, by query token, with those of the last hit."""
        mine, other = self.index.get_embeddings([self.id, self.hits[-1].id])
        pairs = zip(align(self.query[0], mine).similarities, align(self.query[0], other).similarities, strict=True)
        return tuple(TokenDifference(i, float(a), float(b)) for i, (a, b) in enumerate(pairs))


def smallest_value(finds: Callable[[int], bool], value: int, most: int) -> int | None:
    """Return the smallest number above `value` for which `finds` is true, if it stays true from there on.

    `finds`: called about ``2 * log2(number / value)`` times. `value`: a number for which `finds` is false. `most`: the
    largest number to try; None is returned if `finds` is false for it and the others that are tried.

    Examples
    --------
    >>> smallest_value(lambda number: number >= 37, value=4, most=1000)
    37
    >>> smallest_value(lambda number: number >= 37, value=4, most=30)
    """
    low = high = value
    while low < most:
        high = min(2 * high, most)
        if finds(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if finds(middle) else (middle, high)
            return high
        low = high
    return None


def not_stored_cause(id: Id, ids: Sequence[Id]) -> Cause:
    """Return the cause for an id that is not among the ids of the documents.

    Examples
    --------
    >>> print(not_stored_cause("1", [0, 1]))
    not_stored: no document has the id '1'; near ids: 1
    """
    near = near_ids(id, ids)
    hint = f"; near ids: {', '.join(map(short, near))}" if near else ""
    return Cause("not_stored", f"no document has the id {short(id)}{hint}", {"near": near})


def near_ids(id: Id, ids: Sequence[Id]) -> list[Id]:
    """Return up to three ids like one that is not stored: of the other type, in other case, or spelled alike."""
    folded = str(id).strip().casefold()
    same = [each for each in ids if str(each).strip().casefold() == folded]
    if same or len(ids) > _MOST_COMPARED:
        return same[:_NEAR]
    texts: dict[str, Id] = {str(each): each for each in ids if isinstance(each, str)}
    return [texts[name] for name in difflib.get_close_matches(str(id), texts, n=_NEAR, cutoff=0.65)]
