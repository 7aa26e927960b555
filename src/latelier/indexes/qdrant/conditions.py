"""Conditions of Qdrant with SQL's three truth values.

Qdrant's conditions are true or false, and SQL's are true, false or NULL, so a `Truth` holds two conditions: one that
says when an expression is true, and one that says when it is false. NOT swaps them. A condition may also be True or
False itself, where no document matters.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from qdrant_client import models

from latelier.indexes.qdrant.fields import field_key, field_path
from latelier.indexes.qdrant.points import point_id

__all__ = ["Column", "Condition", "Truth", "all_of", "any_of", "is_exact", "none_of"]

Condition: TypeAlias = "models.Condition | bool"

# Qdrant compares numbers in a range as floats, which hold all integers below this; some above are rounded to it.
_EXACT = 2**53
_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


def all_of(conditions: Sequence[Condition]) -> Condition:
    """Return the condition that all of some hold.

    Examples
    --------
    >>> all_of([True, False]), all_of([])
    (False, True)
    """
    rest = [each for each in conditions if not isinstance(each, bool)]
    if any(each is False for each in conditions):
        return False
    return models.Filter(must=rest) if len(rest) > 1 else rest[0] if rest else True


def any_of(conditions: Sequence[Condition]) -> Condition:
    """Return the condition that at least one of some holds."""
    rest = [each for each in conditions if not isinstance(each, bool)]
    if any(each is True for each in conditions):
        return True
    return models.Filter(should=rest) if len(rest) > 1 else rest[0] if rest else False


def none_of(condition: Condition) -> Condition:
    """Return the condition that another one does not hold."""
    return not condition if isinstance(condition, bool) else models.Filter(must_not=[condition])


class Truth(NamedTuple):
    """An expression as two conditions: when it is true, and when it is false; otherwise it is NULL."""

    true: Condition
    false: Condition

    def negated(self, negated: bool = True) -> Truth:
        """Return NOT of the expression, or the expression itself."""
        return Truth(self.false, self.true) if negated else self

    @classmethod
    def conjunction(cls, parts: Sequence[Truth]) -> Truth:
        """Return the expressions joined by AND."""
        return cls(all_of([part.true for part in parts]), any_of([part.false for part in parts]))

    @classmethod
    def disjunction(cls, parts: Sequence[Truth]) -> Truth:
        """Return the expressions joined by OR."""
        return cls(any_of([part.true for part in parts]), all_of([part.false for part in parts]))

    @property
    def null(self) -> Condition:
        """When the expression is NULL."""
        return all_of([none_of(self.true), none_of(self.false)])


class Column:
    """A column of filters: ``id``, ``text``, ``metadata`` or a field; its values are numbers, strings or NULL."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_field = name not in ("id", "text", "metadata")
        self._numbers = field_path("numbers", name) if self.is_field else name
        self._strings = field_path("strings", name) if self.is_field else name

    def is_null(self) -> Condition:
        """Return when it has no value."""
        if self.is_field:
            return all_of([_is_empty(self._numbers), _is_empty(self._strings)])
        return _is_empty("text") if self.name == "text" else False

    def is_number(self) -> Condition:
        """Return when its value is a number."""
        return False if self.name in ("text", "metadata") else _range(self._numbers, lte=sys.float_info.max)

    def is_string(self) -> Condition:
        """Return when its value is a string."""
        return none_of(any_of([self.is_null(), self.is_number()]))

    def equals(self, value: int | float | str) -> Condition:
        """Return when its value is a number or a string."""
        if self.name == "id":
            is_id = isinstance(value, int) or (isinstance(value, str) and value != "")
            return models.HasIdCondition(has_id=[point_id(value)]) if is_id else False  # type: ignore[arg-type]
        if isinstance(value, str):
            return _match(self._strings, models.MatchValue(value=value))
        return _number_equals(self._numbers, value) if self.is_field else False

    def compares(self, operator: str, value: int | float) -> Condition:
        """Return when its value is less or greater than a number; a string is greater than all numbers."""
        within: Any = {_BOUNDS[operator]: value}
        by_number = False if self.name in ("text", "metadata") else _range(self._numbers, **within)
        return by_number if operator in ("<", "<=") else any_of([by_number, self.is_string()])

    def begins(self, prefix: str) -> Condition:
        """Return when its value is a string with a prefix."""
        return _match(self._strings, models.MatchPrefix(prefix=prefix))

    def contains(self, part: str) -> Condition:
        """Return when its value is a string with a part."""
        return _match(self._strings, models.MatchSubstring(substring=part))

    def is_true(self) -> Condition:
        """Return when a field is true as a condition of SQL: a number other than 0, or a string that begins so."""
        string = _match("true", models.MatchValue(value=field_key(self.name)))
        return any_of([_range(self._numbers, lt=0), _range(self._numbers, gt=0), string])

    def has_element(self, value: int | float | str) -> Condition:
        """Return when the list in a field has an element; json_each reads a number as a list of itself."""
        lists = field_path("lists", self.name)
        if isinstance(value, str):
            return _match(lists, models.MatchValue(value=value))
        return any_of([_number_equals(lists, value), _number_equals(self._numbers, value)])

    def decided(self, condition: Condition) -> Truth:
        """Return a comparison that is true under a condition, NULL if the column is, and false otherwise."""
        return Truth(condition, all_of([none_of(self.is_null()), none_of(condition)]))


def is_exact(value: int | float) -> bool:
    """Whether Qdrant compares all integers of 64 bits with this number as SQL does."""
    return abs(value) < _EXACT or abs(value) > 2**63


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
