"""Numbers of things, given as an argument or as a list: checked where users call."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import describe, short

__all__ = ["check_count", "count_entries"]


def check_count(name: str, value: Any, least: int = 1, *, optional: bool = False) -> None:
    """Refuse a number of things that is not an integer, or too small or too large to be one.

    Parameters
    ----------
    name
        The argument's name, for the message.
    value
        What was given.
    least
        The smallest number that is accepted.
    optional
        Accept None too.

    Raises
    ------
    InvalidArgumentError
        If it is none.

    Examples
    --------
    >>> check_count("k", 10)
    >>> check_count("chunk_size", 0)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received chunk_size=0; expected an integer of at least 1.
    """
    if optional and value is None:
        return
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if is_integer and least <= value <= sys.maxsize:
        return
    most = f" and at most {sys.maxsize}" if is_integer and value > sys.maxsize else ""
    none = ", or None" if optional else ""
    raise InvalidArgumentError(f"received {name}={short(value)}; expected an integer of at least {least}{most}{none}.")


def count_entries(values: object, name: str, expected: str = "a list") -> int:
    """Return how many entries a list, a tuple or an array has, or say that it is none.

    Parameters
    ----------
    values
        What was given.
    name
        What the message calls it.
    expected
        What it should have been.

    Raises
    ------
    InvalidArgumentError
        If it is a text, a dict, or nothing with entries in an order.

    Examples
    --------
    >>> count_entries(["a", "b"], "ids")
    2
    >>> count_entries("ab", "ids")
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received 'ab' (str) as ids; expected a list.
    """
    try:
        if hasattr(values, "__getitem__") and not isinstance(values, (str, bytes, Mapping)):
            return len(values)  # type: ignore[arg-type]
    except TypeError:  # an array without dimensions
        pass
    raise InvalidArgumentError(f"received {describe(values)} as {name}; expected {expected}.")
