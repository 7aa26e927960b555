"""Evaluating filters within their limits.

A commit never changes, so a filter selects the same documents from it each time. Only filters that call date functions
may not; their selections are not cached.
"""

from __future__ import annotations

import difflib
import re
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from latelier.errors import FilterTimeoutError, InvalidArgumentError
from latelier.indexes.base import Parameters
from latelier.indexes.filters.grammar import (
    FUNCTIONS,
    FieldName,
    Filter,
    join_filters,
    parse_filter,
    rejection,
    shorten,
)
from latelier.indexes.store import connections
from latelier.indexes.store.connections import Connection
from latelier.indexes.store.rows import RESERVED, Field, fold_name, is_nameable, known_fields, new_fields
from latelier.utils.checks import short

__all__ = [
    "MOST_BYTES",
    "SelectionCache",
    "deadline",
    "limit_lengths",
    "matching_numbers",
    "read_filter",
    "reject_field",
    "selection_key",
]

# Maximum length of one value, in bytes.
MOST_BYTES = 64 << 20
# Patterns are limited further, since LIKE and GLOB may take time proportional to len(pattern) * len(text).
_LIMITS = {"SQLITE_LIMIT_LENGTH": MOST_BYTES, "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 1000}
# Steps of SQLite's virtual machine between two checks of the clock: about 20 microseconds.
_STEPS = 1000


@contextmanager
def limit_lengths(connection: sqlite3.Connection) -> Iterator[None]:
    """Limit the lengths of values and patterns within a ``with`` block; before Python 3.11, do nothing."""
    if not hasattr(connection, "setlimit"):  # new in Python 3.11
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
    `connection`: a connection that no other thread is using. `end`: the deadline as a value of `time.monotonic`;
    ``None`` for none. `late`: returns the error to raise after the deadline.
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


# SQLite's messages about the file of the catalog begin with these; all others are about the filter.
_FILE_ERRORS = ("database ", "disk I/O", "file is not", "unable to open")
_DOCUMENT_COLUMNS = {
    "id": "document.id",
    "text": "(SELECT text FROM content WHERE content.number = document.number)",
    "metadata": "(SELECT metadata FROM content WHERE content.number = document.number)",
}


def read_filter(expression: str | Sequence[str], parameters: Parameters) -> tuple[Filter, tuple[Any, ...]]:
    """Parse a filter; return it with the values of its parameters.

    Returns: the parsed filter, and the value of each of its parameters.

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

    `connection`: in a reading transaction. `filter`, `values`: from `read_filter`. `timeout`: seconds; ``None`` for no
    limit. Raises `FilterTimeoutError` if it takes longer than `timeout`.
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

    `fields`: the fields of the index, as the first document spells each; `reads_json`: whether filters of the index can
    read a key without a field from the JSON, with ``->>``.
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


# Capacity of the cache of one commit, in bytes, and the size of an entry in addition to its numbers.
_CAPACITY, _OVERHEAD = 1 << 24, 1 << 10
# Types of parameters that can be part of a key.
_KEY_TYPES = frozenset({str, bytes, int, float, bool, type(None)})


def selection_key(filter: Filter, values: tuple[Any, ...]) -> Hashable | None:
    """Return the key of a filter, equal for filters that differ only in spelling; ``None`` if it must not be cached.

    `filter`, `values`: from `latelier.indexes.filters.evaluation.read_filter`.

    Examples
    --------
    >>> from latelier.indexes.filters.evaluation import read_filter
    >>> key = selection_key(*read_filter("year > ?", [2020]))
    >>> key == selection_key(*read_filter("year>:y", {"y": 2020}))
    True
    >>> selection_key(*read_filter("date < date('now')", ())) is None
    True
    """
    if filter.depends_on_time:
        return None
    types = tuple(map(type, values))  # part of the key: 1, 1.0 and True are equal in Python, but not in SQL
    return (filter.normalized, types, values) if _KEY_TYPES.issuperset(types) else None


class SelectionCache:
    """A least-recently-used cache of the numbers of selected documents."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0
        self._lock = connections.Lock()

    def find(self, key: Hashable, select: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the cached numbers of a key; if there are none, select and cache them.

        `key`: from `selection_key`. `select`: evaluates the filter. No lock is held during the call, so several threads
        may evaluate one filter at once.
        """
        with self._lock.current:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = select()
        if found.nbytes + _OVERHEAD <= _CAPACITY:
            self._keep(key, found)
        return found

    def _keep(self, key: Hashable, found: np.ndarray) -> None:
        with self._lock.current:
            if key in self._kept:  # another thread has selected the same meanwhile
                return
            self._kept[key] = found
            self._bytes += found.nbytes + _OVERHEAD
            while self._bytes > _CAPACITY:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes + _OVERHEAD
