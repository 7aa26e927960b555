"""`haystack_filter`: the filters of Haystack's document stores as SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, timezone
from typing import Any

from latelier.errors import MissingExtraError
from latelier.indexes.catalog.values import INT64
from latelier.integrations.conditions import SqlCondition, combine, equals, in_order, metadata_field, negate, one_of
from latelier.utils.checks import describe

try:
    from haystack.errors import FilterError
except ImportError as error:
    raise MissingExtraError("Searching from Haystack", "haystack") from error

__all__ = ["haystack_filter"]

_ID = SqlCondition("id")
# The id of a passage is JSON that begins with the id of its document; others may have added documents without passages.
_PASSAGE_ID = SqlCondition("iif(json_valid(id), ifnull(id ->> 0, id), id)")
_INTEGER = re.compile("0|-?[1-9][0-9]*")
_COMPARISONS = ("==", "!=", ">", ">=", "<", "<=", "in", "not in")


def haystack_filter(filters: Mapping[str, Any], *, passages: bool = False) -> SqlCondition:
    """Translate filters, in the form that Haystack documents for document stores.

    Parameters
    ----------
    filters
        A comparison, ``{"field", "operator", "value"}``, or a logical operation, ``{"operator", "conditions"}``. A date
        or datetime, or a text that begins with a year and ``-`` and that `datetime.fromisoformat` reads, is compared as
        a point in time, to the millisecond; one without a time zone is in UTC. The field ``id`` is that of the
        document, whose ids are str in Haystack: ``"7"`` is also the document 7 of the index.
    passages
        Whether the index has passages of documents.

    Returns
    -------
    SqlCondition
        The condition; documents without the field of a comparison fulfil ``!=`` and ``not in`` only.

    Raises
    ------
    haystack.errors.FilterError
        If they have another form, or a value that the operator does not compare.

    Examples
    --------
    >>> german = {"field": "meta.lang", "operator": "==", "value": "de"}
    >>> haystack_filter({"operator": "NOT", "conditions": [german]})
    SqlCondition(sql='(ifnull("lang" = ?, 0) = 0)', parameters=('de',))
    """
    if not isinstance(filters, Mapping):
        raise FilterError(f"received {describe(filters)} as filters; expected a dict.")
    return _comparison(filters, passages) if "field" in filters else _operation(filters, passages)


def _operation(filters: Mapping[str, Any], passages: bool) -> SqlCondition:
    for key in ("operator", "conditions"):
        if key not in filters:
            raise FilterError(f"'{key}' key missing in {describe(filters)}; a comparison needs 'field' too.")
    operator, given = filters["operator"], filters["conditions"]
    if operator not in ("AND", "OR", "NOT"):
        raise FilterError(f"received the operator {describe(operator)}; expected 'AND', 'OR' or 'NOT'.")
    if not isinstance(given, (list, tuple)) or not given:
        raise FilterError(f"received {describe(given)} as conditions; expected a list that is not empty.")
    conditions = [haystack_filter(condition, passages=passages) for condition in given]
    return combine("OR", conditions) if operator == "OR" else _all(conditions, is_negated=operator == "NOT")


def _all(conditions: list[SqlCondition], *, is_negated: bool) -> SqlCondition:
    every = combine("AND", conditions)
    return negate(every) if is_negated else every


def _comparison(filters: Mapping[str, Any], passages: bool) -> SqlCondition:
    for key in ("operator", "value"):
        if key not in filters:
            raise FilterError(f"'{key}' key missing in {describe(filters)}.")
    operator, value = filters["operator"], filters["value"]
    if operator not in _COMPARISONS:
        raise FilterError(f"received the operator {describe(operator)}; expected one of {', '.join(_COMPARISONS)}.")
    field = _field(filters["field"], passages)
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"received {describe(value)} as the value of '{operator}'; expected a list.")
        found = _one_of(field, value)
        return found if operator == "in" else negate(found)
    if operator in ("==", "!="):
        found = _one_of(field, [value])
        return found if operator == "==" else negate(found)
    return _in_order(field, operator, value)


def _field(name: Any, passages: bool) -> SqlCondition:
    if not isinstance(name, str) or not name:
        raise FilterError(f"received {describe(name)} as a field; expected a text such as 'meta.year'.")
    if name == "id":
        return _PASSAGE_ID if passages else _ID
    if name == "content":
        return SqlCondition("text")
    # As in Haystack, names without "meta." are metadata keys too.
    return metadata_field(*name.removeprefix("meta.").split("."))


def _one_of(field: SqlCondition, values: list[Any]) -> SqlCondition:
    plain = [value.isoformat() if isinstance(value, date) else value for value in values]
    if field in (_ID, _PASSAGE_ID):
        plain += [int(value) for value in plain if _spells_integer(value)]
    found = equals(field, plain[0]) if len(plain) == 1 else one_of(field, plain)
    times = [time for time in map(_utc_time, values) if time is not None]
    if not times:
        return found
    listed = ", ".join(["julianday(?)"] * len(times))
    return combine("OR", [found, _compare_times(field, f"IN ({listed})", times)])


def _spells_integer(id: Any) -> bool:
    """Whether an id of Haystack is that of a document with an int as its id."""
    # Python does not convert integers of thousands of digits, and an index has none beyond 64 bits.
    return isinstance(id, str) and len(id) <= 20 and bool(_INTEGER.fullmatch(id)) and int(id) in INT64


def _in_order(field: SqlCondition, operator: Any, value: Any) -> SqlCondition:
    if value is None:
        return SqlCondition("0")  # nothing is above or below None
    time = _utc_time(value)
    if time is not None:
        return _compare_times(field, f"{operator} julianday(?)", [time])
    if not isinstance(value, (int, float)):
        raise FilterError(f"received {describe(value)} for '{operator}'; expected a number or an ISO 8601 date.")
    return in_order(field, operator, value)


def _compare_times(field: SqlCondition, comparison: str, times: list[str]) -> SqlCondition:
    """Return whether a field is a text of a date that SQLite reads, and the comparison holds for its point in time."""
    # SQLite also reads numbers, 'now', a time of day alone and 31 February: none of them is the day that it is read as.
    day = f"substr({field.sql}, 1, 10)"
    is_date = f"date({day}, '+0 days') = {day}"
    return SqlCondition(f"({is_date} AND julianday({field.sql}) {comparison})", (*field.parameters * 3, *times))


def _utc_time(value: Any) -> str | None:
    """Return a date, or a text of one, in the form that SQLite reads; None for other values."""
    if isinstance(value, date):
        text = value.isoformat()
    elif isinstance(value, str) and value[:4].isdigit() and value[4:5] == "-":
        text = value.replace("Z", "+00:00")  # Python 3.10 does not read Z
    else:
        return None
    try:
        time = datetime.fromisoformat(text)
        aware = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
        return aware.astimezone(timezone.utc).isoformat()
    except (ValueError, OverflowError):  # the first or last day that Python knows may have no time in UTC
        return None
