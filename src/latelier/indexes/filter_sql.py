"""Filters as SQL statements that end in time: a step of SQLite's virtual machine may compare only so many bytes."""

from __future__ import annotations

import difflib
import math
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import numpy as np

from latelier.errors import FilterTimeoutError
from latelier.indexes.fields import MOST_FIELDS, RESERVED, fold_name
from latelier.indexes.filters import (
    FUNCTIONS,
    Elements,
    Field,
    Filter,
    ListColumn,
    Literal,
    Node,
    Operation,
    Parameter,
    failed,
    rejection,
    walk,
)
from latelier.utils.checks import cut
from latelier.utils.misc import warn_caller

# SQLite reports LIKE and GLOB as functions.
CALLED = {*FUNCTIONS, "like", "glob"}
# SQLite's messages about the file of the catalog begin with these; all others are about the filter.
_FILE_ERRORS = ("database ", "disk I/O", "file is not", "unable to open")
_NEST_LESS = "; nest less, and write many alternatives as x IN (...)"
_DOCUMENT_COLUMNS = {
    "id": "document.id",
    "text": "(SELECT text FROM content WHERE content.number = document.number)",
    "metadata": "(SELECT metadata FROM content WHERE content.number = document.number)",
}


def to_sql(node: Node, column: Callable[[Field], str]) -> str:
    """Return the SQL of a tree, in which `column` gives the SQL of a field."""
    match node:
        case Literal():
            return node.sql
        case Parameter():
            return f"?{node.index + 1}"
        case Field():
            return column(node)
        case ListColumn():
            return f"list{node.number}.{node.column}"
        case Elements():
            arguments = ", ".join(to_sql(each, column) for each in node.operands)
            if node.where is None:
                where = ""
            else:
                where = f" WHERE {to_sql(node.where, column)}"
            name = f"list{node.number}"
            return f"(SELECT {name}.{node.column} FROM json_each({arguments}) AS {name}{where})"
    written = node.words[0]
    for operand, word in zip(node.operands, node.words[1:], strict=True):
        sql = to_sql(operand, column)
        if written and not written.endswith("("):
            written += " "
        if _is_open(node) and _is_open(operand):
            written += f"({sql})"
        else:
            written += sql
        written += word if word in ("", ",", ")") else f" {word}"
    return written


def _is_open(node: Node) -> bool:
    """Whether a tree begins or ends with an operand, which an operator beside it could take."""
    return isinstance(node, Operation) and not (node.words[0] and node.words[-1])


# Evaluation.


def matching_rows(
    connection: sqlite3.Connection,
    filter: Filter,
    values: tuple[Any, ...],
    timeout: float | None,
    fields: Sequence[tuple[str, str, str]],
    restricted_to: Callable[[Collection[str]], AbstractContextManager[None]],
) -> np.ndarray:
    """Return the row ids of the documents that a filter selects, ascending; raise `FilterTimeoutError` if late."""
    query = f"SELECT number FROM document WHERE {row_condition(filter, fields)}"
    with restricted_to(CALLED), bounded(connection, filter, values, timeout):
        found = np.sort(np.fromiter((number for (number,) in connection.execute(query, values)), dtype="int64"))
    if not len(found):
        _tell_lists(connection, filter, {folded: (spelling, name) for folded, spelling, name in fields})
    return found


def _tell_lists(connection: sqlite3.Connection, filter: Filter, columns: Mapping[str, tuple[str, str]]) -> None:
    """Warn of a filter that selects nothing, as it compares a value with a field that holds lists."""
    for node in walk(filter.tree):
        if not isinstance(node, Operation) or not "".join(node.words[1:2]).startswith(("=", "IN")):
            continue
        for field in node.operands[:2]:
            if not isinstance(field, Field) or field.name not in columns:
                continue
            spelling, name = columns[field.name]
            (is_list,) = connection.execute(
                f"SELECT EXISTS (SELECT 1 FROM (SELECT {name} AS value FROM document WHERE {name} IS NOT NULL LIMIT 1) "
                "WHERE value LIKE '[%' AND json_valid(value))"
            ).fetchone()
            if is_list:
                warn_caller(
                    f"the filter {cut(filter.expression)!r} selects no document, and {spelling} holds lists, of which "
                    f"it compares the whole; to look for an element: 'x' IN (SELECT value FROM json_each({spelling}))"
                )
                return


def row_condition(filter: Filter, fields: Sequence[tuple[str, str, str]]) -> str:
    """Return what holds for the rows of the table ``document`` that a filter selects, as SQL."""
    columns = {folded: f"document.{name}" for folded, _, name in fields} | _DOCUMENT_COLUMNS

    def column(field: Field) -> str:
        found = columns.get(field.name)
        return found or reject_field(field, [spelling for _, spelling, _ in fields])

    return to_sql(filter.tree, column)


def reject_field(field: Field, fields: Sequence[str]) -> NoReturn:
    """Raise the error for a field that is not among those of the index, which are given as documents spell them."""
    if field.token.kind == "word":
        spelled = field.token.source
    else:
        spelled = field.token.text
    spellings = {fold_name(each): each for each in (*fields, *RESERVED)}
    near = difflib.get_close_matches(field.name, spellings, n=1)
    if near:
        hint = f". Did you mean {spellings[near[0]]!r}?"
    else:
        hint = "."
    if len(fields) >= MOST_FIELDS:
        hint += f" Only the first {MOST_FIELDS} keys of the metadata are fields; read others as metadata ->> '$.key'."
    if field.token.kind == "name" or not near:
        hint += " Write strings in single quotes."
    shown = ", ".join([*fields[:30], *RESERVED]) + (f" and {len(fields) - 30} more" if len(fields) > 30 else "")
    raise rejection(field.expression, field.token, f"unknown field {cut(spelled)!r}{hint} The fields are: {shown}")


# Limits. The clock is looked at between steps of SQLite's virtual machine, and one step calls at most one function: the
# lengths of values are limited so that this takes 0.2 seconds at most, and that all values together fit into memory.

# Bytes of one value, and of all together; pairs of bytes that a step may compare.
_MOST_BYTES = 1 << 24
_MOST_MEMORY = 1 << 28
_MOST_PAIRS = 1 << 25
_MOST_PATTERN = 1000
# instr() and replace() compare this many bytes in the time of one in LIKE and trim(); parsing a byte of JSON takes that
# of some.
_FAST = 64
_JSON = 4
# Steps between two looks at the clock: about 2 microseconds. Fewer, if one of them may take long.
_STEPS = 100
_FEW_STEPS = 20


@contextmanager
def bounded(
    connection: sqlite3.Connection, filter: Filter, values: Sequence[Any], timeout: float | None
) -> Iterator[None]:
    """Limit the time and the memory of a filter's statement in a ``with`` block; explain its errors.

    It ends after `timeout` seconds with `FilterTimeoutError`, and when a signal handler raises an exception. Before
    Python 3.11, SQLite's own limits of lengths hold. `connection`: no other thread may be using it.
    """
    if timeout is None:
        end = math.inf
    else:
        end = time.monotonic() + timeout

    def check_time() -> None:
        if time.monotonic() > end:
            raise FilterTimeoutError(
                f"the filter {cut(filter.expression, 200)!r} has not finished within {timeout:g} seconds.",
                advice="filter-timeout",
            )

    errors: list[BaseException] = []
    watch = _watch(check_time, errors)
    next(watch)
    most = _most_bytes(filter, values)
    limits = {"SQLITE_LIMIT_LENGTH": most, "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": _MOST_PATTERN}
    before = {}
    try:
        try:
            if hasattr(connection, "setlimit"):
                before = {name: connection.setlimit(getattr(sqlite3, name), limit) for name, limit in limits.items()}
            connection.set_progress_handler(watch.__next__, _STEPS if most == _MOST_BYTES else _FEW_STEPS)
            yield
        finally:
            connection.set_progress_handler(None, 0)
            for name, limit in before.items():
                connection.setlimit(getattr(sqlite3, name), limit)  # type: ignore[attr-defined]
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        reason = str(error)
        if not errors and reason.startswith(_FILE_ERRORS):
            raise
        if not errors:
            cures = {
                "too big": f"; a value may have up to {most:,} bytes in this filter",
                "stack overflow": _NEST_LESS,
                "too large (maximum depth": _NEST_LESS,
            }
            cure = next((cure for sign, cure in cures.items() if sign in reason), "")
            raise failed(filter, cut(reason, 300) + cure) from error
    if errors:
        raise errors[0]
    check_time()


def _watch(check_time: Callable[[], None], errors: list[BaseException]) -> Iterator[bool]:
    """Yield whether to interrupt the statement, and append the reason to `errors`.

    Python runs signal handlers when SQLite calls the progress handler, and `sqlite3` discards an exception that leaves
    this callback. Here a ``try`` catches it. This is a generator, since it resumes inside of its ``try``; a function
    could be interrupted before it enters one.
    """
    try:
        # Python also runs signal handlers when a loop jumps back: the whole loop is inside of the ``try``.
        while not errors:
            yield False
            check_time()
    except GeneratorExit:
        return
    except BaseException as error:  # noqa: BLE001 (`bounded` raises it when SQLite has stopped)
        errors.append(error)
    while True:
        yield True


def _most_bytes(filter: Filter, values: Sequence[Any]) -> int:
    """Return how long a value may be while a filter is evaluated."""
    most = _MOST_BYTES
    copies = 1
    for node in walk(filter.tree):
        if isinstance(node, Operation):
            copies += node.words[0].endswith("(") + sum(word in ("||", "->", "->>") for word in node.words)
        most = min(most, _most_of(node, values))
    return min(most, _MOST_MEMORY // copies)


def _most_of(node: Node, values: Sequence[Any]) -> int:
    """Return how long the operands of one node may be."""
    if isinstance(node, Elements):
        return _MOST_PAIRS // _JSON
    if not isinstance(node, Operation):
        return _MOST_BYTES
    match node.words:
        case ("", "LIKE" | "GLOB", *_):
            return _MOST_PAIRS // max(1, min(_MOST_PATTERN, _longest(node.operands[1], values)))
        case ("trim(", ",", ")"):
            pairs = _MOST_PAIRS
        case ("instr(" | "replace(", ",", *_):
            pairs = _FAST * _MOST_PAIRS
        case ("json_extract(" | "json_valid(", *_) | ("", "->" | "->>", *_):
            return _MOST_PAIRS // _JSON
        case _:
            return _MOST_BYTES
    # The second operand is a value too: both may have the root.
    return max(math.isqrt(pairs), pairs // max(1, _longest(node.operands[1], values)))


def _longest(node: Node, values: Sequence[Any]) -> int:
    """Return the most bytes that an operand can have."""
    match node:
        case Literal():
            return len(node.sql)
        case Parameter():
            value = values[node.index]
            if isinstance(value, bytes):
                return len(value)
            return len(str(value).encode(errors="replace"))
        case Operation(words=("", *operators, "")) if set(operators) == {"||"}:
            return sum(_longest(each, values) for each in node.operands)
    return _MOST_BYTES
