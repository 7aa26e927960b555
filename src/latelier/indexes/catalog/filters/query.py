"""What a filter is once it was parsed: SQL of ours with room for an index's columns, and for the user's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.indexes.catalog.filters.tokens import Token, shorten

__all__ = ["MOST_REPLACEMENT", "Filter", "Name", "join_filters"]

MOST_REPLACEMENT = 16


class Name(NamedTuple):
    """The place of a field, and the expression in which it was named."""

    token: Token
    expression: str


class Filter(NamedTuple):
    """A filter that was parsed.

    Attributes
    ----------
    expression
        As the user gave it.
    pieces
        SQL, with the fields left out that only an index knows.
    slots
        The parameters in order, each by its name or ``None``.
    replacements
        Those parameters that must be short, since `replace` may put them in the place of every character.
    asks_time
        Whether the answer may depend on the time.
    question
        The same text for the same condition, however it is spelled.
    """

    expression: str
    pieces: tuple[str | Name, ...]
    slots: tuple[str | None, ...]
    replacements: frozenset[int]
    asks_time: bool
    question: str

    def bind(self, parameters: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the value of each slot.

        Raises
        ------
        InvalidArgumentError
            If there is one too few or too many, or a name is missing.
        """
        if isinstance(parameters, Mapping):
            missing = [slot for slot in dict.fromkeys(self.slots) if slot not in parameters]
            if missing:
                given = shorten(", ".join(map(repr, parameters)) or "no name", 200)
                wanted = (
                    "a ? needs a tuple of values" if None in missing else f"no value for {shorten(str(missing[0]))!r}"
                )
                raise self._unbound(f"received values for {given}, but {wanted}")
            values = tuple(parameters[slot] for slot in self.slots if slot is not None)
        else:
            values = tuple(parameters)
            if len(values) != len(self.slots):
                raise self._unbound(f"received {len(values)} values, but it has {len(self.slots)} ? or :name")
        for slot in self.replacements:
            if isinstance(values[slot], (str, bytes)) and len(values[slot]) > MOST_REPLACEMENT:
                raise self._unbound(f"replace() puts in at most {MOST_REPLACEMENT} characters")
        return values

    def _unbound(self, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"the filter {shorten(self.expression, 200)!r} cannot be evaluated: {reason}.")


def join_filters(filters: Sequence[Filter]) -> Filter:
    """Return the filter that holds where all of some do; each has parameters of its own, which follow one another."""
    if len(filters) == 1:
        return filters[0]
    pieces: list[str | Name] = []
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
        asks_time=any(filter.asks_time for filter in filters),
        question=" AND ".join(f"({filter.question})" for filter in filters),
    )
