"""Filters: one SQL expression over a document's metadata, evaluated by the catalog, read-only.

The columns are the metadata's keys (see `latelier.indexes.fields` for which), ``id``, ``text`` and ``metadata``, the
exact JSON. A document without the key has NULL there, so ``year >= 2020`` leaves it out and ``year IS NULL`` finds
it. Booleans are 0 and 1, lists and dicts JSON text: ``EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)``.

Values belong into `parameters`. An expression from a stranger is still held within bounds: it must be balanced by
itself, so that it cannot close the parenthesis around it, and SQLite refuses all but reading documents (`Gate`).
"""

from __future__ import annotations

import difflib
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes.base import Parameters
from latelier.indexes.fields import RESERVED, Field, known_fields
from latelier.indexes.gate import FUNCTIONS
from latelier.indexes.sqlite import Connection
from latelier.indexes.values import fold_name

__all__ = ["matching_numbers"]

# Everything in which a parenthesis, a semicolon or a quote is not what it looks like; and those characters themselves.
_TOKEN = re.compile(
    r"""
    '(?:[^']|'')*' | (?P<name>"(?:[^"]|"")*") | `(?:[^`]|``)*` | \[[^\]]*\] | --[^\n]* | /\*.*?\*/
    | (?P<mark>[();'"`\[\0]) | /\*
    """,
    re.VERBOSE | re.DOTALL,
)


def matching_numbers(connection: Connection, expression: str, parameters: Parameters) -> np.ndarray:
    """Return the numbers of the documents that meet a filter, ascending.

    Parameters
    ----------
    connection
        In the reading transaction of the search.
    expression, parameters
        As the user gave them.

    Raises
    ------
    InvalidArgumentError
        If the expression is not exactly one, names an unknown field, or does what a filter may not.
    """
    fields = known_fields(connection)
    _check_expression(expression, fields)
    query = _query(expression, fields)
    try:
        with connection.gate:
            rows = connection.execute(query, _plain(parameters))
            return np.sort(np.fromiter((number for (number,) in rows), dtype="int64"))
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        raise InvalidArgumentError(_explain(str(error), expression, fields)) from error


def _query(expression: str, fields: Sequence[Field]) -> str:
    """Put the expression around a view of the documents that calls every column by its key."""
    number = "number"
    while number in {field.folded for field in fields}:
        number += "_"
    content = "(SELECT {0} FROM content WHERE content.number = document.number) AS {0}"
    columns = [
        f"number AS {number}",
        "id",
        content.format("text"),
        content.format("metadata"),
        *(f"{field.column} AS {_quote(field.folded)}" for field in fields),
    ]
    # The line break ends a comment that the expression may end with.
    return f"SELECT {number} FROM (SELECT {', '.join(columns)} FROM document) WHERE ({expression}\n)"


def _check_expression(expression: object, fields: Sequence[Field]) -> None:
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidArgumentError(
            f"received {expression!r} as a filter; give an SQL expression such as \"year >= 2020 AND lang = 'en'\"."
        )
    depth = 0
    for token in _TOKEN.finditer(expression):
        mark = token["mark"]
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if depth < 0 or (mark and mark not in "()") or token[0] == "/*":
            raise InvalidArgumentError(
                f"the filter {expression!r} is not one SQL expression: {token[0]!r} at character {token.start()} has "
                "no counterpart or ends the statement."
            )
        # SQLite would take a name it does not know, in double quotes, for a string.
        if token["name"] and fold_name(token["name"][1:-1].replace('""', '"')) not in _names(fields):
            raise InvalidArgumentError(
                _unknown(token["name"][1:-1], expression, fields) + " Strings take single quotes."
            )
    if depth:
        raise InvalidArgumentError(f"the filter {expression!r} is not one SQL expression: {depth} ')' missing.")


def _explain(reason: str, expression: str, fields: Sequence[Field]) -> str:
    unknown = re.fullmatch(r"no such column: (.*)", reason, re.DOTALL)
    if unknown:
        return _unknown(unknown[1], expression, fields)
    if "not authorized" in reason or "prohibited" in reason:
        return (
            f"the filter {expression!r} is refused: {reason}. Filters read the documents' columns and call only these "
            f"functions: {', '.join(sorted(FUNCTIONS))}."
        )
    return f"the filter {expression!r} cannot be evaluated: {reason}."


def _unknown(name: str, expression: str, fields: Sequence[Field]) -> str:
    spellings = [*(field.spelling for field in fields), *RESERVED]
    near = difflib.get_close_matches(fold_name(name), map(fold_name, spellings), n=1)
    hint = f" Did you mean {next(s for s in spellings if fold_name(s) == near[0])!r}?" if near else ""
    shown = ", ".join(spellings[:30]) + (f" and {len(spellings) - 30} more" if len(spellings) > 30 else "")
    return f"the filter {expression!r} names the unknown field {name!r}.{hint} The fields are: {shown}."


def _names(fields: Iterable[Field]) -> set[str]:
    return {*(field.folded for field in fields), *RESERVED}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _plain(parameters: Parameters) -> Any:
    """Turn numpy scalars into Python's: sqlite3 knows only those."""
    if isinstance(parameters, Mapping):
        return {name: _plain_value(value) for name, value in parameters.items()}
    if isinstance(parameters, str) or not isinstance(parameters, Iterable):
        raise InvalidArgumentError(
            f"received {type(parameters).__name__} as the filter's parameters; give a tuple of values, or a dict for "
            ":name."
        )
    return tuple(_plain_value(value) for value in parameters)


def _plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
