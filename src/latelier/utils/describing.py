"""Short descriptions of values for error messages, on one line."""

from __future__ import annotations

import reprlib

__all__ = ["cut", "describe", "short"]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def short(value: object) -> str:
    """Return the `repr` of a value; the middle of a long one is replaced by an ellipsis.

    Examples
    --------
    >>> short("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
    """
    try:
        return _SHORT.repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; a list nested a thousand times
        return "a value"


def describe(value: object) -> str:
    """Return a short form of a value and its type.

    Examples
    --------
    >>> describe(None), describe(5), describe(["a", ["b"]])
    ('None', '5 (int)', "['a', ['b']] (list)")
    >>> describe(10**5000)
    'a value (int)'
    """
    return "None" if value is None else f"{short(value)} ({type(value).__name__})"


def cut(text: str, length: int) -> str:
    """Shorten a text that is longer than `length` to its beginning.

    Examples
    --------
    >>> cut("a long story", 6)
    'a long ...'
    """
    return text if len(text) <= length else f"{text[:length]} ..."
