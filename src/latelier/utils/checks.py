"""Checks of arguments, and how messages show values.

Control characters can move a terminal's cursor, rename its window or clear it; bidirectional overrides can make a line
look different from what it holds.
"""

from __future__ import annotations

import math
import re
import reprlib
import sys
from collections.abc import Collection
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, overload

from latelier.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

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
    if value is None:
        return "None"
    return f"{short(value)} ({type(value).__name__})"


def cut(text: str, length: int = 60) -> str:
    """Shorten a text that is longer than `length` to its beginning."""
    if len(text) <= length:
        return text
    return f"{text[:length]} ..."


def check_choice(name: str, value: Any, choices: Collection[str] | Collection[int], *, optional: bool = False) -> None:
    """Raise `InvalidArgumentError` unless an argument is one of several texts or integers, or None if `optional`."""
    if (optional and value is None) or ((isinstance(value, str) or is_count(value)) and value in choices):
        return
    *others, last = [*map(repr, choices), *(["None"] if optional else [])]
    if others:
        expected = f"{', '.join(others)} or {last}"
    else:
        expected = last
    meant = did_you_mean(value, [choice for choice in choices if isinstance(choice, str)])
    raise InvalidArgumentError(f"received {name}={short(value)}; expected {expected}.{meant}")


# What other libraries call options that have another name here.
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    "body": ("text",),
    "content": ("text",),
    "delete": ("remove",),
    "docs": ("documents",),
    "filters": ("filter",),
    "input": ("texts", "query"),
    "insert": ("add",),
    "k": ("top_n",),
    "limit": ("k", "top_n"),
    "n_results": ("k",),
    "num_results": ("k",),
    "q": ("query",),
    "query": ("search",),
    "size": ("k",),
    "text": ("query", "texts"),
    "texts": ("documents",),
    "top_k": ("k", "top_n"),
    "top_n": ("k",),
    "upsert": ("update",),
    "where": ("filter",),
}


def did_you_mean(value: Any, choices: Collection[str]) -> str:
    """Return `` Did you mean 'k'?`` for a name of other libraries, or one that is nearly a choice; empty for others."""
    if not isinstance(value, str):
        return ""
    elsewhere = [name for name in _ELSEWHERE.get(value, ()) if name in choices]
    near = elsewhere or get_close_matches(value, choices, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


@overload
def check_count(
    name: str, value: Any, least: int = ..., most: int | None = ..., *, optional: Literal[False] = ...
) -> int: ...
@overload
def check_count(name: str, value: Any, least: int = ..., most: int | None = ..., *, optional: bool) -> int | None: ...


def check_count(
    name: str, value: Any, least: int = 1, most: int | None = None, *, optional: bool = False
) -> int | None:
    """Return an integer, `int` or numpy's, as an `int`; raise `InvalidArgumentError` if it is none, or out of range."""
    if optional and value is None:
        return None
    if is_count(value, least, most):
        return int(value)
    if most is None:
        wanted = f"of at least {least}"
    else:
        wanted = f"from {least} to {most}"
    if most is None and is_count(value, least, math.inf):
        wanted += f" and at most {sys.maxsize}"
    none = ", or None" if optional else ""
    raise InvalidArgumentError(f"received {name}={short(value)}; expected an integer {wanted}{none}.")


def is_count(value: Any, least: int = 1, most: float | None = None) -> TypeGuard[int]:
    """Whether a value is an integer that `check_count` accepts; no bool, nor 2.0."""
    is_integer = isinstance(value, (int, Integral)) and not isinstance(value, bool)
    return is_integer and bool(least <= value <= (sys.maxsize if most is None else most))


def check_number(name: str, value: Any, *, zero: bool = False, most: float = sys.float_info.max) -> float:
    """Return a positive, finite number, or 0 if `zero`, as one of Python; raise `InvalidArgumentError` otherwise."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        if isinstance(value, Integral):
            number = int(value)
        else:
            number = float(value)
    if not 0 <= number <= most or (number == 0 and not zero):
        if most == sys.float_info.max:
            limit = ""
        else:
            limit = f" of at most {most:g}"
        none = ", or 0" if zero else ""
        raise InvalidArgumentError(
            f"received {name}={short(value)}; expected a positive number{limit}, such as 1.0{none}."
        )
    return number


# C0, DEL and C1 controls, directional marks and overrides, line separators, and lone UTF-16 surrogates. The joiners
# that Persian and emoji need are not among them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff]")
_CONTROL_BUT_NEWLINE = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text with its control characters escaped; `lines` keeps line ends."""

    def escape(found: re.Match[str]) -> str:
        return found[0].encode("unicode_escape").decode("ascii")

    return (_CONTROL_BUT_NEWLINE if lines else _CONTROL).sub(escape, text)


def escape_json(text: str) -> str:
    """Escape the control characters in a JSON text that JSON allows in strings; the parsed value stays the same."""
    return _CONTROL_BUT_NEWLINE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_unicode(text: str) -> bool:
    """Whether SQLite can hold a text: a lone surrogate, as in a file name that is not UTF-8, cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unicode(text: str, name: str) -> None:
    """Check that a text has a UTF-8 form, which tokenizers and SQLite need: a lone surrogate has none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{name} is not valid Unicode: {text[error.start]!r} at position {error.start} is half of a surrogate "
            "pair. It comes from a text that was cut in UTF-16, or from bytes that are not UTF-8."
        ) from error


_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?i?b)", re.IGNORECASE)


def parse_bytes(name: str, value: Any) -> int | None:
    """Return bytes given as a number or with a unit, KB, MB, GB, TB or KiB, MiB, GiB, TiB; None for None."""
    if value is None:
        return None
    if is_count(value):
        return int(value)
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
    else:
        found = None
    if found and found[2].lower() in _UNITS:
        size = int(float(found[1]) * _UNITS[found[2].lower()])
    else:
        size = 0
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


def resolve_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on.

    Parameters
    ----------
    device
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``, or a `torch.device`; None takes the best available one:
        CUDA, then Apple's MPS, then the CPU.

    Examples
    --------
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    import torch

    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [name for name, is_there in has.items() if is_there]
    if device is None:
        return torch.device(available[0])
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"unknown device {short(device)}; expected 'cpu', 'cuda', 'cuda:1', 'mps', or None for the best available."
        ) from error
    if not has.get(resolved.type, True) or (
        resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count()
    ):
        raise InvalidArgumentError(
            f"device {str(device)!r} was asked for, but torch {torch.__version__} finds "
            f"{torch.cuda.device_count()} CUDA devices here; available: {', '.join(available)}."
        )
    return resolved
