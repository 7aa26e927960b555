"""Filters: one SQL expression over a document's metadata, evaluated by the catalog within bounds.

The columns are the metadata's keys (see `latelier.indexes.catalog.fields` for which), ``id``, ``text`` and
``metadata``, the exact JSON. A document without the key has NULL there, so ``year >= 2020`` leaves it out and ``year
IS NULL`` finds it. Booleans are 0 and 1, lists and dicts JSON text: ``EXISTS (SELECT 1 FROM json_each(tags) WHERE
value = ?)``.

An expression may come from a stranger: it is parsed by a grammar of our own
(`latelier.indexes.catalog.filters.grammar`), which bounds how long its values become; it runs for a limited time; and
SQLite refuses all but reading documents (`latelier.indexes.catalog.filters.authorizer`).
"""

from __future__ import annotations

import difflib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from latelier.errors import FilterTimeoutError, InvalidArgumentError
from latelier.indexes.base import Parameters
from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.deadlines import deadline
from latelier.indexes.catalog.fields import RESERVED, Field, known_fields
from latelier.indexes.catalog.filters.grammar import parse_filter
from latelier.indexes.catalog.filters.query import Filter, Name, join_filters
from latelier.indexes.catalog.filters.tokens import refusal, shorten
from latelier.indexes.values import fold_name
from latelier.utils.describing import short

__all__ = ["check_timeout", "matching_numbers", "read_filter"]

# Where Python can set SQLite's limits, from 3.11 on: bytes of a value, and of a pattern, since comparing may take as
# long as pattern times text.
_LIMITS = {"SQLITE_LIMIT_LENGTH": 64 << 20, "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1000}
# How the messages begin that speak of the catalog's file.
_NOT_THE_FILTER = ("database ", "disk I/O", "file is not", "unable to open")
_DOCUMENT = {
    "id": "document.id",
    "text": "(SELECT text FROM content WHERE content.number = document.number)",
    "metadata": "(SELECT metadata FROM content WHERE content.number = document.number)",
}


def read_filter(expression: str | Sequence[str], parameters: Parameters) -> tuple[Filter, tuple[Any, ...]]:
    """Return a filter and the values of its parameters.

    Parameters
    ----------
    expression, parameters
        As the user gave them.

    Raises
    ------
    InvalidArgumentError
        If the expression is not one of the grammar, or the parameters are not those that it needs.

    Examples
    --------
    >>> read_filter("year >= ?", [2020])[1]
    (2020,)
    """
    expressions = expression if isinstance(expression, (list, tuple)) else [expression]
    if not expressions or not all(isinstance(each, str) and each.strip() for each in expressions):
        raise InvalidArgumentError(
            f"received {short(expression)} as a filter; give an SQL expression such as "
            "\"year >= 2020 AND lang = 'en'\", or a list of those that must all hold."
        )
    if isinstance(parameters, (str, bytes)) or not isinstance(parameters, Iterable):
        raise InvalidArgumentError(
            f"received {type(parameters).__name__} as the filter's parameters; give a tuple of values, or a dict for "
            ":name."
        )
    filters: list[Filter] = []
    for each in expressions:
        filters.append(parse_filter(each, sum(len(filter.slots) for filter in filters)))
    filter = join_filters(filters)
    # sqlite3 knows no numpy scalars.
    return filter, tuple(value.item() if isinstance(value, np.generic) else value for value in filter.bind(parameters))


def matching_numbers(
    connection: Connection, filter: Filter, values: tuple[Any, ...], timeout: float | None = None
) -> np.ndarray:
    """Return the numbers of the documents that meet a filter, ascending.

    Parameters
    ----------
    connection
        In the reading transaction of the search.
    filter, values
        From `read_filter`.
    timeout
        Seconds; ``None`` for no limit.

    Raises
    ------
    InvalidArgumentError
        If it names an unknown field, or cannot be evaluated.
    FilterTimeoutError
        If it takes longer.
    """
    query = f"SELECT number FROM document WHERE {_condition(filter, known_fields(connection))}"

    def late() -> FilterTimeoutError:
        return FilterTimeoutError(
            f"the filter {shorten(filter.expression, 200)!r} has not come to its end within {timeout:g} seconds; ask "
            "for less, or give it more time: filter_timeout=60, or None for no limit."
        )

    end = None if timeout is None else time.monotonic() + timeout
    try:
        with connection.authorizer, _limited(connection), deadline(connection, end, late):
            return np.sort(np.fromiter((number for (number,) in connection.execute(query, values)), dtype="int64"))
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        if str(error).startswith(_NOT_THE_FILTER):
            raise
        raise InvalidArgumentError(_explain(str(error), filter)) from error


def check_timeout(timeout: object) -> float | None:
    """Return a number of seconds, or say what was given instead."""
    if timeout is None:
        return None
    if isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool) and timeout > 0:
        return float(min(timeout, 1e9))  # an integer may be larger than any float
    raise InvalidArgumentError(
        f"received filter_timeout={short(timeout)}; give a number of seconds above 0, or None for no limit."
    )


def _condition(filter: Filter, fields: Sequence[Field]) -> str:
    """Put the columns of this index in the places of the filter's names."""
    columns = {field.folded: f"document.{field.column}" for field in fields} | _DOCUMENT
    return " ".join(
        piece if isinstance(piece, str) else columns.get(fold_name(piece.token.text)) or _refuse(piece, fields)
        for piece in filter.pieces
    )


def _refuse(name: Name, fields: Sequence[Field]) -> str:
    spelled = name.token.source if name.token.kind == "word" else name.token.text
    spellings = [*(field.spelling for field in fields), *RESERVED]
    near = difflib.get_close_matches(fold_name(spelled), map(fold_name, spellings), n=1)
    hint = f". Did you mean {next(s for s in spellings if fold_name(s) == near[0])!r}?" if near else "."
    shown = ", ".join(spellings[:30]) + (f" and {len(spellings) - 30} more" if len(spellings) > 30 else "")
    quotes = " Strings take single quotes." if name.token.kind == "name" else ""
    reason = f"unknown field {shorten(spelled)!r}{hint}{quotes} The fields are: {shown}"
    raise refusal(name.expression, name.token, reason)


@contextmanager
def _limited(connection: Connection) -> Iterator[None]:
    if not hasattr(connection, "setlimit"):
        yield
        return
    before: Mapping[int, int] = {
        code: connection.setlimit(code, most)
        for code, most in ((getattr(sqlite3, name), most) for name, most in _LIMITS.items())
    }
    try:
        yield
    finally:
        for code, most in before.items():
            connection.setlimit(code, most)


def _explain(reason: str, filter: Filter) -> str:
    if "too big" in reason:
        reason += f"; here a value takes up to {_LIMITS['SQLITE_LIMIT_LENGTH'] >> 20} MiB"
    if "stack overflow" in reason or "too large (maximum depth" in reason:
        reason += "; nest less, and write many alternatives as x IN (...)"
    return f"the filter {shorten(filter.expression, 200)!r} cannot be evaluated: {shorten(reason, 300)}."
