"""What a message says was received: short, on one line, whatever it is."""

from __future__ import annotations

import reprlib

__all__ = ["cut", "describe", "short"]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def short(value: object) -> str:
    """Return the `repr` of a value, of which the middle is left out where it is long.

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
    """Return a value and its type, in a few words.

    Examples
    --------
    >>> describe(None), describe(5), describe(["a", ["b"]])
    ('None', '5 (int)', "['a', ['b']] (list)")
    >>> describe(10**5000)
    'a value (int)'
    """
    return "None" if value is None else f"{short(value)} ({type(value).__name__})"


def cut(text: str, length: int) -> str:
    """Return the beginning of a text that is longer.

    Examples
    --------
    >>> cut("a long story", 6)
    'a long ...'
    """
    return text if len(text) <= length else f"{text[:length]} ..."
