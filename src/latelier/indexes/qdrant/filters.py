"""Filters for Qdrant: SQL expressions of the grammar of all indexes, translated to conditions with the same meaning.

`translate` reads the checked SQL of `latelier.indexes.filters`, in which parameters are numbered. What Qdrant
has no condition for is rejected by name: it selects either the documents that SQLite would, or none.

Translated are AND, OR, NOT and parentheses over: a field; a column and a value with ``=``, ``<>``, ``IS``, ``IN`` or
``IS NULL``; ``<``, ``<=``, ``>``, ``>=`` and ``BETWEEN`` with numbers; ``GLOB 'text*'`` and ``GLOB '*text*'``, also
LIKE without letters; ``EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?)``; ``IN (SELECT value FROM
json_each(?))``.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from typing import Any, NamedTuple, NoReturn

from latelier.errors import InvalidArgumentError
from latelier.indexes.base import Parameters
from latelier.indexes.filters.evaluation import read_filter, reject_field
from latelier.indexes.filters.grammar import FieldName, Filter, Token, shorten, tokenize
from latelier.indexes.qdrant.conditions import Column, Condition, Truth, any_of, is_exact, none_of
from latelier.indexes.qdrant.fields import as_number, is_true_text, text_elements
from latelier.indexes.store import connections
from latelier.indexes.store.rows import RESERVED, fold_name
from latelier.indexes.values import INT64

__all__ = ["filter_names", "translate"]

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CAN = (
    "AND, OR and NOT of: field, column = value, <>, IS, IN, IS NULL; <, <=, >, >=, BETWEEN with numbers; "
    "GLOB 'text*' or '*text*'; EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?)"
)
# The text of a number, as SQLite converts it for GLOB, begins with this; and consists of these characters.
_NUMBER_BEGIN = re.compile(r"-?(?:\d*|\d+\.\d*(?:e[+-]?\d*)?|I(?:nf?)?)", re.ASCII)
_NUMBER_PART = re.compile(r"[-+.0-9eInf]*", re.ASCII)


class _Value(NamedTuple):
    """A literal or a parameter: a number, a string or NULL."""

    value: int | float | str | None


def translate(expression: str | Sequence[str], parameters: Parameters, fields: Collection[str]) -> Condition:
    """Return the condition of the documents that a filter selects.

    `fields`: the fields of the index, as the first document spells each. Returns: a condition of Qdrant; True or False
    if it selects all documents, or none.
    """
    filter, values = read_filter(expression, parameters)
    return _Translator(filter, values, fields).condition()


def filter_names(expression: str | Sequence[str], parameters: Parameters) -> set[str]:
    """Return the fields that a filter names, as SQL compares names.

    Examples
    --------
    >>> filter_names("Year > 2000 AND id <> 'a'", ())
    {'year'}
    """
    filter, _ = read_filter(expression, parameters)
    names = {fold_name(piece.token.text) for piece in filter.pieces if isinstance(piece, FieldName)}
    return names.difference(RESERVED)


class _Translator:
    """Reads the SQL of a filter with a recursive descent; its methods return a `Column`, a `_Value` or a `Truth`."""

    def __init__(self, filter: Filter, values: Sequence[Any], fields: Collection[str]) -> None:
        self._filter, self._values, self._fields = filter, values, fields
        self._tokens: list[Token | FieldName] = []
        for piece in filter.pieces:
            self._tokens += [piece] if isinstance(piece, FieldName) else tokenize(piece)[:-1]
        self._next = 0

    def condition(self) -> Condition:
        truth = self._truth(self._or())
        if self._next < len(self._tokens):
            self._refuse(f"the operator {self._source()}")
        return truth.true

    # Reading.

    def _sees(self, *texts: str) -> bool:
        token = self._tokens[self._next] if self._next < len(self._tokens) else None
        return isinstance(token, Token) and token.kind in ("word", "mark") and token.text in texts

    def _skip(self, *texts: str) -> bool:
        seen = self._sees(*texts)
        self._next += seen
        return seen

    def _take(self) -> Token | FieldName:
        self._next += 1
        return self._tokens[self._next - 1]

    def _source(self) -> str:
        """Return the next token as the user may have written it."""
        if self._next >= len(self._tokens):
            return "at the end"
        token = self._tokens[self._next]
        return token.token.source if isinstance(token, FieldName) else token.source

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidArgumentError(
            f"the filter {shorten(self._filter.expression, 200)!r} cannot be used with Qdrant, which has no condition "
            f"for {what}. It has conditions for {_CAN}."
        )

    # Expressions, the weakest operators first.

    def _or(self) -> Column | _Value | Truth:
        parts = [self._and()]
        while self._skip("or"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Truth.disjunction([self._truth(part) for part in parts])

    def _and(self) -> Column | _Value | Truth:
        parts = [self._not()]
        while self._skip("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else Truth.conjunction([self._truth(part) for part in parts])

    def _not(self) -> Column | _Value | Truth:
        if self._skip("not"):
            return self._truth(self._not()).negated()
        return self._comparison()

    def _comparison(self) -> Column | _Value | Truth:
        left = self._order()
        while True:
            if self._skip("=", "=="):
                left = self._equal(left, self._order())
            elif self._skip("<>", "!="):
                left = self._equal(left, self._order()).negated()
            elif self._skip("is"):
                left = self._is(left)
            elif self._skip("isnull"):
                left = self._is_null(left)
            elif self._skip("notnull"):
                left = self._is_null(left).negated()
            elif self._sees("not", "in", "between", "like", "glob"):
                negated = self._skip("not")
                if negated and self._skip("null"):
                    left = self._is_null(left).negated()
                else:
                    left = self._match(left).negated(negated)
            else:
                return left

    def _match(self, left: Column | _Value | Truth) -> Truth:
        if self._skip("in"):
            values = self._constants()
            truth = Truth.disjunction([self._equal(left, value) for value in values])
            # x IN () is false, even for NULL.
            return truth if values else Truth(False, True)
        if self._skip("between"):
            low = self._order()
            self._skip("and")
            high = self._order()
            return Truth.conjunction([self._compare(left, ">=", low), self._compare(left, "<=", high)])
        name = "LIKE" if self._sees("like") else "GLOB"
        self._take()
        pattern = self._order()
        if self._sees("escape") or not isinstance(left, Column) or not isinstance(pattern, _Value):
            self._refuse(f"{name} other than of a column and a pattern, without ESCAPE")
        return self._pattern(left, name, pattern.value)

    def _order(self) -> Column | _Value | Truth:
        left = self._operand()
        while self._sees(*_FLIPPED):
            operator = self._source()
            self._take()
            left = self._compare(left, operator, self._operand())
        return left

    def _operand(self) -> Column | _Value | Truth:
        if self._skip("-"):
            operand = self._operand()
            if not isinstance(operand, _Value) or isinstance(operand.value, str):
                self._refuse("computed values: compute them before, and pass them as parameters")
            return operand if operand.value is None else _Value(as_number(-operand.value))
        if self._skip("+"):
            return self._operand()
        value = self._primary()
        if self._sees("+", "-", "*", "/", "%", "&", "|", "<<", ">>", "||", "->", "->>", "collate"):
            self._refuse(f"the operator {self._source()}")
        return value

    def _primary(self) -> Column | _Value | Truth:
        if self._skip("("):
            value = self._or()
            self._skip(")")
            return value
        if self._skip("true", "false"):
            return _Value(int(self._tokens[self._next - 1].text == "true"))  # type: ignore[union-attr]
        if self._skip("null"):
            return _Value(None)
        if self._skip("exists"):
            return self._exists()
        source, token = self._source(), self._take()
        if isinstance(token, FieldName):
            return self._column(token)
        if token.kind == "string":
            return _Value(token.text)
        if token.kind == "number":
            return _Value(_literal(token.text))
        if token.kind == "parameter":
            return _Value(self._parameter(token))
        if token.kind == "blob":
            self._refuse("BLOB values")
        self._refuse(f"{source.upper()}{'()' if self._sees('(') else ''}")

    def _column(self, name: FieldName) -> Column:
        folded = fold_name(name.token.text)
        if folded not in RESERVED and folded not in {fold_name(field) for field in self._fields}:
            reject_field(name, list(self._fields))
        return Column(folded)

    def _parameter(self, token: Token) -> int | float | str | None:
        value = self._values[int(token.text[1:]) - 1]
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, (bool, int)) and int(value) in INT64:
            return int(value)
        if isinstance(value, float):
            return None if value != value else as_number(value)  # SQLite stores NaN as NULL
        reason = "an integer too large for 64 bits" if isinstance(value, int) else f"of the type {type(value).__name__}"
        raise InvalidArgumentError(
            f"the filter {shorten(self._filter.expression, 200)!r} cannot be evaluated: parameter {token.text[1:]} is "
            f"{reason}; give a number of 64 bits, a str or None."
        )

    # Comparisons.

    def _truth(self, value: Column | _Value | Truth) -> Truth:
        """Return a value as a condition of SQL."""
        if isinstance(value, Truth):
            return value
        if isinstance(value, Column):
            if not value.is_field:
                self._refuse(f"{value.name} alone as a condition")
            return value.decided(value.is_true())
        if value.value is None:
            return Truth(False, False)
        is_true = is_true_text(value.value) if isinstance(value.value, str) else value.value != 0
        return Truth(is_true, not is_true)

    def _equal(self, left: Column | _Value | Truth, right: Column | _Value | Truth) -> Truth:
        if isinstance(left, _Value) and isinstance(right, Column):
            left, right = right, left
        if isinstance(left, Column) and isinstance(right, _Value):
            if right.value is None:
                return Truth(False, False)
            self._check_types(left, "=", right.value)
            return left.decided(left.equals(right.value))
        return self._of_constants(left, "=", right)

    def _compare(self, left: Column | _Value | Truth, operator: str, right: Column | _Value | Truth) -> Truth:
        if isinstance(left, _Value) and isinstance(right, Column):
            left, operator, right = right, _FLIPPED[operator], left
        if isinstance(left, Column) and isinstance(right, _Value):
            if right.value is None:
                return Truth(False, False)
            if isinstance(right.value, str):
                self._refuse(f"the order of strings, as in {operator} {right.value[:50]!r}")
            self._check_types(left, operator, right.value)
            if not is_exact(right.value):
                self._refuse(f"the order of integers beyond 2^53, as in {operator} {right.value}")
            return left.decided(left.compares(operator, right.value))
        return self._of_constants(left, operator, right)

    def _check_types(self, column: Column, operator: str, value: int | float | str) -> None:
        """Raise an error for a number that SQLite would convert to a string: ``text = 5`` selects the text '5'."""
        if not isinstance(value, str) and column.name in ("text", "metadata"):
            self._refuse(f"{column.name} {operator} a number: give a str")

    def _of_constants(self, left: Column | _Value | Truth, operator: str, right: Column | _Value | Truth) -> Truth:
        if not isinstance(left, _Value) or not isinstance(right, _Value):
            self._refuse(f"{operator} between two columns or conditions")
        with connections.using(), closing(sqlite3.connect(":memory:")) as connection:
            ((value,),) = connection.execute(f"SELECT ? {operator} ?", (left.value, right.value))
        return self._truth(_Value(value))

    def _is(self, left: Column | _Value | Truth) -> Truth:
        negated = self._skip("not")
        if self._skip("true"):
            truth = self._truth(left).true
        elif self._skip("false"):
            truth = self._truth(left).false
        elif self._skip("null"):
            truth = self._is_null(left).true
        else:
            right = self._order()
            if isinstance(left, _Value):
                left, right = right, left
            is_null = isinstance(right, _Value) and right.value is None
            truth = self._is_null(left).true if is_null else self._equal(left, right).true
        return Truth(truth, none_of(truth)).negated(negated)

    def _is_null(self, value: Column | _Value | Truth) -> Truth:
        if isinstance(value, _Value):
            is_null: Condition = value.value is None
        else:
            is_null = value.is_null() if isinstance(value, Column) else value.null
        return Truth(is_null, none_of(is_null))

    def _pattern(self, column: Column, name: str, pattern: int | float | str | None) -> Truth:
        if pattern is None:
            return Truth(False, False)
        if not isinstance(pattern, str):
            self._refuse(f"{name} with the number {pattern}: give a str")
        text = pattern
        if name == "LIKE":
            if re.search("[A-Za-z_*?[]", text):
                self._refuse("LIKE with letters, whose case it ignores, or with _ (GLOB compares the case)")
            text = text.replace("%", "*")
        inner = text.strip("*")
        ends = (text[: len(text) - len(text.lstrip("*"))], text[len(text.rstrip("*")) :])
        if not inner and text:
            return column.decided(none_of(column.is_null()))
        if re.search("[*?[]", inner) or (ends[0] and not ends[1]):
            self._refuse(f"the pattern {text[:50]!r}: the wildcard is * at the end, or at both ends")
        may_be_number = (_NUMBER_PART if ends[0] else _NUMBER_BEGIN).fullmatch(inner)
        if may_be_number and column.name not in ("text", "metadata"):
            self._refuse(f"the pattern {text[:50]!r}, which numbers could match too")
        if not ends[1]:
            return column.decided(column.equals(inner))
        return column.decided(column.contains(inner) if ends[0] else column.begins(inner))

    # Lists.

    def _constants(self) -> list[_Value]:
        """Read the values of IN, from its parenthesis on."""
        self._skip("(")
        if self._skip("select"):
            column, source = self._from()
            if not isinstance(source, _Value) or column != "value":
                self._refuse("IN (SELECT ...) other than IN (SELECT value FROM json_each(?)); see EXISTS")
            self._skip(")")
            return [_Value(each) for each in self._elements(source)]
        values = []
        while not self._skip(")"):
            value = self._or()
            if not isinstance(value, _Value):
                self._refuse("IN with a column or a condition among its values")
            values.append(value)
            self._skip(",")
        return values

    def _exists(self) -> Truth:
        """Read a query over json_each, from its parenthesis on."""
        self._skip("(")
        self._skip("select")
        _, source = self._from()
        if not isinstance(source, Column) or not source.is_field or not self._skip("where"):
            self._refuse("EXISTS other than of a field, with WHERE value = ?")
        if not self._reads_value():
            self._refuse("EXISTS with another condition than WHERE value = ?, or value IN (...)")
        if self._skip("in"):
            values = self._constants()
        elif self._skip("=", "=="):
            right = self._order()
            values = [right] if isinstance(right, _Value) else self._refuse("EXISTS with value = a column")
        else:
            self._refuse("EXISTS with another condition than WHERE value = ?, or value IN (...)")
        if not self._skip(")"):
            self._refuse("EXISTS with another condition than WHERE value = ?, or value IN (...)")
        found = any_of([source.has_element(each.value) for each in values if each.value is not None])
        return Truth(found, none_of(found))

    def _from(self) -> tuple[str, Column | _Value | Truth]:
        """Read what a query selects, and its list; return the name of the column that it selects, and the list."""
        column = ""
        while not self._skip("from"):
            token = self._take()
            column = token.text if isinstance(token, Token) else ""
        if not self._skip("json_each"):
            self._refuse("json_tree()")
        self._skip("(")
        source = self._or()
        if not self._skip(")"):
            self._refuse("json_each() with a path")
        self._skip("as")
        self._take()  # its alias
        return column, source

    def _reads_value(self) -> bool:
        """Read the column ``value`` of json_each: an alias, a dot and the name of the column."""
        if not isinstance(self._tokens[self._next], Token) or self._next + 2 >= len(self._tokens):
            return False
        alias, dot, column = self._tokens[self._next : self._next + 3]
        self._next += 3
        return all(isinstance(each, Token) for each in (alias, dot, column)) and column.text == "value"  # type: ignore[union-attr]

    def _elements(self, source: _Value) -> list[int | float | str | None]:
        if source.value is None:
            return []
        elements = text_elements(str(source.value))
        return (
            self._refuse(f"json_each({str(source.value)[:50]!r}), which is not JSON") if elements is None else elements
        )


def _literal(text: str) -> int | float:
    """Return the value of a number in SQL."""
    if text[:2] == "0x":
        value = int(text, 16)
        return value - 2**64 if value >= 2**63 else value
    whole = int(text) if text.isdigit() else None
    return whole if whole is not None and whole in INT64 else as_number(float(text))
