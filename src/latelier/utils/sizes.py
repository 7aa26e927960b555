"""Sizes in bytes, as users write them: ``"512MB"``, ``"1GB"``, ``"1GiB"`` or a number of bytes."""

from __future__ import annotations

import re
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import is_count
from latelier.utils.describing import short

__all__ = ["format_bytes", "parse_bytes"]

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?i?b)", re.IGNORECASE)


def parse_bytes(name: str, value: Any) -> int | None:
    """Return an argument that is a number of bytes or a text with a unit.

    Parameters
    ----------
    name
        The argument's name, for the message.
    value
        A positive integer; or a number with the unit B, KB, MB, GB or TB (powers of 1000) or KiB, MiB, GiB or TiB
        (powers of 1024), in any case; or None.

    Returns
    -------
    int or None
        The number of bytes; None for None.

    Raises
    ------
    InvalidArgumentError
        If it is none of these, or less than a byte.

    Examples
    --------
    >>> parse_bytes("max_memory", "1.5GB"), parse_bytes("max_memory", "1 GiB")
    (1500000000, 1073741824)
    >>> parse_bytes("max_memory", "lots")
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received max_memory='lots'; expected a number of \
bytes, or a text such as '512MB', '1GB' or '1GiB'.
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
    """Return a size as a text with a unit of powers of 1000.

    Examples
    --------
    >>> format_bytes(980), format_bytes(12_345_678), format_bytes(2_500_000_000)
    ('980 B', '12.3 MB', '2.5 GB')
    """
    if size < 1000:
        return f"{size:.0f} B"
    unit = next((unit for unit in ("TB", "GB", "MB") if size >= _UNITS[unit.lower()]), "KB")
    return f"{size / _UNITS[unit.lower()]:.1f} {unit}"
