"""The texts that users give to a retriever, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import describe, short
from latelier.utils.files import check_unicode

__all__ = ["checked_queries"]


def checked_queries(texts: Any, name: str = "queries") -> list[str]:
    """Return one text or several as a list of texts that can be encoded; messages call them `name`."""
    if isinstance(texts, (bytes, bytearray, Mapping)) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(f"received {describe(texts)} as {name}; expected a text or a list of texts.")
    queries = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(queries):
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgumentError(f"{name}[{position}] is {short(text)}; expected a text that is not empty.")
        check_unicode(text, f"{name}[{position}]")
    return queries
