"""Filters as SQL: their statement, their limits, and the selections that are kept.

A commit never changes, so a filter selects the same documents from it each time. Only filters that call date functions
may not; their selections are not cached.
"""

from __future__ import annotations

import difflib
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from latelier.errors import FilterTimeoutError
from latelier.indexes.filters import parse as nodes
from latelier.indexes.filters.parse import (
    COMPARISON,
    FUNCTIONS,
    LEVEL,
    MOST_FIELDS,
    NOT_LEVEL,
    RESERVED,
    TIME_FUNCTIONS,
    Filter,
    Node,
    failed,
    fold_name,
    rejection,
    shorten,
    walk,
)

# Maximum length of one value, in bytes; Python 3.10 cannot set it, and SQLite's own is 1 GB.
_MOST_BYTES = 16 << 20
# Patterns are limited further, since LIKE and GLOB may take time proportional to len(pattern) * len(text).
_LIMITS = {"SQLITE_LIMIT_LENGTH": _MOST_BYTES, "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1000}
# Steps of SQLite's virtual machine between two checks of the clock: about 20 microseconds.
_STEPS = 1000
# SQLite reports LIKE and GLOB as functions.
_CALLED = {*FUNCTIONS, "like", "glob"}
# SQLite's messages about the file of the catalog begin with these; all others are about the filter.
_FILE_ERRORS = ("database ", "disk I/O", "file is not", "unable to open")
_DOCUMENT_COLUMNS = {
    "id": "document.id",
    "text": "(SELECT text FROM content WHERE content.number = document.number)",
    "metadata": "(SELECT metadata FROM content WHERE content.number = document.number)",
}


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

    level = _PRIMARY
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
        case nodes.Prefix():
            level = NOT_LEVEL if node.operator == "NOT" else _SIGN
            written = f"{node.operator} {sql(node.operand, level)}"
        case nodes.NoCase():
            level, written = _COLLATE, f"{sql(node.operand, _COLLATE)} COLLATE NOCASE"
        case nodes.In():
            level = COMPARISON
            values = (
                sql(node.values)[len("EXISTS") :]
                if isinstance(node.values, nodes.Elements)
                else f"({', '.join(map(sql, node.values))})"
            )
            written = f"{sql(node.operand, level)} IN {values}"
        case nodes.Elements():
            where = "" if node.where is None else f" WHERE {sql(node.where)}"
            arguments = ", ".join(map(sql, node.arguments))
            name = f"list{node.number}"
            written = f"EXISTS (SELECT {name}.{node.column} FROM json_each({arguments}) AS {name}{where})"
        case nodes.Case():
            parts = [sql(node.base)] if node.base else []
            parts += [f"WHEN {sql(condition)} THEN {sql(value)}" for condition, value in node.cases]
            parts += [f"ELSE {sql(node.otherwise)}"] if node.otherwise else []
            written = f"CASE {' '.join(parts)} END"
        case nodes.Call():
            type = f" AS {node.type}" if node.type else ""
            written = f"{node.name}({', '.join(map(sql, node.arguments))}{type})"
    return f"({written})" if level < weakest else written


# Evaluation.


def matching_rows(
    connection: sqlite3.Connection,
    filter: Filter,
    values: tuple[Any, ...],
    timeout: float | None,
    fields: Sequence[tuple[str, str, str]],
    restricted_to: Callable[[Collection[str]], AbstractContextManager[None]],
) -> np.ndarray:
    """Return the row ids of the documents that a filter selects, ascending; raise `FilterTimeoutError` if late.

    `fields`: folded name, spelling and column of each. `restricted_to`: lets the connection only read documents and
    call the functions of that name.
    """
    columns = {folded: f"document.{name}" for folded, _, name in fields} | _DOCUMENT_COLUMNS

    def column(field: nodes.Field) -> str:
        found = columns.get(field.name)
        return found or reject_field(field, [spelling for _, spelling, _ in fields])

    def late() -> FilterTimeoutError:
        return FilterTimeoutError(
            f"the filter {shorten(filter.expression, 200)!r} has not finished within {timeout:g} seconds.",
            advice="filter-timeout",
        )

    query = f"SELECT number FROM document WHERE {to_sql(filter.tree, column)}"
    end = None if timeout is None else time.monotonic() + timeout
    try:
        with restricted_to(_CALLED), limit_lengths(connection), deadline(connection, end, late):
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
        raise failed(filter, reason) from error


def reject_field(field: nodes.Field, fields: Sequence[str]) -> NoReturn:
    """Raise the error for a field that is not among those of the index, which are given as documents spell them."""
    spelled = field.token.source if field.token.kind == "word" else field.token.text
    spellings = {fold_name(each): each for each in (*fields, *RESERVED)}
    near = difflib.get_close_matches(field.name, spellings, n=1)
    hint = f". Did you mean {spellings[near[0]]!r}?" if near else "."
    if len(fields) >= MOST_FIELDS:
        hint += f" Only the first {MOST_FIELDS} keys of the metadata are fields; read others as metadata ->> '$.key'."
    if field.token.kind == "name":
        hint += " Write strings in single quotes."
    shown = ", ".join([*fields[:30], *RESERVED]) + (f" and {len(fields) - 30} more" if len(fields) > 30 else "")
    raise rejection(field.expression, field.token, f"unknown field {shorten(spelled)!r}{hint} The fields are: {shown}")


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
    """Return the key of a filter, equal for filters that differ only in spelling; None if it must not be cached."""
    normalized = _normalized(filter)
    types = tuple(map(type, values))  # part of the key: 1, 1.0 and True are equal in Python, but not in SQL
    return (normalized, types, values) if normalized is not None and _KEY_TYPES.issuperset(types) else None


@lru_cache(maxsize=64)
def _normalized(filter: Filter) -> str | None:
    """Return the SQL of a filter with the names of its fields; None if it may ask for the time."""
    if any(isinstance(node, nodes.Call) and node.name in TIME_FUNCTIONS for node in walk(filter.tree)):
        return None
    return to_sql(filter.tree, lambda field: '"' + field.name.replace('"', '""') + '"')


class SelectionCache:
    """A least-recently-used cache of the row ids of selected documents."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0
        # Never waited for: in a forked child, nobody might release it.
        self._lock = threading.Lock()

    def find(self, key: Hashable, select: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the cached row ids of a key; if there are none, select and cache them."""
        found = self._kept.get(key)
        if found is None:
            found = select()
        if self._lock.acquire(blocking=False):
            try:
                self._keep(key, found)
            finally:
                self._lock.release()
        return found

    def _keep(self, key: Hashable, found: np.ndarray) -> None:
        if key in self._kept:
            self._kept.move_to_end(key)
        elif found.nbytes + _OVERHEAD <= _CAPACITY:
            self._kept[key] = found
            self._bytes += found.nbytes + _OVERHEAD
            while self._bytes > _CAPACITY:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
