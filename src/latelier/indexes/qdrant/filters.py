"""The tree of a filter as conditions of Qdrant with the meaning that SQLite gives it.

Qdrant's conditions are true or false, and SQL's are true, false or NULL, so a `Truth` holds two conditions: when an
expression is true, and when it is false. A condition may also be True or False itself, where no document matters. What
Qdrant has no condition for is rejected by name, so a filter selects the documents that SQLite would, or none.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, NoReturn, TypeAlias

from latelier.errors import InvalidArgumentError
from latelier.indexes import filters as nodes
from latelier.indexes.fields import RESERVED
from latelier.indexes.filter_sql import bounded, reject_field, to_sql
from latelier.indexes.filters import Filter, Node, walk
from latelier.indexes.qdrant.collection import as_number, field_key, is_true_text, point_id, text_elements
from latelier.utils.checks import cut
from latelier.utils.misc import needs_extra

with needs_extra("indexes.Qdrant", "qdrant"):
    from qdrant_client import models

Condition: TypeAlias = "models.Condition | bool"

# Qdrant compares numbers in a range as floats, which hold all integers below this; some above are rounded to it.
_EXACT = 2**53
_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CAN = (
    "AND, OR and NOT of: field, column = value, <>, IS, IN, IS NULL; <, <=, >, >=, BETWEEN with numbers; "
    "GLOB 'text*' or '*text*'; EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?)"
)
# The text of a number, as SQLite converts it for GLOB, begins with this; and consists of these characters.
_NUMBER_BEGIN = re.compile(r"-?(?:\d*|\d+\.\d*(?:e[+-]?\d*)?|I(?:nf?)?)", re.ASCII)
_NUMBER_PART = re.compile(r"[-+.0-9eInf]*", re.ASCII)
_SIMPLE = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_SECONDS = 1.0  # for computing a value


def translate(filter: Filter, values: Sequence[Any], fields: Mapping[str, str]) -> models.Filter | bool:
    """Return the condition of the documents that a filter selects; True or False for all or none."""
    condition = _Translator(filter, values, fields).truth(filter.tree).true
    if isinstance(condition, (bool, models.Filter)):
        return condition
    return models.Filter(must=[condition])


class Truth(NamedTuple):
    """When an expression is true, and when it is false; otherwise it is NULL."""

    true: Condition
    false: Condition

    def negated(self, negated: bool = True) -> Truth:
        """Return NOT of the expression, or the expression itself."""
        if negated:
            return Truth(self.false, self.true)
        return self


_NULL = Truth(False, False)


class _Value(NamedTuple):
    """A value that is the same for all documents."""

    value: int | float | str | None


class _Translator:
    """The visitor: a node becomes a `Column`, a `_Value` or a `Truth`."""

    def __init__(self, filter: Filter, values: Sequence[Any], fields: Mapping[str, str]) -> None:
        self._filter = filter
        self._values = values
        self._fields = fields

    def truth(self, node: Node) -> Truth:
        """Return a node as a condition."""
        found = self._visit(node)
        if isinstance(found, Column):
            if found.name in RESERVED:
                self._refuse(node, "a column alone")
            return found.decided(found.is_true())
        if isinstance(found, _Value):
            value = found.value
            if isinstance(value, str):
                is_true = is_true_text(value)
            else:
                is_true = value != 0
            if value is None:
                return _NULL
            return Truth(is_true, not is_true)
        return found

    def _visit(self, node: Node) -> Column | _Value | Truth:
        match node:
            case nodes.Field():
                if node.name not in (*RESERVED, *self._fields):
                    reject_field(node, list(self._fields.values()))
                return Column(node.name)
            case nodes.Operation(words=("NOT", ""), operands=(operand,)):
                return self.truth(operand).negated()
            case nodes.Operation(words=("", "AND", *_)):
                return _conjunction(map(self.truth, node.operands))
            case nodes.Operation(words=("", "OR", *_)):
                return _conjunction(self.truth(each).negated() for each in node.operands).negated()
            case nodes.Operation() if any(isinstance(each, (nodes.Field, nodes.Elements)) for each in walk(node)):
                return self._comparison(node, node.words, node.operands)
        return self._value(node)

    def _comparison(self, node: Node, words: tuple[str, ...], operands: tuple[Node, ...]) -> Truth:
        match words:
            case ("", "=" | "<>", ""):
                return self._equal(node, *map(self._visit, operands)).negated(words[1] == "<>")
            case ("", "IS" | "IS NOT", ""):
                is_so = self._is(node, *operands)
                return Truth(is_so, none_of(is_so)).negated(words[1] == "IS NOT")
            case ("", "<" | "<=" | ">" | ">=", ""):
                left, right = map(self._visit, operands)
                return self._compare(node, left, words[1], right)
            case ("", "BETWEEN", "AND", ""):
                operand, low, high = map(self._visit, operands)
                return _conjunction([self._compare(node, operand, ">=", low), self._compare(node, operand, "<=", high)])
            case ("", "GLOB" | "LIKE", ""):
                return self._pattern(node, words[1], *map(self._visit, operands))
            case ("", "IN" | "IN (" | "IN ()", *_):
                operand = self._visit(operands[0])
                equal = [self._equal(node, operand, value) for value in self._listed(node, operands[1:])]
                # x IN () is false, even for NULL.
                return _conjunction(each.negated() for each in equal).negated()
            case ("EXISTS", ""):
                return self._exists(node, operands[0])
        self._refuse(node)

    def _refuse(self, node: Node, reason: str = "") -> NoReturn:
        shown = cut(to_sql(node, lambda field: field.token.source))
        raise InvalidArgumentError(
            f"the filter {cut(self._filter.expression, 200)!r} cannot be used with Qdrant, which has no condition "
            f"for {shown}{reason and f' ({reason})'}. It has conditions for {_CAN}."
        )

    def _value(self, node: Node) -> _Value:
        """Return a value that no document matters for; SQLite computes what is more than a literal."""
        match node:
            case nodes.Literal():
                value = node.value
            case nodes.Parameter():
                value = self._values[node.index]
            case _:
                count = max((each.index + 1 for each in walk(node) if isinstance(each, nodes.Parameter)), default=0)
                sql = f"SELECT {to_sql(node, lambda field: field.name)}"
                with (
                    closing(sqlite3.connect(":memory:")) as connection,
                    bounded(connection, self._filter, self._values, _SECONDS),
                ):
                    ((value,),) = connection.execute(sql, self._values[:count])
        if isinstance(value, bytes):
            self._refuse(node, "a BLOB")
        return _Value(value if value is None or isinstance(value, str) else as_number(value))

    # Comparisons.

    def _equal(self, node: Node, left: Any, right: Any) -> Truth:
        column, value = self._column_and_value(node, left, right)
        if value is None:
            return _NULL
        return column.decided(column.equals(value))

    def _compare(self, node: Node, left: Any, operator: str, right: Any) -> Truth:
        column, value = self._column_and_value(node, left, right)
        if value is None:
            return _NULL
        if isinstance(value, str):
            self._refuse(node, "the order of strings")
        if _EXACT <= abs(value) <= 2**63:
            self._refuse(node, "the order of integers beyond 2^53")
        return column.decided(column.compares(operator if column is left else _FLIPPED[operator], value))

    def _column_and_value(self, node: Node, left: Any, right: Any) -> tuple[Column, int | float | str | None]:
        """Return the operands of a comparison, whichever stands first."""
        if isinstance(left, _Value):
            column = right
            value = left
        else:
            column = left
            value = right
        if not isinstance(column, Column) or not isinstance(value, _Value):
            self._refuse(node, "it compares a column with a value")
        if isinstance(value.value, (int, float)) and column.name in ("text", "metadata"):
            self._refuse(node, f"SQLite compares {column.name} and a number as strings: give a str")
        return column, value.value

    def _is(self, node: Node, left: Node, right: Node) -> Condition:
        if isinstance(right, nodes.Literal) and right.sql in ("TRUE", "FALSE"):
            return self.truth(left)[right.sql == "FALSE"]
        first = self._visit(left)
        second = self._visit(right)
        if isinstance(first, _Value):
            first, second = second, first
        if second != _Value(None):
            return self._equal(node, first, second).true
        if isinstance(first, Truth):
            return none_of(any_of(first))
        if isinstance(first, Column):
            return first.is_null()
        return first.value is None

    def _pattern(self, node: Node, operator: str, column: Any, pattern: Any) -> Truth:
        if not isinstance(column, Column) or not isinstance(pattern, _Value) or isinstance(pattern.value, (int, float)):
            self._refuse(node, "it compares a column with a pattern: give a str")
        text = pattern.value
        if text is None:
            return _NULL
        if operator == "LIKE":
            self._refuse(node, "LIKE ignores the case of letters: use GLOB")
        inner = text.strip("*")
        leading = text.startswith("*")
        trailing = text.endswith("*")
        if not inner and text:
            return column.decided(none_of(column.is_null()))
        if re.search("[*?[]", inner) or (leading and not trailing):
            self._refuse(node, "the wildcard is * at the end, or at both ends")
        if (_NUMBER_PART if leading else _NUMBER_BEGIN).fullmatch(inner) and column.name not in ("text", "metadata"):
            self._refuse(node, "numbers could match too")
        if not trailing:
            return column.decided(column.equals(inner))
        if leading:
            match: Any = models.MatchSubstring(substring=inner)
        else:
            match = models.MatchPrefix(prefix=inner)
        return column.decided(models.FieldCondition(key=column.strings, match=match))

    # Lists.

    def _listed(self, node: Node, operands: Sequence[Node]) -> list[_Value]:
        """Return the values of IN: a list of them, or the elements of one that is JSON."""
        if operands and isinstance(operands[0], nodes.Elements):
            [source, *path] = map(self._visit, operands[0].operands)
            if path or operands[0].where or operands[0].column != "value" or not isinstance(source, _Value):
                self._refuse(node, "it takes IN (SELECT value FROM json_each(?)); for a field, use EXISTS")
            if source.value is None:
                elements: list[Any] | None = []
            else:
                elements = text_elements(str(source.value))
            if elements is None:
                self._refuse(node, "the value is not JSON")
            return [_Value(each) for each in elements]
        values = [self._visit(each) for each in operands]
        if not all(isinstance(each, _Value) for each in values):
            self._refuse(node, "IN takes values that are the same for all documents")
        return values  # type: ignore[return-value]

    def _exists(self, node: Node, elements: Any) -> Truth:
        [source, *path] = map(self._visit, elements.operands)
        if path or not isinstance(source, Column) or source.name in RESERVED:
            self._refuse(node, "it reads the list in a field")
        column = nodes.ListColumn(elements.number, "value")
        match elements.where:
            case nodes.Operation(words=("", "=", ""), operands=(first, second)) if column in (first, second):
                wanted: Sequence[Node] = [first if second == column else second]
            case nodes.Operation(words=("", "IN" | "IN (" | "IN ()", *_), operands=(first, *wanted)) if first == column:
                pass
            case _:
                self._refuse(node, "its condition is value = ?, or value IN (...)")
        values = [each.value for each in self._listed(elements.where, wanted)]
        found = any_of([source.has_element(each) for each in values if each is not None])
        return Truth(found, none_of(found))


# Conditions of Qdrant.


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Return the condition that at least one of some holds."""
    given = list(conditions)
    rest = [each for each in given if not isinstance(each, bool)]
    if True in given or not rest:
        return True in given
    if len(rest) > 1:
        return models.Filter(should=rest)
    return rest[0]


def all_of(conditions: Iterable[Condition]) -> Condition:
    """Return the condition that all of some hold."""
    given = list(conditions)
    rest = [each for each in given if not isinstance(each, bool)]
    if False in given or not rest:
        return False not in given
    if len(rest) > 1:
        return models.Filter(must=rest)
    return rest[0]


def none_of(condition: Condition) -> Condition:
    """Return the condition that another one does not hold."""
    if isinstance(condition, bool):
        return not condition
    return models.Filter(must_not=[condition])


def _conjunction(parts: Iterable[Truth]) -> Truth:
    parts = list(parts)
    return Truth(all_of(part.true for part in parts), any_of(part.false for part in parts))


class Column:
    """A column of filters: ``id``, ``text``, ``metadata`` or a field; its values are numbers, strings or NULL."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.strings = self._path("strings")
        self._numbers = self._path("numbers")

    def _path(self, kind: str) -> str:
        """Return the path of the column among the values of one type; a step that is not a word is quoted."""
        if self.name in RESERVED:
            return self.name
        key = field_key(self.name)
        if _SIMPLE.fullmatch(key):
            return f"{kind}.{key}"
        return f'{kind}."{key}"'

    def is_null(self) -> Condition:
        """Return when it has no value."""
        if self.name in RESERVED:
            if self.name == "text":
                return _is_empty("text")
            return False
        return all_of([_is_empty(self._numbers), _is_empty(self.strings)])

    def equals(self, value: int | float | str) -> Condition:
        """Return when its value is a number or a string."""
        if self.name == "id":
            is_id = isinstance(value, int) or (isinstance(value, str) and value != "")
            return models.HasIdCondition(has_id=[point_id(value)]) if is_id else False  # type: ignore[arg-type]
        if isinstance(value, str):
            return _match(self.strings, models.MatchValue(value=value))
        if self.name in RESERVED:
            return False
        return _number_equals(self._numbers, value)

    def compares(self, operator: str, value: int | float) -> Condition:
        """Return when the value is less or greater than a number; a string is greater than all numbers."""
        has_numbers = self.name not in ("text", "metadata")
        by_number = has_numbers and _range(self._numbers, **{_BOUNDS[operator]: value})
        is_number = has_numbers and _range(self._numbers, lte=sys.float_info.max)
        is_string = none_of(any_of([self.is_null(), is_number]))
        if operator in ("<", "<="):
            return by_number
        return any_of([by_number, is_string])

    def is_true(self) -> Condition:
        """Return when a field is true as a condition of SQL: a number other than 0, or a string that begins so."""
        string = _match("true", models.MatchValue(value=field_key(self.name)))
        return any_of([_range(self._numbers, lt=0), _range(self._numbers, gt=0), string])

    def has_element(self, value: int | float | str) -> Condition:
        """Return when the list in a field has an element; json_each reads a number as a list of itself."""
        lists = self._path("lists")
        if isinstance(value, str):
            return _match(lists, models.MatchValue(value=value))
        return any_of([_number_equals(lists, value), _number_equals(self._numbers, value)])

    def decided(self, condition: Condition) -> Truth:
        """Return a comparison that is true under a condition, NULL if the column is, and false otherwise."""
        return Truth(condition, none_of(any_of([self.is_null(), condition])))


def _number_equals(path: str, value: int | float) -> Condition:
    if isinstance(value, int) and abs(value) >= _EXACT:
        return _match(path, models.MatchValue(value=value))
    # A range, since an index of floats serves it, and one of integers would leave out floats.
    return _range(path, gte=value, lte=value)


def _range(path: str, **bounds: float) -> Condition:
    return models.FieldCondition(key=path, range=models.Range(**bounds))


def _match(path: str, match: Any) -> Condition:
    return models.FieldCondition(key=path, match=match)


def _is_empty(path: str) -> Condition:
    return models.IsEmptyCondition(is_empty=models.PayloadField(key=path))
