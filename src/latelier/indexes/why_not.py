"""Why a search does not find a document, and what would find it.

The decisive cause is the first of these that holds: the document is not stored; the filter excludes it; it scores
higher than the last hit, so a stage of an approximate search lost it; its score is equal to that of the last hit; its
score is lower.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.indexes.fields import fold_name
from latelier.indexes.filters import parse_filter
from latelier.indexes.options import Parameters, SearchOptions, effort_factor
from latelier.indexes.packing import prepare_queries
from latelier.indexes.results import Cause, Change, Hit, TokenDifference, WhyNotReport
from latelier.scores.maxsim import align
from latelier.utils.checks import short
from latelier.utils.values import Id, as_id

_Index: TypeAlias = Any  # an `Index`, whose module imports this one
# Name of the parameter that holds the document's id, beside those of the user.
_ID_PARAMETER = "latelier_document"
# Ids that are compared letter by letter with one that is not stored: the comparison takes 10 microseconds for each.
_MOST_COMPARED = 50_000
_NEAR = 3
# Efforts that are tried, as multiples of that of the search, before ``"exact"``.
_WIDER = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class Tester:
    """A document and a search that can be repeated with changes, to see what rank the document has then.

    `search`: called with changes of `k` and of the options, such as ``search(k=20, effort="exact")``; returns the hits
    of one query, best first. `k`, `options`: those of the search without changes.
    """

    search: Callable[..., list[Hit]]
    id: Id
    k: int
    options: SearchOptions

    def rank(self, **changes: Any) -> int | None:
        """Return the rank of the document in the search with these changes."""
        return next((rank for rank, hit in enumerate(self.search(**changes), start=1) if hit.id == self.id), None)

    def smallest(self, name: str, value: int, most: int, **changes: Any) -> int | None:
        """Return the smallest number above `value` that finds the document as the option `name`; None up to `most`.

        It takes ``2 * log2(number / value)`` searches, and larger numbers find the document too.
        """
        low = high = value
        while low < most:
            high = min(2 * high, most)
            if self.rank(**changes, **{name: high}) is not None:
                while high - low > 1:
                    middle = (low + high) // 2
                    found = self.rank(**changes, **{name: middle}) is not None
                    low, high = (low, middle) if found else (middle, high)
                return high
            low = high
        return None


def why_not_by_vectors(index: _Index, query: Any, id: Any, k: int, options: SearchOptions) -> WhyNotReport:
    """Return why a search of an index does not find a document; see `latelier.indexes.Index.why_not`."""
    id = as_id(id)
    packed = prepare_queries(query, index.dim)
    if len(packed) != 1:
        raise InvalidArgumentError(f"received {len(packed)} queries; why_not is about the search of one.")

    def report(options: SearchOptions) -> WhyNotReport:
        def search(k: int = k, **changes: Any) -> list[Hit]:
            return index.find(packed, k, [], replace(options, **changes))[0]

        explain = partial(_by_scores, index, packed)
        return examine(index, packed, Tester(search, id, k, options), explain)

    return beside_thresholds(options, report, lambda: id in [hit.id for hit in index.find(packed, k, [], options)[0]])


def beside_thresholds(
    options: SearchOptions, report: Callable[[SearchOptions], WhyNotReport], is_found: Callable[[], bool]
) -> WhyNotReport:
    """Return the report of a search without its thresholds, and whether these leave the document out."""
    without: dict[str, Any] = {
        name: None for name in ("min_score", "min_mean_score") if getattr(options, name) is not None
    }
    found = report(replace(options, **without))
    if not without or is_found():
        return found
    if not found.is_found:
        return replace(found, changes=tuple(replace(c, arguments={**without, **c.arguments}) for c in found.changes))
    limits = " and ".join(f"{name}={getattr(options, name)}" for name in without)
    cause = Cause("below_threshold", f"it is hit {found.rank} of the search, and {limits} leaves it out")
    return replace(found, rank=None, causes=(cause,), changes=(Change(dict(without)),))


def examine(
    index: _Index,
    query: TokenEmbeddings,
    tester: Tester,
    explain: Callable[[Tester, WhyNotReport, list[Hit]], WhyNotReport],
) -> WhyNotReport:
    """Return the report of a document that is found, or is not stored, or that the filter excludes, or of `explain`.

    `explain`: completes the report of a document that is stored and that the filter selects; it gets the hits of the
    search.
    """
    hits = tester.search()
    report = WhyNotReport(tester.id, tester.k, mode=tester.options.mode)
    if hits:
        report = replace(report, last_id=hits[-1].id, last_score=hits[-1].score)
    for rank, hit in enumerate(hits, start=1):
        if hit.id == tester.id:
            return replace(report, rank=rank, score=hit.score)
    if tester.id not in index:
        return replace(report, causes=(not_stored_cause(tester.id, index.ids()),))
    conditions = _split_filter(tester.options)
    excluding = [each for each in conditions if not _selects(each, index, query, tester.id, tester.options)]
    if not excluding:
        return explain(tester, report, hits)
    kept = [each for each in conditions if each not in excluding]
    relaxed: dict[str, Any] = {"filter": None, "parameters": ()}
    if kept:
        expressions = [each.expression for each in kept]
        named = kept[0].parameters
        if len(kept) == 1:
            relaxed["filter"] = expressions[0]
        else:
            relaxed["filter"] = expressions
        if isinstance(named, Mapping):
            relaxed["parameters"] = named
        else:
            relaxed["parameters"] = tuple(v for c in kept for v in c.parameters)
    freed = Tester(partial(tester.search, **relaxed), tester.id, tester.k, replace(tester.options, **relaxed))
    inner = examine(index, query, freed, explain)
    return replace(
        report,
        causes=(_filter_cause(index, tester.id, excluding, len(conditions)), *inner.causes),
        changes=(Change(relaxed),)
        if inner.is_found
        else tuple(Change({**relaxed, **change.arguments}, change.target) for change in inner.changes),
        differences=inner.differences,
    )


class _Condition(NamedTuple):
    """One expression of a filter, and the values of its own parameters."""

    expression: str
    parameters: Parameters


def _split_filter(options: SearchOptions) -> list[_Condition]:
    if isinstance(options.filter, str):
        expressions = [options.filter]
    else:
        expressions = list(options.filter or ())
    if isinstance(options.parameters, Mapping):
        return [_Condition(each, options.parameters) for each in expressions]
    values = tuple(options.parameters)
    first = 0
    conditions = []
    for each in expressions:
        count = len(parse_filter(each).slots)
        conditions.append(_Condition(each, values[first : first + count]))
        first += count
    return conditions


def _selects(condition: _Condition, index: _Index, query: Any, id: Id, options: SearchOptions) -> bool:
    """Whether a stored document meets a condition."""
    expression, parameters = condition
    if isinstance(parameters, Mapping):
        filter = [expression, f"id = :{_ID_PARAMETER}"]
        parameters = {**parameters, _ID_PARAMETER: id}
    else:
        filter = [expression, "id = ?"]
        parameters = (*parameters, id)
    alone = SearchOptions(mode="vectors", filter=filter, parameters=parameters, filter_timeout=options.filter_timeout)
    return bool(index.find(query, 1, [], alone)[0])


def _filter_cause(index: _Index, id: Id, excluding: Sequence[_Condition], among: int) -> Cause:
    """Return the cause: the expressions that exclude a document, and its values of the fields that they name."""
    record = index.get([id])[0]
    stored = {fold_name(key): value for key, value in reversed(record.metadata.items())} | {"id": id}
    named = [name for each in excluding for name in parse_filter(each.expression).fields]
    names = [name for name in dict.fromkeys(named) if name not in ("text", "metadata")]
    values = {name: stored.get(name) for name in names}
    expressions = [each.expression for each in excluding]
    shown = ", ".join(f"{name}={value!r}" if name in stored else f"no {name}" for name, value in values.items())
    if among > 1:
        which = f" ({len(excluding)} of {among} expressions)"
    else:
        which = ""
    if shown:
        has = f"; the document has {shown}"
    else:
        has = ""
    return Cause(
        "filtered",
        f"the filter excludes it: {' and '.join(expressions)}{which}{has}",
        {"expressions": expressions, "values": values},
    )


def _by_scores(
    index: _Index, query: TokenEmbeddings, tester: Tester, report: WhyNotReport, hits: list[Hit]
) -> WhyNotReport:
    """Explain a search by vectors: by the rank of the document among all, and the stage that lost it."""
    wider = _wider_searches(index, tester.options)
    ranking = _ranking(index, tester, wider)
    if not ranking:
        return report  # removed meanwhile from an index without snapshots
    score = ranking[-1].score
    k = tester.k
    report = replace(report, exact_rank=len(ranking), score=score)
    raise_k = partial(_raise_k, tester, max(len(ranking), k + 1), wider)
    if len(hits) < k or hits[-1].id not in {hit.id for hit in ranking}:  # the document scores higher
        loss = index.find_loss(query, tester.id, k, tester.options)
        if loss is None:
            cause = Cause("not_candidate", "the search of this index does not score every document, and left it out")
            return replace(report, causes=(cause,), changes=raise_k())
        found = []
        if loss.parameter is not None:
            value = tester.smallest(loss.parameter, loss.value, loss.most)
            if value is not None:
                found.append(Change({loss.parameter: value}))
        found += [Change(change) for change in wider if tester.rank(**change) is not None][:1]
        return replace(report, causes=(loss.cause,), changes=tuple(found) or raise_k())
    higher = sum(hit.score > score for hit in ranking)
    details = {"higher": higher, "equal": len(ranking) - 1 - higher}
    if higher < k:
        text = f"{higher} documents score higher, and {details['equal']} that were added earlier score the same"
        return replace(report, causes=(Cause("tied", text, details),), changes=raise_k())
    text = f"{higher:,} document{'s score' if higher > 1 else ' scores'} higher"
    differences = token_differences(index, query[0], ranking[-1], hits[-1])
    return replace(report, causes=(Cause("scored_lower", text, details),), changes=raise_k(), differences=differences)


def token_differences(index: _Index, query: Any, mine: Hit, other: Hit) -> tuple[TokenDifference, ...]:
    """Return what each token of a query adds to the scores of two hits by vectors."""
    pair = (mine, other)
    matrices = index.get_embeddings([hit.id for hit in pair], [(hit.start, hit.end) for hit in pair])
    pairs = zip(*(align(query, matrix).similarities for matrix in matrices), strict=True)
    return tuple(TokenDifference(i, float(a), float(b)) for i, (a, b) in enumerate(pairs))


def _wider_searches(index: _Index, options: SearchOptions) -> list[dict[str, Any]]:
    """Return changes of a search that lead to more and more documents, and last to all; none for an exact index."""
    if "effort" not in index.search_options:
        return []
    reset = {name: None for name in ("nprobe", "candidates") if getattr(options, name) is not None}
    if options.effort == "exact":
        factors = []
    else:
        factors = [effort_factor(options.effort) * each for each in _WIDER]
    return [{"effort": effort, **reset} for effort in (*factors, "exact")]


def _ranking(index: _Index, tester: Tester, wider: Sequence[dict[str, Any]]) -> list[Hit]:
    """Return the ranking of all documents by their stored vectors, down to the one in question."""
    k, most = tester.k, max(tester.k, len(index))
    while True:
        hits = tester.search(k=k, **(wider[-1] if wider else {}))
        for place, hit in enumerate(hits, start=1):
            if hit.id == tester.id:
                return hits[:place]
        if k >= most:
            return []
        k = min(10 * k, most)


def _raise_k(tester: Tester, most: int, wider: Sequence[dict[str, Any]]) -> tuple[Change, ...]:
    """Return the smallest k that finds the document, as do those above it, with a higher effort if it takes one."""
    for change in ({}, *wider):
        k = tester.smallest("k", tester.k, most, **change)
        if k is not None:
            return (Change({**change, "k": k}),)
    return ()


def not_stored_cause(id: Id, ids: Sequence[Id]) -> Cause:
    """Return the cause for an id that is not among the ids of the documents, with up to three that are like it.

    These are of the other type, in other case, or spelled alike.
    """
    folded = str(id).strip().casefold()
    near = [each for each in ids if str(each).strip().casefold() == folded][:_NEAR]
    if not near and len(ids) <= _MOST_COMPARED:
        texts: dict[str, Id] = {str(each): each for each in ids if isinstance(each, str)}
        near = [texts[name] for name in difflib.get_close_matches(str(id), texts, n=_NEAR, cutoff=0.65)]
    if near:
        hint = f"; near ids: {', '.join(map(short, near))}"
    else:
        hint = ""
    return Cause("not_stored", f"no document has the id {short(id)}{hint}", {"near": near})
