"""`llamaindex_filter`: metadata filters of LlamaIndex as SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from latelier.errors import InvalidArgumentError, MissingExtraError
from latelier.integrations.conditions import (
    SqlCondition,
    combine,
    equals,
    holds_element,
    in_order,
    is_empty,
    metadata_field,
    negate,
    one_of,
)
from latelier.utils.checks import describe

try:
    from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
except ImportError as error:
    raise MissingExtraError("Searching from LlamaIndex", "llamaindex") from error

__all__ = ["llamaindex_filter"]


def llamaindex_filter(filters: MetadataFilters) -> SqlCondition | None:
    """Translate filters, which may be nested.

    Parameters
    ----------
    filters
        The filters. Of a list, ``any``, ``all`` and ``contains`` compare the elements, and of a text its parts.
        ``text_match_insensitive`` ignores the case of ASCII letters.

    Returns
    -------
    SqlCondition or None
        None if there is no filter.

    Raises
    ------
    InvalidArgumentError
        If they are not `MetadataFilters`, or a value does not fit its operator.

    Examples
    --------
    >>> recent = MetadataFilter(key="year", operator=">=", value=2020)
    >>> llamaindex_filter(MetadataFilters(filters=[recent])).parameters
    (2020,)
    """
    if not isinstance(filters, MetadataFilters):
        raise InvalidArgumentError(
            f"received {describe(filters)} as filters; expected MetadataFilters(filters=[MetadataFilter(...), ...])."
        )
    conditions = [
        llamaindex_filter(each) if isinstance(each, MetadataFilters) else _condition(each) for each in filters.filters
    ]
    given = [condition for condition in conditions if condition is not None]
    if not given:
        return None
    if filters.condition is FilterCondition.NOT:  # none of them holds
        return negate(combine("OR", given))
    return combine("OR" if filters.condition is FilterCondition.OR else "AND", given)


_LISTS = (FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL)
_TEXTS = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)
_ORDERS: dict[FilterOperator, Literal["<", "<=", ">", ">="]] = {
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
}
_CONDITIONS: dict[FilterOperator, Callable[[SqlCondition, Any], SqlCondition]] = {
    FilterOperator.EQ: equals,
    FilterOperator.NE: lambda field, value: negate(equals(field, value)),
    FilterOperator.IN: one_of,
    FilterOperator.NIN: lambda field, values: negate(one_of(field, values)),
    FilterOperator.CONTAINS: holds_element,
    FilterOperator.ANY: lambda field, values: combine("OR", [holds_element(field, value) for value in values]),
    FilterOperator.ALL: lambda field, values: combine("AND", [holds_element(field, value) for value in values]),
    FilterOperator.IS_EMPTY: lambda field, _: is_empty(field),
    FilterOperator.TEXT_MATCH: lambda field, part: _matches(field, "{}", part),
    FilterOperator.TEXT_MATCH_INSENSITIVE: lambda field, part: _matches(field, "lower({})", part),
}


def _condition(filter: MetadataFilter) -> SqlCondition:
    field, operator, value = metadata_field(filter.key), FilterOperator(filter.operator), filter.value
    if operator in _LISTS and not (isinstance(value, list) and value):
        raise _wrong_value(filter, "a list that is not empty")
    if operator in _TEXTS and not isinstance(value, str):
        raise _wrong_value(filter, "a text")
    if operator in _ORDERS:
        if not isinstance(value, (int, float, str)):
            raise _wrong_value(filter, "a number or a text")
        return in_order(field, _ORDERS[operator], value)
    return _CONDITIONS[operator](field, value)


def _matches(field: SqlCondition, form: str, part: str) -> SqlCondition:
    sql = f"(typeof({field.sql}) = 'text' AND instr({form.format(field.sql)}, {form.format('?')}) > 0)"
    return SqlCondition(sql, (*field.parameters * 2, part))


def _wrong_value(filter: MetadataFilter, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"received {describe(filter.value)} as the value of the filter {filter.key!r} {filter.operator.value}; "
        f"expected {expected}."
    )
