"""SQL of ours, written while a filter is read: words, marks, literals and parameters, none as it stood."""

from __future__ import annotations

from itertools import groupby
from typing import NoReturn

from latelier.indexes.catalog.filters.query import Filter, Name
from latelier.indexes.catalog.filters.tokens import Reader, Token, refusal
from latelier.indexes.values import fold_name

__all__ = ["SUBQUERY", "Writer"]

SUBQUERY = (
    "the only queries within a filter are EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?) and "
    "x IN (SELECT value FROM json_each(field))"
)
_MOST_PARAMETER = 32_766  # as SQLite has it


class Writer(Reader):
    """What was written of an expression.

    Parameters
    ----------
    expression
        As the user gave it.
    first
        How many parameters stand before its own.
    """

    def __init__(self, expression: str, first: int) -> None:
        super().__init__(expression)
        self.written: list[str | Name] = []
        self.replacements: set[int] = set()
        self.parameter = 0  # the index of the last one that was read
        self.asks_time = False
        self._first = first
        self._slots: list[str | None] = []
        self._named: dict[str, int] = {}

    def filter(self) -> Filter:
        """Return all that was written."""
        pieces: list[str | Name] = []
        for is_sql, group in groupby(self.written, key=lambda piece: isinstance(piece, str)):
            run = list(group)
            pieces += [" ".join(map(str, run))] if is_sql else run
        return Filter(
            self.expression,
            tuple(pieces),
            tuple(self._slots),
            frozenset(self.replacements),
            self.asks_time,
            question=" ".join(piece if isinstance(piece, str) else _quote(piece) for piece in pieces),
        )

    def accept(self, *texts: str) -> bool:
        """Read a word or a mark, if it stands here, and write it."""
        if not self.sees(*texts):
            return False
        self.written.append(self.take().text.upper())
        return True

    def expect(self, *texts: str) -> None:
        """Read and write a word or a mark that has to stand here."""
        if not self.accept(*texts):
            self.refuse(f"expected {' or '.join(map(repr, texts)).upper()}")

    def refuse(self, reason: str, token: Token | None = None) -> NoReturn:
        """Say what is wrong with a token, the next one by default."""
        token = token or self.token
        if token.text == "select" and token.kind == "word":
            reason = SUBQUERY
        elif token.text == "," and token.kind == "mark":
            reason += "; several values stand only after IN and in the call of a function"
        raise refusal(self.expression, token, reason)

    def write_literal(self) -> None:
        """Read a number, a string or a blob, and write it."""
        token = self.take()
        self.written.append(_literal(token) or self.refuse("the number has too many digits", token))

    def write_parameter(self) -> None:
        """Read a parameter, and write it by its number."""
        self.parameter = self._slot(self.take())
        self.written.append(f"?{self._first + self.parameter + 1}")

    def _slot(self, token: Token) -> int:
        """Return the index of a parameter, counted as SQLite does."""
        if token.text in self._named:
            return self._named[token.text]
        index = len(self._slots)
        if token.text[0] == "?" and len(token.text) > 1:
            index = int(token.text[1:6]) - 1
            if not 0 <= index < _MOST_PARAMETER or len(token.text) > 6:
                self.refuse(f"the numbers of parameters go from 1 to {_MOST_PARAMETER}", token)
        self._slots += [None] * (index + 1 - len(self._slots))
        if token.text[0] != "?":
            self._slots[index] = token.text[1:]
            self._named[token.text] = index
        return index


def _quote(name: Name) -> str:
    return '"' + fold_name(name.token.text).replace('"', '""') + '"'


def _literal(token: Token) -> str:
    """Return a literal as SQL, or nothing if it is none."""
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
