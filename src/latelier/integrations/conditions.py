"""Conditions on metadata as SQL with parameters: what the filters of other packages are translated to.

SQL has a third truth value, NULL, where a document lacks a field. Other packages have two, so `negate` counts NULL as
false first; in the other conditions NULL has the same effect as false.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.indexes.filters.parse import RESERVED, fold_name
from latelier.indexes.results import dump_json
from latelier.utils.checks import describe


class SqlCondition(NamedTuple):
    """An SQL expression and the values of its ``?``, as `Retriever.search` takes them: ``"year" = ?``, ``(2024,)``."""

    sql: str
    parameters: tuple[Any, ...] = ()


def metadata_field(*keys: str) -> SqlCondition:
    """Return a metadata value by its key, or by the keys of nested dicts."""
    for key in keys:
        if not isinstance(key, str) or not key or (len(keys) > 1 and '"' in key):
            raise InvalidArgumentError(f"received {describe(key)} as a metadata key; expected a text without quotes.")
    if len(keys) == 1 and fold_name(keys[0]) not in RESERVED:
        return SqlCondition('"' + keys[0].replace('"', '""') + '"')
    # The columns of these names hold the id, the text and all of the metadata.
    return SqlCondition("json_extract(metadata, ?)", ("$" + "".join(f'."{key}"' for key in keys),))


def equals(field: SqlCondition, value: Any) -> SqlCondition:
    """Return whether a field has a value: a number, text, bool, list or dict; None: whether it is missing or null."""
    if value is None:
        return SqlCondition(f"{field.sql} IS NULL", field.parameters)
    # A list is stored as JSON text.
    plain = dump_json(value) if isinstance(value, (list, tuple, dict)) else value
    return SqlCondition(f"{field.sql} = ?", (*field.parameters, plain))


def in_order(field: SqlCondition, operator: Literal["<", "<=", ">", ">="], value: float | str) -> SqlCondition:
    """Return whether a field is of the type of a value, number or text, and below or above it.

    Without the check of the type, SQL would have every text above every number.
    """
    types = "'text'" if isinstance(value, str) else "'integer', 'real'"
    twice = (*field.parameters, *field.parameters)
    return SqlCondition(f"(typeof({field.sql}) IN ({types}) AND {field.sql} {operator} ?)", (*twice, value))


def one_of(field: SqlCondition, values: Sequence[Any]) -> SqlCondition:
    """Return whether a field has one of some values, as of `equals`."""
    plain = [dump_json(value) if isinstance(value, (list, tuple, dict)) else value for value in values]
    given = [value for value in plain if value is not None]
    listed = SqlCondition(f"{field.sql} IN ({', '.join('?' * len(given))})", (*field.parameters, *given))
    return listed if len(given) == len(plain) else combine("OR", [listed, equals(field, None)])


def holds_element(field: SqlCondition, value: Any) -> SqlCondition:
    """Return whether a list holds a value, or a text holds a part."""
    sql, given = field
    is_list = f"iif(json_valid({sql}), {sql} GLOB '[[]*', 0)"
    inside = SqlCondition(
        f"EXISTS (SELECT 1 FROM json_each(iif({is_list}, {sql}, '[]')) WHERE value = ?)", (*given * 3, value)
    )
    if not isinstance(value, str):
        return inside
    part = SqlCondition(f"(typeof({sql}) = 'text' AND NOT {is_list} AND instr({sql}, ?) > 0)", (*given * 4, value))
    return combine("OR", [inside, part])


def is_empty(field: SqlCondition) -> SqlCondition:
    """Return whether a field is missing, null, an empty text or an empty list."""
    return SqlCondition(f"ifnull({field.sql}, '') IN ('', '[]')", field.parameters)


def combine(operator: Literal["AND", "OR"], conditions: Sequence[SqlCondition]) -> SqlCondition:
    """Return whether all conditions hold, or one does."""
    if len(conditions) == 1:
        return conditions[0]
    parameters = tuple(value for condition in conditions for value in condition.parameters)
    return SqlCondition(f"({f' {operator} '.join(condition.sql for condition in conditions)})", parameters)


def negate(condition: SqlCondition) -> SqlCondition:
    """Return whether a condition does not hold, which includes documents without its field."""
    return SqlCondition(f"(ifnull({condition.sql}, 0) = 0)", condition.parameters)
