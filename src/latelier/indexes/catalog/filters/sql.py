"""The SQL of a filter, written while the filter is parsed, and the binding of values to its parameters.

Nothing is copied from the user's expression: words and operators come from the grammar, literals are quoted again, and
parameters are numbered. A `Filter` holds SQL with gaps for its fields, since each index has its own columns for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, NoReturn

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes.catalog.filters.functions import MOST_REPLACEMENT
from latelier.indexes.catalog.filters.tokens import Token, TokenReader, rejection, shorten
from latelier.indexes.catalog.metadata import fold_name

__all__ = ["SUBQUERY", "FieldName", "Filter", "SqlWriter", "join_filters"]

SUBQUERY = (
    "the only queries within a filter are EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?) and "
    "x IN (SELECT value FROM json_each(field))"
)
_MOST_PARAMETERS = 32_766  # SQLite's limit


class FieldName(NamedTuple):
    """A gap in the SQL of a filter: the name of a field, and the expression that names it."""

    token: Token
    expression: str


class Filter(NamedTuple):
    """A parsed filter.

    Attributes
    ----------
    expression
        As the user gave it.
    pieces
        Pieces of SQL, with the names of fields between them.
    slots
        The name of each parameter in order; ``None`` for a ``?``.
    replacements
        The slots of parameters that are replacements in replace(), and so must be short.
    depends_on_time
        Whether the selected documents may depend on the current time.
    normalized
        The SQL with the names of the fields; equal for expressions that differ only in spelling.
    """

    expression: str
    pieces: tuple[str | FieldName, ...]
    slots: tuple[str | None, ...]
    replacements: frozenset[int]
    depends_on_time: bool
    normalized: str

    def bind(self, parameters: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the value of each slot; numpy's numbers become Python's.

        Raises
        ------
        InvalidArgumentError
            If their number is wrong, a name is missing, or a value is none of SQLite's: an array, NaN, an integer of
            more than 64 bits.
        """
        if isinstance(parameters, Mapping):
            missing = [slot for slot in dict.fromkeys(self.slots) if slot not in parameters]
            if missing:
                given = shorten(", ".join(map(repr, parameters)) or "no name", 200)
                wanted = (
                    "a ? needs a tuple of values" if None in missing else f"no value for {shorten(str(missing[0]))!r}"
                )
                raise self._bind_error(f"received values for {given}, but {wanted}")
            values = tuple(parameters[slot] for slot in self.slots if slot is not None)
        else:
            values = tuple(parameters)
            if len(values) != len(self.slots):
                raise self._bind_error(f"received {len(values)} values, but expected {len(self.slots)}")
        values = tuple(map(self._plain, values))
        for slot in self.replacements:
            if isinstance(values[slot], (str, bytes)) and len(values[slot]) > MOST_REPLACEMENT:
                raise self._bind_error(f"the replacement of replace() has at most {MOST_REPLACEMENT} characters")
        return values

    def _plain(self, value: Any) -> Any:
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
            value = value.item()
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self._bind_error("received an integer beyond 64 bits, sign included, as a value; give a float")
        if isinstance(value, float) and math.isnan(value):
            raise self._bind_error("received NaN as a value, which no document has; IS NULL finds those without one")
        if value is None or isinstance(value, (int, float, str, bytes)):
            return value
        # Arrays SQLite would take as BLOBs, which are greater than any number and any text.
        raise self._bind_error(
            f"received {type(value).__name__} as a value; give a number, a str or None, a date as the text that is "
            "stored, and one ? for each value of a list: x IN (?, ?)"
        )

    def _bind_error(self, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"the filter {shorten(self.expression, 200)!r} cannot be evaluated: {reason}.")


def join_filters(filters: Sequence[Filter]) -> Filter:
    """Return the conjunction of filters; the parameters of each follow those of the filter before it."""
    if len(filters) == 1:
        return filters[0]
    pieces: list[str | FieldName] = []
    replacements: set[int] = set()
    first = 0
    for filter in filters:
        pieces += ["AND (" if pieces else "(", *filter.pieces, ")"]
        replacements.update(first + slot for slot in filter.replacements)
        first += len(filter.slots)
    return Filter(
        expression=" AND ".join(f"({filter.expression})" for filter in filters),
        pieces=tuple(pieces),
        slots=tuple(slot for filter in filters for slot in filter.slots),
        replacements=frozenset(replacements),
        depends_on_time=any(filter.depends_on_time for filter in filters),
        normalized=" AND ".join(f"({filter.normalized})" for filter in filters),
    )


class SqlWriter(TokenReader):
    """Reads the tokens of an expression and writes its SQL.

    Parameters
    ----------
    expression
        As the user gave it.
    first
        Number of parameters that precede those of this expression in the statement.
    """

    def __init__(self, expression: str, first: int) -> None:
        super().__init__(expression)
        self.written: list[str | FieldName] = []
        self.replacements: set[int] = set()
        self.parameter = 0  # the slot of the parameter read last
        self.depends_on_time = False
        self._first = first
        self._slots: list[str | None] = []
        self._named: dict[str, int] = {}

    def filter(self) -> Filter:
        """Return the filter, after all tokens have been read."""
        pieces: list[str | FieldName] = []
        for is_sql, group in groupby(self.written, key=lambda piece: isinstance(piece, str)):
            run = list(group)
            pieces += [" ".join(map(str, run))] if is_sql else run
        return Filter(
            self.expression,
            tuple(pieces),
            tuple(self._slots),
            frozenset(self.replacements),
            self.depends_on_time,
            normalized=" ".join(piece if isinstance(piece, str) else _quote(piece) for piece in pieces),
        )

    def accept(self, *texts: str) -> bool:
        """Read and write the next token if it is one of these words or marks."""
        if not self.sees(*texts):
            return False
        self.written.append(self.take().text.upper())
        return True

    def expect(self, *texts: str) -> None:
        """Read and write the next token, which has to be one of these words or marks."""
        if not self.accept(*texts):
            self.reject(f"expected {' or '.join(map(repr, texts)).upper()}")

    def reject(self, reason: str, token: Token | None = None) -> NoReturn:
        """Raise the error for a token, the next one by default."""
        token = token or self.token
        if token.text == "select" and token.kind == "word":
            reason = SUBQUERY
        elif token.text == "," and token.kind == "mark":
            reason += "; several values are allowed only after IN and in the call of a function"
        raise rejection(self.expression, token, reason)

    def write_literal(self) -> None:
        """Read a number, a string or a blob, and write it."""
        token = self.take()
        self.written.append(_literal(token) or self.reject("the number has too many digits", token))

    def write_parameter(self) -> None:
        """Read a parameter, and write its number."""
        self.parameter = self._slot(self.take())
        self.written.append(f"?{self._first + self.parameter + 1}")

    def _slot(self, token: Token) -> int:
        """Return the slot of a parameter; as in SQLite, a name has one slot wherever it is used."""
        if token.text in self._named:
            return self._named[token.text]
        index = len(self._slots)
        if token.text[0] == "?" and len(token.text) > 1:
            index = int(token.text[1:6]) - 1
            if not 0 <= index < _MOST_PARAMETERS or len(token.text) > 6:
                self.reject(f"the numbers of parameters go from 1 to {_MOST_PARAMETERS}", token)
        self._slots += [None] * (index + 1 - len(self._slots))
        if token.text[0] != "?":
            self._slots[index] = token.text[1:]
            self._named[token.text] = index
        return index


def _quote(name: FieldName) -> str:
    return '"' + fold_name(name.token.text).replace('"', '""') + '"'


def _literal(token: Token) -> str:
    """Return a literal as SQL; empty for a hexadecimal number with too many digits."""
    text = token.text
    if token.kind == "blob":
        return f"x'{text[2:-1]}'"
    if token.kind == "string":
        return "'" + text.replace("'", "''") + "'"
    if text[:2] in ("0x", "0X"):
        return text.lower() if len(text) <= 18 else ""
    if text.isdigit():
        return text.lstrip("0") or "0"
    number = float(text)
    return repr(number) if number < float("inf") else "9e999"
