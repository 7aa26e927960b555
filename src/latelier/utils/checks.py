"""Arguments and messages: check_*, describe, control characters, sizes.

Control characters can move a terminal's cursor, rename its window or clear it; bidirectional overrides can make a line
look different from what it holds.
"""

from __future__ import annotations

import math
import re
import reprlib
import sys
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard, overload

from latelier.errors import InvalidArgumentError

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def short(value: object) -> str:
    """Return the `repr` of a value; the middle of a long one is replaced by an ellipsis."""
    try:
        return _SHORT.repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; a list nested a thousand times
        return "a value"


def describe(value: object) -> str:
    """Return a short form of a value and its type."""
    return "None" if value is None else f"{short(value)} ({type(value).__name__})"


def cut(text: str, length: int = 60) -> str:
    """Shorten a text that is longer than `length` to its beginning."""
    return text if len(text) <= length else f"{text[:length]} ..."


def check_choice(name: str, value: Any, choices: Collection[str] | Collection[int], *, optional: bool = False) -> None:
    """Raise `InvalidArgumentError` unless an argument is one of several texts or integers.

    Parameters
    ----------
    name, value
        The argument's name, for the message, and what was given.
    choices, optional
        What is accepted; with `optional`, None too.

    Examples
    --------
    >>> check_choice("dtype", "float32", ["float32", "float16"])
    >>> check_choice("dtype", "flaot16", ["float32", "float16"], optional=True)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received dtype='flaot16'; expected 'float32', \
'float16' or None. Did you mean 'float16'?
    """
    if (optional and value is None) or ((isinstance(value, str) or is_count(value)) and value in choices):
        return
    *others, last = [*map(repr, choices), *(["None"] if optional else [])]
    expected = f"{', '.join(others)} or {last}" if others else last
    texts = [choice for choice in choices if isinstance(choice, str)]
    near = get_close_matches(value, texts, 1) if isinstance(value, str) else []
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise InvalidArgumentError(f"received {name}={short(value)}; expected {expected}.{meant}")


@overload
def check_count(
    name: str, value: Any, least: int = ..., most: int | None = ..., *, optional: Literal[False] = ...
) -> int: ...
@overload
def check_count(name: str, value: Any, least: int = ..., most: int | None = ..., *, optional: bool) -> int | None: ...


def check_count(
    name: str, value: Any, least: int = 1, most: int | None = None, *, optional: bool = False
) -> int | None:
    """Return an integer argument as an `int`; raise `InvalidArgumentError` if it is none, or out of range.

    Parameters
    ----------
    name, value
        The argument's name, for the message, and what was given: an `int` or an integer of numpy, not a bool.
    least, most
        The range; None: up to `sys.maxsize`.
    optional
        Accept None too, and return it.

    Examples
    --------
    >>> check_count("k", 10)
    10
    >>> check_count("chunk_size", 0)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received chunk_size=0; expected an integer of at least 1.
    """
    if optional and value is None:
        return None
    if is_count(value, least, most):
        return int(value)
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
    if most is None and is_count(value, least, math.inf):
        wanted += f" and at most {sys.maxsize}"
    none = ", or None" if optional else ""
    raise InvalidArgumentError(f"received {name}={short(value)}; expected an integer {wanted}{none}.")


def is_count(value: Any, least: int = 1, most: float | None = None) -> TypeGuard[int]:
    """Whether a value is an integer that `check_count` accepts.

    Parameters
    ----------
    value, least, most
        As in `check_count`.

    Examples
    --------
    >>> import numpy as np
    >>> is_count(np.int64(3)), is_count(True), is_count(2.0), is_count(0, least=0)
    (True, False, False, True)
    """
    is_integer = isinstance(value, (int, Integral)) and not isinstance(value, bool)
    return is_integer and bool(least <= value <= (sys.maxsize if most is None else most))


def check_flag(name: str, value: Any) -> None:
    """Raise `InvalidArgumentError` unless an argument is a bool, also of numpy, or 0 or 1: any text would count as on.

    Parameters
    ----------
    name, value
        The argument's name, for the message, and what was given.

    Examples
    --------
    >>> check_flag("normalize_scores", "no")
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received normalize_scores='no'; expected True or False.
    """
    is_bool = type(value).__name__ in ("bool", "bool_")  # Python's and numpy's
    if not (is_bool or is_count(value, 0, 1)):
        raise InvalidArgumentError(f"received {name}={short(value)}; expected True or False.")


def check_number(name: str, value: Any, *, zero: bool = False, most: float = sys.float_info.max) -> float:
    """Return a positive, finite number as one of Python; raise `InvalidArgumentError` if it is none.

    Parameters
    ----------
    name, value
        The argument's name, for the message, and what was given: an `int`, a `float` or one of numpy, not a bool.
    zero, most
        Whether 0 is accepted too, and the largest number that is.

    Examples
    --------
    >>> check_number("temperature", 0.05)
    0.05
    >>> check_number("temperature", -1)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received temperature=-1; expected a positive number, such as 1.0.
    """
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        number = int(value) if isinstance(value, Integral) else float(value)
    if not 0 <= number <= most or (number == 0 and not zero):
        limit = "" if most == sys.float_info.max else f" of at most {most:g}"
        none = ", or 0" if zero else ""
        raise InvalidArgumentError(
            f"received {name}={short(value)}; expected a positive number{limit}, such as 1.0{none}."
        )
    return number


def count_entries(values: object, name: str, expected: str = "a list") -> int:
    """Return the number of entries of a list, tuple or array; raise `InvalidArgumentError` for anything else.

    Parameters
    ----------
    values, name
        What was given, and the argument's name, for the message.
    expected
        What the message says is expected.

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


# C0, DEL and C1 controls, directional marks and overrides, line separators, and lone UTF-16 surrogates. The joiners
# that Persian and emoji need are not among them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]")
_CONTROL_BUT_NEWLINE = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text with its control characters escaped.

    `lines`: keep line ends, for messages of several lines.
    """

    def escape(found: re.Match[str]) -> str:
        return found[0].encode("unicode_escape").decode("ascii")

    return (_CONTROL_BUT_NEWLINE if lines else _CONTROL).sub(escape, text)


def escape_json(text: str) -> str:
    """Escape the control characters in a JSON text that JSON allows in strings; the parsed value stays the same."""
    return _CONTROL_BUT_NEWLINE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?i?b)", re.IGNORECASE)


def parse_bytes(name: str, value: Any) -> int | None:
    """Return an argument that is a number of bytes or a text with a unit.

    `name`: the argument's name, for the message. `value`: a positive integer; or a number with the unit B, KB, MB, GB
    or TB (powers of 1000) or KiB, MiB, GiB or TiB (powers of 1024), in any case; or None. Returns: the number of bytes;
    None for None.
    """
    if value is None:
        return None
    if is_count(value):
        return int(value)
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = int(float(found[1]) * _UNITS[found[2].lower()]) if found and found[2].lower() in _UNITS else 0
    if not is_count(size):
        raise InvalidArgumentError(
            f"received {name}={short(value)}; expected a number of bytes, or a text such as '512MB', '1GB' or '1GiB'."
        )
    return size


def format_bytes(size: float) -> str:
    """Return a size as a text with a unit of powers of 1000."""
    if size < 1000:
        return f"{size:.0f} B"
    unit = next((unit for unit in ("TB", "GB", "MB") if size >= _UNITS[unit.lower()]), "KB")
    return f"{size / _UNITS[unit.lower()]:.1f} {unit}"
