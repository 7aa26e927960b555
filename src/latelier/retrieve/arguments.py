"""What callers of a retriever may give: checked before anything is encoded, and named where it is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import describe, short
from latelier.utils.reading import check_unicode

__all__ = ["as_queries"]


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
