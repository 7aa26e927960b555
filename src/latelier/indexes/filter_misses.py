"""Which expressions of a filter exclude a document, and the arguments of a search without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from latelier.indexes.base import Index, Parameters
from latelier.indexes.catalog.filters.grammar import parse_filter
from latelier.indexes.catalog.filters.sql import FieldName
from latelier.indexes.catalog.metadata import fold_name
from latelier.indexes.results import Id
from latelier.indexes.why_not_report import Cause

__all__ = ["Condition", "excluding_conditions", "filter_arguments", "filter_cause", "split_filter"]

# Name of the parameter that holds the document's id, beside those of the user.
_ID_PARAMETER = "latelier_document"


class Condition:
    """One expression of a filter, and the values of its own parameters.

    Parameters
    ----------
    expression
        As the user gave it.
    parameters
        A tuple with the values of its ``?``, or the user's dict.
    """

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

    Parameters
    ----------
    filter, parameters
        As in `Index.search`; they fit each other.

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
    """Return the cause: the expressions that exclude a document, and its values of the fields that they name.

    Parameters
    ----------
    index, id
        A document of the index.
    excluding
        The conditions that it does not meet.
    among
        Number of all conditions.
    """
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
