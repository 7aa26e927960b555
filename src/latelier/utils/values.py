"""What can be stored of a document: ids, texts and metadata as plain values that JSON and SQLite hold exactly."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import describe, is_unicode

Id: TypeAlias = "str | int"
"""The id of a document; 1 and "1" are two ids."""

# Integers that SQLite can hold.
INT64 = range(-(2**63), 2**63)
# SQLite's limit of a row, with a margin.
_MOST_BYTES = 10**9 - 10**4
# Of dicts and lists, the metadata itself included. Readers in other languages and frameworks stop somewhat deeper.
_MOST_LEVELS = 100


def is_single_id(ids: object) -> bool:
    """Whether `ids` is one id rather than an iterable of ids."""
    return isinstance(ids, (str, int, np.integer))


def as_id(value: object) -> Id:
    """Return an id as plain ``str`` or ``int``."""
    # The usual cases take a third of the time of the checks below.
    if (type(value) is int and value in INT64) or (type(value) is str and value and value.isascii()):
        return value
    if isinstance(value, str) and value and is_unicode(value):
        return plain_str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) in INT64:
        return int(value)
    raise InvalidArgumentError(
        f"received {describe(value)} as an id; an id is a str that is not empty and is valid Unicode, "
        "or an int of 64 bits."
    )


def as_ids(ids: object) -> list[Id]:
    """Return one id or an iterable of ids as a list."""
    return list(map(as_id, ids if isinstance(ids, Iterable) and not is_single_id(ids) else [ids]))


def check_text(text: object, id: Id) -> str | None:
    """Return the text of the document `id` as plain ``str``, or None."""
    if text is None:
        return None
    if isinstance(text, str) and is_unicode(text):
        return plain_str(text)
    if isinstance(text, str):
        received = "a text that is not valid Unicode"
    else:
        received = type(text).__name__
    raise InvalidArgumentError(f"document {id!r} came with {received} as its text; give a str or None.")


def as_key(key: object, what: str) -> str:
    """Return a metadata key, or the name of a setting, as plain ``str``; `what` names its owner in an error."""
    if isinstance(key, str) and key and is_unicode(key):
        return plain_str(key)
    raise InvalidArgumentError(f"{what} has the key {key!r}; keys are str, not empty and valid Unicode.")


def encode_json(value: object, what: str, *, levels: int | None = None) -> str:
    """Return a value as JSON, if that can hold it exactly: no NaN, no tuple, no key that is not a string."""
    try:
        text = dump_json(value)
        text.encode()
        is_same = json.loads(text) == value
        depth = _depth(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{what} cannot be stored as JSON: {error}.") from error
    if not is_same:
        raise InvalidArgumentError(
            f"{what} would change as JSON, which has lists, dicts with keys that are str, str, "
            "int, float, bool and None."
        )
    if levels is not None and depth > levels:
        raise _nested_too_deeply(what, levels)
    return text


def _nested_too_deeply(what: str, levels: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{what} is nested too deeply: lists and dicts may be nested {levels} levels deep; flatten it, or store the "
        "inner levels as a JSON text."
    )


def encode_fields(metadata: object, id: Id) -> tuple[str, dict[str, Any]]:
    """Return the exact JSON of a document's metadata, and its fields."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidArgumentError(
            f"document {id!r} came with {type(metadata).__name__} as its metadata; give a dict or None."
        )
    if not metadata:
        return "{}", {}
    what = f"the metadata of document {id!r}"
    try:
        plain = {as_key(key, what): plain_value(value) for key, value in metadata.items()}
    except RecursionError as error:
        raise _nested_too_deeply(what, _MOST_LEVELS) from error
    except InvalidArgumentError as error:
        if error.fact.startswith(what):
            raise
        raise InvalidArgumentError(f"{what} cannot be stored as JSON: {error.fact}") from error
    check_row_size(what, plain.values())
    return encode_json(plain, what, levels=_MOST_LEVELS), plain


def plain_value(value: Any) -> Any:
    """Return a value as JSON has it, if there is one that means the same.

    Numbers and arrays of numpy are those of Python, times ISO 8601, durations seconds, decimals numbers, paths and
    UUIDs texts, bytes UTF-8; NaN, infinity and what pandas has for a missing value are None.
    """
    if type(value) in _PLAIN or (isinstance(value, (str, int)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, Mapping):
        return {key: plain_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(each) for each in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return plain_value(_python(value))
    if isinstance(value, (float, decimal.Decimal)):
        return _plain_number(value)
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return _plain_text(value)


def _plain_number(value: float | decimal.Decimal) -> int | float | None:
    if not math.isfinite(value):
        return None
    if isinstance(value, decimal.Decimal) and value == value.to_integral_value():
        return int(value)
    return float(value)


def _plain_text(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError("it holds bytes that are not UTF-8 text.") from error
    if isinstance(value, (uuid.UUID, PurePath)) or type(value).__module__.partition(".")[0] in _TABLES:
        return str(value)
    raise InvalidArgumentError(f"it holds a value of type {type(value).__name__}; give texts, numbers, lists or dicts.")


_PLAIN = frozenset({str, int, bool, type(None)})
_MISSING = frozenset({"NAType", "NaTType"})
_TABLES = frozenset({"pandas", "pyarrow", "polars", "duckdb"})  # their intervals and periods


def _python(value: Any) -> Any:
    """Return numbers of numpy as those of Python, which has microseconds: times are rounded down."""
    if value.dtype.kind not in "mM":
        return value.tolist()
    if value.ndim:
        return [_python(each) for each in value]
    if np.isnat(value):
        return None
    if np.datetime_data(value.dtype)[0] in ("ns", "ps", "fs", "as"):
        value = value.astype(f"{value.dtype.kind}8[us]")
    return value.tolist()


def check_row_size(what: str, values: Iterable[object]) -> None:
    """Raise `InvalidArgumentError` if texts cannot be in one row of SQLite."""
    texts = [value for value in values if isinstance(value, str)]
    size = sum(map(len, texts))
    if _MOST_BYTES // 4 < size <= _MOST_BYTES:
        size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if size > _MOST_BYTES:
        raise InvalidArgumentError(f"{what} has {size:,} bytes, and an index holds up to {_MOST_BYTES:,}; split it.")


def plain_str(text: str) -> str:
    """Convert an instance of a subclass of str, such as numpy's or an enum's, to the plain str that SQLite returns."""
    if type(text) is str:
        return text
    return str.__str__(text)  # str() of an enum's member would return its name


def dump_json(value: object) -> str:
    """Return a value as JSON; `encode_json` checks one of a user."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _depth(value: object) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)
