"""Filters as SQL: their statement, the values of their parameters, their limits, and the selections that are kept.

A commit never changes, so a filter selects the same documents from it each time. Only filters that call date functions
may not; their selections are not cached.
"""

from __future__ import annotations

import difflib
import math
import re
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from latelier.errors import FilterTimeoutError, InvalidArgumentError
from latelier.indexes.filters import parse as nodes
from latelier.indexes.filters.parse import (
    COMPARISON,
    FUNCTIONS,
    LEVEL,
    NOT_LEVEL,
    RESERVED,
    Filter,
    Node,
    fold_name,
    is_nameable,
    new_fields,
    parse_filter,
    rejection,
    shorten,
    walk,
)
from latelier.indexes.options import Parameters
from latelier.indexes.store import connections
from latelier.indexes.store.connections import Connection
from latelier.indexes.store.rows import known_fields
from latelier.utils.checks import short

# Maximum length of one value, in bytes; Python 3.10 cannot set it, and SQLite's own is 1 GB.
_MOST_BYTES = 16 << 20
# Patterns are limited further, since LIKE and GLOB may take time proportional to len(pattern) * len(text).
_LIMITS = {"SQLITE_LIMIT_LENGTH": _MOST_BYTES, "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1000}
# Steps of SQLite's virtual machine between two checks of the clock: about 20 microseconds.
_STEPS = 1000
# SQLite reports LIKE and GLOB as functions.
_CALLED = {*FUNCTIONS, "like", "glob"}
_TIME_FUNCTIONS = ("date", "datetime", "julianday", "unixepoch")
# SQLite's messages about the file of the catalog begin with these; all others are about the filter.
_FILE_ERRORS = ("database ", "disk I/O", "file is not", "unable to open")
_DOCUMENT_COLUMNS = {
    "id": "document.id",
    "text": "(SELECT text FROM content WHERE content.number = document.number)",
    "metadata": "(SELECT metadata FROM content WHERE content.number = document.number)",
}


def read_filter(expression: str | Sequence[str], parameters: Parameters) -> tuple[Filter, tuple[Any, ...]]:
    """Return the parsed filter of a user, and the value of each of its parameters.

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
    filter = parse_filter(*expressions)
    if isinstance(parameters, Mapping):
        missing = [slot for slot in dict.fromkeys(filter.slots) if slot not in parameters]
        if missing:
            given = shorten(", ".join(map(repr, parameters)) or "no name", 200)
            wanted = "a ? needs a tuple of values" if None in missing else f"no value for {shorten(str(missing[0]))!r}"
            raise _failed(filter, f"received values for {given}, but {wanted}")
        values = tuple(parameters[slot] for slot in filter.slots if slot is not None)
    else:
        values = tuple(parameters)
        if len(values) != len(filter.slots):
            raise _failed(filter, f"received {len(values)} values, but expected {len(filter.slots)}")
    return filter, tuple(_plain(filter, value) for value in values)


def _plain(filter: Filter, value: Any) -> Any:
    """Return a value as Python's own number, str or None, which SQLite and Qdrant can take."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        value = value.item()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _failed(filter, "received an integer beyond 64 bits, sign included, as a value; give a float")
    if isinstance(value, float) and math.isnan(value):
        raise _failed(filter, "received NaN as a value, which no document has; IS NULL finds those without one")
    if value is None or isinstance(value, (int, float, str, bytes)):
        return value
    # Arrays SQLite would take as BLOBs, which are greater than any number and any text.
    raise _failed(
        filter,
        f"received {type(value).__name__} as a value; give a number, a str or None, a date as the text that is "
        "stored, and one ? for each value of a list: x IN (?, ?)",
    )


def _failed(filter: Filter, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the filter {shorten(filter.expression, 200)!r} cannot be evaluated: {reason}.")


# From a tree to SQL.

_COLLATE = LEVEL["||"] + 1
_SIGN = _COLLATE + 1
_PRIMARY = _SIGN + 1


def to_sql(node: Node, column: Callable[[nodes.Field], str], weakest: int = 0) -> str:  # noqa: C901 (one case a node)
    """Return the SQL of a tree, in parentheses if its operator binds weaker than `weakest`.

    `column` returns the SQL of a field.
    """

    def sql(part: Node, weakest: int = 0) -> str:
        return to_sql(part, column, weakest)

    level, no = _PRIMARY, "NOT " if getattr(node, "negated", False) else ""
    match node:
        case nodes.Literal():
            written = node.sql
        case nodes.Parameter():
            written = f"?{node.index + 1}"
        case nodes.Field():
            written = column(node)
        case nodes.ListColumn():
            written = f"list{node.number}.{node.column}"
        case nodes.Operation():
            level = LEVEL[node.operators[0].split()[0].lower()]
            written = sql(node.operands[0], level)
            for operator, operand in zip(node.operators, node.operands[1:], strict=True):
                written += f" {operator} {sql(operand, level + 1)}"
        case nodes.Not():
            level, written = NOT_LEVEL, f"NOT {sql(node.operand, NOT_LEVEL)}"
        case nodes.Sign():
            level, written = _SIGN, f"{node.sign} {sql(node.operand, _SIGN)}"
        case nodes.NoCase():
            level, written = _COLLATE, f"{sql(node.operand, _COLLATE)} COLLATE NOCASE"
        case nodes.Like():
            level = COMPARISON
            written = f"{sql(node.operand, level)} {no}{node.operator} {sql(node.pattern, level + 1)}"
            written += f" ESCAPE {sql(node.escape, level + 1)}" if node.escape else ""
        case nodes.Between():
            level = COMPARISON
            low, high = sql(node.low, level + 1), sql(node.high, level + 1)
            written = f"{sql(node.operand, level)} {no}BETWEEN {low} AND {high}"
        case nodes.In():
            level = COMPARISON
            if isinstance(node.values, nodes.Elements):
                values = _query(f"list{node.values.number}.{node.column}", node.values, column)
            else:
                values = ", ".join(map(sql, node.values))
            written = f"{sql(node.operand, level)} {no}IN ({values})"
        case nodes.Exists():
            written = f"EXISTS ({_query('1', node.elements, column)})"
        case nodes.Case():
            parts = [sql(node.base)] if node.base else []
            parts += [f"WHEN {sql(condition)} THEN {sql(value)}" for condition, value in node.cases]
            parts += [f"ELSE {sql(node.otherwise)}"] if node.otherwise else []
            written = f"CASE {' '.join(parts)} END"
        case nodes.Cast():
            written = f"CAST({sql(node.operand)} AS {node.type})"
        case nodes.Call():
            written = f"{node.name}({', '.join(map(sql, node.arguments))})"
    return f"({written})" if level < weakest else written


def _query(selected: str, elements: nodes.Elements, column: Callable[[nodes.Field], str]) -> str:
    arguments = ", ".join(to_sql(each, column) for each in elements.arguments)
    where = "" if elements.where is None else f" WHERE {to_sql(elements.where, column)}"
    return f"SELECT {selected} FROM json_each({arguments}) AS list{elements.number}{where}"


# Evaluation.


def matching_numbers(
    connection: Connection, filter: Filter, values: tuple[Any, ...], timeout: float | None = None
) -> np.ndarray:
    """Return the row ids of the documents that a filter selects, ascending.

    `connection`: in a reading transaction. Raises `FilterTimeoutError` after `timeout` seconds.
    """
    fields = known_fields(connection)
    columns = {field.folded: f"document.{field.column}" for field in fields} | _DOCUMENT_COLUMNS

    def column(field: nodes.Field) -> str:
        found = columns.get(field.name)
        return found or reject_field(field, [each.spelling for each in fields], reads_json=True)

    def late() -> FilterTimeoutError:
        return FilterTimeoutError(
            f"the filter {shorten(filter.expression, 200)!r} has not finished within {timeout:g} seconds; "
            "simplify it, or give it more time: filter_timeout=60, or None for no limit."
        )

    query = f"SELECT number FROM document WHERE {to_sql(filter.tree, column)}"
    end = None if timeout is None else time.monotonic() + timeout
    try:
        with connection.authorizer.restricted_to(_CALLED), limit_lengths(connection), deadline(connection, end, late):
            return np.sort(np.fromiter((number for (number,) in connection.execute(query, values)), dtype="int64"))
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        reason = str(error)
        if reason.startswith(_FILE_ERRORS):
            raise
        reason = shorten(reason, 300)
        if "too big" in reason:
            reason += f"; a value may have up to {_MOST_BYTES >> 20} MiB"
        if "stack overflow" in reason or "too large (maximum depth" in reason:
            reason += "; nest less, and write many alternatives as x IN (...)"
        raise _failed(filter, reason) from error


def reject_field(field: nodes.Field, fields: Sequence[str], *, reads_json: bool = False) -> NoReturn:
    """Raise the error for a field that is not among those of the index, which are given as documents spell them.

    `reads_json`: whether filters of the index can read a key without a field from the JSON, with ``->>``.
    """
    spelled = field.token.source if field.token.kind == "word" else field.token.text
    spellings = [*fields, *RESERVED]
    near = difflib.get_close_matches(field.name, map(fold_name, spellings), n=1)
    hint = f". Did you mean {next(s for s in spellings if fold_name(s) == near[0])!r}?" if near else "."
    shown = ", ".join(spellings[:30]) + (f" and {len(spellings) - 30} more" if len(spellings) > 30 else "")
    quotes = " Write strings in single quotes." if field.token.kind == "name" else ""
    unnamed = ""
    if is_nameable(field.name) and not new_fields(fields, [spelled]):  # there is no room for one more
        key = spelled if re.fullmatch(r"\w{1,60}", spelled, re.ASCII) else '"the key"'
        unnamed = f" Only the first {len(fields)} keys of the metadata are fields"
        unnamed += f"; read any other as metadata ->> '$.{key}'." if reads_json else "."
    reason = f"unknown field {shorten(spelled)!r}{hint}{unnamed}{quotes} The fields are: {shown}"
    raise rejection(field.expression, field.token, reason)


@contextmanager
def limit_lengths(connection: sqlite3.Connection) -> Iterator[None]:
    """Limit the lengths of values and patterns within a ``with`` block; before Python 3.11, do nothing."""
    if not hasattr(connection, "setlimit"):
        yield
        return
    limits = {getattr(sqlite3, name): most for name, most in _LIMITS.items()}
    before = {code: connection.setlimit(code, most) for code, most in limits.items()}
    try:
        yield
    finally:
        for code, most in before.items():
            connection.setlimit(code, most)


@contextmanager
def deadline(connection: sqlite3.Connection, end: float | None, late: Callable[[], Exception]) -> Iterator[None]:
    """Interrupt the statements of a ``with`` block after a deadline, or when a signal handler raises an exception.

    The clock is checked between steps of SQLite's virtual machine, and one step calls at most one function.
    `connection`: no other thread may be using it. `end`: as `time.monotonic` tells it; None for none. `late`: returns
    the error to raise after it.
    """
    errors: list[BaseException] = []
    watch = _watch(end, late, errors)
    next(watch)
    try:
        try:
            connection.set_progress_handler(watch.__next__, _STEPS)
            yield
        finally:
            connection.set_progress_handler(None, 0)
    except sqlite3.OperationalError:
        if not errors:
            raise
    if errors:
        raise errors[0]


def _watch(end: float | None, late: Callable[[], Exception], errors: list[BaseException]) -> Iterator[bool]:
    """Yield whether to interrupt the statement, and append the reason to `errors`.

    Python runs signal handlers when SQLite calls the progress handler, and `sqlite3` discards an exception that leaves
    this callback. Here a ``try`` catches it. This is a generator, since it resumes inside of its ``try``; a function
    could be interrupted before it enters one.
    """
    try:
        # Python also runs signal handlers when a loop jumps back: the whole loop is inside of the ``try``.
        while not errors:
            yield False
            if end is not None and time.monotonic() > end:
                raise late()
    except GeneratorExit:
        return
    except BaseException as error:  # noqa: BLE001 (`deadline` raises it when SQLite has stopped)
        errors.append(error)
    while True:
        yield True


# Selections of one commit that are kept.

# Capacity in bytes, and the size of an entry in addition to its row ids.
_CAPACITY, _OVERHEAD = 1 << 24, 1 << 10
# Types of parameters that can be part of a key.
_KEY_TYPES = frozenset({str, bytes, int, float, bool, type(None)})


def selection_key(filter: Filter, values: tuple[Any, ...]) -> Hashable | None:
    """Return the key of a filter, equal for filters that differ only in spelling; None if it must not be cached.

    Examples
    --------
    >>> key = selection_key(*read_filter("year > ?", [2020]))
    >>> key == selection_key(*read_filter("year>:y", {"y": 2020}))
    True
    >>> selection_key(*read_filter("date < date('now')", ())) is None
    True
    """
    normalized = _normalized(filter)
    types = tuple(map(type, values))  # part of the key: 1, 1.0 and True are equal in Python, but not in SQL
    return (normalized, types, values) if normalized is not None and _KEY_TYPES.issuperset(types) else None


@lru_cache(maxsize=64)
def _normalized(filter: Filter) -> str | None:
    """Return the SQL of a filter with the names of its fields; None if it may ask for the time."""
    if any(isinstance(node, nodes.Call) and node.name in _TIME_FUNCTIONS for node in walk(filter.tree)):
        return None
    return to_sql(filter.tree, lambda field: '"' + field.name.replace('"', '""') + '"')


class SelectionCache:
    """A least-recently-used cache of the row ids of selected documents."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0
        self._lock = connections.Lock()

    def find(self, key: Hashable, select: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the cached row ids of a key; if there are none, select and cache them.

        No lock is held during the call of `select`, so several threads may evaluate one filter at once.
        """
        with self._lock.current:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = select()
        size = found.nbytes + _OVERHEAD
        with self._lock.current:
            if size <= _CAPACITY and key not in self._kept:  # another thread may have selected the same meanwhile
                self._kept[key] = found
                self._bytes += size
                while self._bytes > _CAPACITY:
                    self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
        return found
