"""Evaluation of filters: parse an expression, turn it into SQL for one index, and select the documents that meet it."""

from __future__ import annotations

import difflib
import re
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from latelier.errors import FilterTimeoutError, InvalidArgumentError
from latelier.indexes.base import Parameters
from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.filters.bounds import MOST_BYTES, deadline, limit_lengths
from latelier.indexes.catalog.filters.functions import FUNCTIONS
from latelier.indexes.catalog.filters.grammar import parse_filter
from latelier.indexes.catalog.filters.sql import FieldName, Filter, join_filters
from latelier.indexes.catalog.filters.tokens import rejection, shorten
from latelier.indexes.catalog.metadata import RESERVED, Field, fold_name, is_nameable, known_fields, new_fields
from latelier.utils.checks import short

__all__ = ["matching_numbers", "read_filter", "reject_field"]

# SQLite's messages about the file of the catalog begin with these; all others are about the filter.
_FILE_ERRORS = ("database ", "disk I/O", "file is not", "unable to open")
_DOCUMENT_COLUMNS = {
    "id": "document.id",
    "text": "(SELECT text FROM content WHERE content.number = document.number)",
    "metadata": "(SELECT metadata FROM content WHERE content.number = document.number)",
}


def read_filter(expression: str | Sequence[str], parameters: Parameters) -> tuple[Filter, tuple[Any, ...]]:
    """Parse a filter; return it with the values of its parameters.

    Parameters
    ----------
    expression, parameters
        As the user gave them.

    Returns
    -------
    tuple
        The parsed filter, and the value of each of its parameters.

    Raises
    ------
    InvalidArgumentError
        If an expression is outside of the grammar, or the parameters do not fit the filter in number or names.

    Examples
    --------
    >>> read_filter("year >= ?", [2020])[1]
    (2020,)
    """
    expressions = expression if isinstance(expression, (list, tuple)) else [expression]
    if not expressions or not all(isinstance(each, str) and each.strip() for each in expressions):
        raise InvalidArgumentError(
            f"received {short(expression)} as a filter; give an SQL expression such as "
            "\"year >= 2020 AND lang = 'en'\", or a list of expressions that must all hold."
        )
    # A set has no order, in which its values could be given to several ?.
    if isinstance(parameters, (str, bytes, set, frozenset)) or not isinstance(parameters, Iterable):
        raise InvalidArgumentError(
            f"received {type(parameters).__name__} as the filter's parameters; give a tuple of values, or a dict for "
            ":name."
        )
    filters: list[Filter] = []
    for each in expressions:
        filters.append(parse_filter(each, sum(len(filter.slots) for filter in filters)))
    filter = join_filters(filters)
    return filter, filter.bind(parameters)


def matching_numbers(
    connection: Connection, filter: Filter, values: tuple[Any, ...], timeout: float | None = None
) -> np.ndarray:
    """Return the numbers of the documents that a filter selects, ascending.

    Parameters
    ----------
    connection
        In a reading transaction.
    filter, values
        From `read_filter`.
    timeout
        Seconds; ``None`` for no limit.

    Raises
    ------
    InvalidArgumentError
        If the filter names an unknown field, or cannot be evaluated.
    FilterTimeoutError
        If it takes longer than `timeout`.
    """
    query = f"SELECT number FROM document WHERE {_condition(filter, known_fields(connection))}"

    def late() -> FilterTimeoutError:
        return FilterTimeoutError(
            f"the filter {shorten(filter.expression, 200)!r} has not finished within {timeout:g} seconds; "
            "simplify it, or give it more time: filter_timeout=60, or None for no limit."
        )

    end = None if timeout is None else time.monotonic() + timeout
    try:
        with connection.authorizer.restricted_to(FUNCTIONS), limit_lengths(connection), deadline(connection, end, late):
            return np.sort(np.fromiter((number for (number,) in connection.execute(query, values)), dtype="int64"))
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        if str(error).startswith(_FILE_ERRORS):
            raise
        raise InvalidArgumentError(_explain(str(error), filter)) from error


def _condition(filter: Filter, fields: Sequence[Field]) -> str:
    """Return the SQL of a filter, in which the names of fields are replaced by the columns of this index."""
    columns = {field.folded: f"document.{field.column}" for field in fields} | _DOCUMENT_COLUMNS
    return " ".join(
        piece
        if isinstance(piece, str)
        else columns.get(fold_name(piece.token.text))
        or reject_field(piece, [field.spelling for field in fields], reads_json=True)
        for piece in filter.pieces
    )


def reject_field(name: FieldName, fields: Sequence[str], *, reads_json: bool = False) -> NoReturn:
    """Raise the error for a field that the index does not have.

    Parameters
    ----------
    name
        The field, in the filter.
    fields
        The fields of the index, as the first document spells each.
    reads_json
        Whether filters of the index can read a key without a field from the JSON, with ``->>``.
    """
    spelled = name.token.source if name.token.kind == "word" else name.token.text
    spellings = [*fields, *RESERVED]
    near = difflib.get_close_matches(fold_name(spelled), map(fold_name, spellings), n=1)
    hint = f". Did you mean {next(s for s in spellings if fold_name(s) == near[0])!r}?" if near else "."
    shown = ", ".join(spellings[:30]) + (f" and {len(spellings) - 30} more" if len(spellings) > 30 else "")
    quotes = " Write strings in single quotes." if name.token.kind == "name" else ""
    unnamed = ""
    if is_nameable(fold_name(spelled)) and not new_fields(fields, [spelled]):  # there is no room for one more
        unnamed = f" Only the first {len(fields)} keys of the metadata are fields"
        unnamed += f"; read any other as {_json_value(spelled)}." if reads_json else "."
    reason = f"unknown field {shorten(spelled)!r}{hint}{unnamed}{quotes} The fields are: {shown}"
    raise rejection(name.expression, name.token, reason)


def _json_value(key: str) -> str:
    """Return the SQL that reads the value of a key from the JSON of the metadata."""
    if re.fullmatch(r"\w{1,60}", key, re.ASCII):
        return f"metadata ->> '$.{key}'"
    return "metadata ->> '$.\"the key\"'"


def _explain(reason: str, filter: Filter) -> str:
    if "too big" in reason:
        reason += f"; a value may have up to {MOST_BYTES >> 20} MiB"
    if "stack overflow" in reason or "too large (maximum depth" in reason:
        reason += "; nest less, and write many alternatives as x IN (...)"
    return f"the filter {shorten(filter.expression, 200)!r} cannot be evaluated: {shorten(reason, 300)}."
