"""The fields of documents in their payloads, sorted by type, so that Qdrant's conditions have SQL's meaning.

A payload holds ``numbers`` and ``strings``: the SQL value of each field, under the key that `field_key` returns. A
field that is in neither is NULL. Whole numbers are integers, whatever type they had, since SQL compares 2.0 with 2 and
Qdrant's match does not; numbers beyond 64 bits are the nearest float.

``lists`` holds the elements of each list and dict, and of each string that is JSON, which is what SQL's json_each
reads, and ``true`` the fields whose string is true in SQL: one that begins with a number other than 0.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from latelier.indexes.filters.parse import fold_name, is_nameable
from latelier.indexes.store.rows import SqlValue, StoredDocument
from latelier.indexes.values import INT64, dump_json

__all__ = ["as_number", "field_key", "field_path", "field_payload", "is_true_text", "json_elements", "text_elements"]

_SIMPLE = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_JSON_BEGIN = re.compile(r'[ \t\n\r]*(?:[\[{"]|-?[0-9]|true|false|null)')
_NUMERIC_PREFIX = re.compile(r"[ \t\n\v\f\r]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")


def field_key(name: str) -> str:
    """Return the key of a field in a payload, which is also a step of Qdrant's paths.

    A path quotes a step that is not a word, and cannot hold a double quote: it becomes ``%22``, and ``%`` ``%25``.

    Examples
    --------
    >>> field_key("Year"), field_key('a "b".c')
    ('year', 'a %22b%22.c')
    """
    return fold_name(name).replace("%", "%25").replace('"', "%22")


def field_path(kind: str, name: str) -> str:
    """Return the path of a field among those of one type.

    Examples
    --------
    >>> field_path("numbers", "year"), field_path("strings", "a.b")
    ('numbers.year', 'strings."a.b"')
    """
    key = field_key(name)
    return f"{kind}.{key}" if _SIMPLE.fullmatch(key) else f'{kind}."{key}"'


def field_payload(document: StoredDocument) -> dict[str, Any]:
    """Return the part of a payload that filters read.

    Examples
    --------
    >>> json = '{"year":2.0,"Lang":"en","tags":["x",1]}'
    >>> values = {"year": 2.0, "Lang": "en", "tags": '["x",1]'}
    >>> payload = field_payload(StoredDocument("a", None, json, values))
    >>> payload["numbers"], payload["strings"]["lang"], payload["lists"]
    ({'year': 2}, 'en', {'tags': ['x', 1]})
    """
    numbers: dict[str, int | float] = {}
    strings: dict[str, str] = {}
    lists: dict[str, list[Any]] = {}
    originals = json.loads(document.metadata) if document.fields else {}
    # Reversed, so that of keys that differ only in case the first one wins.
    for name, value in reversed(list(document.fields.items())):
        if not is_nameable(fold_name(name)):
            continue
        key, original = field_key(name), originals[name]
        for kept in (numbers, strings, lists):
            kept.pop(key, None)
        if isinstance(value, str):
            strings[key] = value
            elements = text_elements(value) if isinstance(original, str) else None
            if elements is not None:
                lists[key] = elements
        elif value is not None:
            numbers[key] = as_number(value)
        if isinstance(original, (list, dict)):
            lists[key] = json_elements(original)
    true = sorted(key for key, value in strings.items() if is_true_text(value))
    parts = {"numbers": numbers, "strings": strings, "lists": lists, "true": true}
    return {name: part for name, part in parts.items() if part}


def as_number(value: int | float) -> int | float:
    """Return a number as payloads hold it.

    Examples
    --------
    >>> as_number(2.0), as_number(0.5), as_number(float("inf"))
    (2, 0.5, 1.7976931348623157e+308)
    """
    if isinstance(value, float):
        if abs(value) == float("inf"):  # JSON has no infinity
            return sys.float_info.max if value > 0 else -sys.float_info.max
        if value.is_integer() and int(value) in INT64:
            return int(value)
    return value


def is_true_text(value: str) -> bool:
    """Whether a string is true as a condition of SQL: it begins with a number other than 0.

    Examples
    --------
    >>> is_true_text("2nd"), is_true_text("0.0"), is_true_text("yes")
    (True, False, False)
    """
    found = _NUMERIC_PREFIX.match(value)
    return found is not None and float(found[1]) != 0


def json_elements(value: Any) -> list[SqlValue]:
    """Return the SQL values of the elements of a list or dict, as json_each reads them; None for null."""
    elements: Iterable[Any] = value.values() if isinstance(value, dict) else value
    return [_element(each) for each in elements]


def text_elements(text: str) -> list[SqlValue] | None:
    """Return what json_each reads from a string: the elements of its JSON, or a single value; None if it is not JSON.

    Examples
    --------
    >>> text_elements('["x", 2.0]'), text_elements("2"), text_elements("2nd")
    (['x', 2], [2], None)
    """
    if not _JSON_BEGIN.match(text):  # most strings, without the cost of an exception
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return json_elements(value if isinstance(value, (list, dict)) else [value])


def _element(value: Any) -> SqlValue:
    if isinstance(value, (list, dict)):
        return dump_json(value)
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, int) and int(value) not in INT64:
        return as_number(float(value) if abs(value) < 2**1023 else float("inf") * (1 if value > 0 else -1))
    return as_number(int(value) if isinstance(value, int) else value)
