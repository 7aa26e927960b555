"""What callers of a retriever may give: checked before anything is encoded, and named where it is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from latelier.describing import describe, short
from latelier.errors import InvalidArgumentError
from latelier.reading import check_unicode

__all__ = ["as_queries", "check_count"]


def as_queries(texts: Any) -> list[str]:
    """Return one query or several as a list, each a text that can be encoded.

    Raises
    ------
    InvalidArgumentError
        If something else is given, or a text is empty or no Unicode.

    Examples
    --------
    >>> as_queries("fruit"), as_queries(("fruit", "moon"))
    (['fruit'], ['fruit', 'moon'])
    >>> as_queries(None)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received None to search for; expected a text, or a list of texts.
    """
    if isinstance(texts, (bytes, bytearray, Mapping)) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(f"received {describe(texts)} to search for; expected a text, or a list of texts.")
    queries = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(queries):
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgumentError(f"queries[{position}] is {short(text)}; expected a text that is not empty.")
        check_unicode(text, f"queries[{position}]")
    return queries


def check_count(name: str, value: Any) -> None:
    """Refuse a number of things that is not a positive integer.

    Raises
    ------
    InvalidArgumentError
        If it is not.

    Examples
    --------
    >>> check_count("chunk_size", 0)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received chunk_size=0; expected a positive integer.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= sys.maxsize:
        raise InvalidArgumentError(f"received {name}={short(value)}; expected a positive integer.")
