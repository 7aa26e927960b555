"""Ids, texts and JSON values that a catalog stores."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable

import numpy as np

from latelier.errors import Advice, DuplicateIdError, InvalidArgumentError, UnknownIdError
from latelier.indexes.results import Id
from latelier.utils.checks import describe

_MOST_NAMED = 5  # ids in a message
# Integers that SQLite can hold.
INT64 = range(-(2**63), 2**63)


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
    if is_single_id(ids):
        return [as_id(ids)]
    # Iterating over bytes gives integers, which are other ids.
    is_bytes = isinstance(ids, (bytes, bytearray, memoryview))
    if not isinstance(ids, Iterable) or is_bytes or getattr(ids, "ndim", 1) != 1:
        raise InvalidArgumentError(f"received {type(ids).__name__} as ids; give one id or an iterable of ids.")
    return [as_id(value) for value in ids]


def as_prefixes(prefixes: object) -> list[str]:
    """Return the beginnings of ids as a list."""
    if isinstance(prefixes, (str, bytes)) or not isinstance(prefixes, Iterable):
        raise InvalidArgumentError(f"received {describe(prefixes)} as prefixes; give a list of beginnings of ids.")
    listed = list(prefixes)
    for prefix in listed:
        if not (isinstance(prefix, str) and prefix and is_unicode(prefix)):
            raise InvalidArgumentError(
                f"received {describe(prefix)} as the beginning of ids; give a str that is not empty and valid Unicode."
            )
    return [plain_str(prefix) for prefix in listed]


def check_text(text: object, id: Id) -> str | None:
    """Return the text of the document `id` as plain ``str``, or None."""
    if text is None:
        return None
    if isinstance(text, str) and is_unicode(text):
        return plain_str(text)
    received = "a text that is not valid Unicode" if isinstance(text, str) else type(text).__name__
    raise InvalidArgumentError(f"document {id!r} came with {received} as its text; give a str or None.")


def as_key(key: object, what: str) -> str:
    """Return a metadata key, or the name of a setting, as plain ``str``; `what` names its owner in an error."""
    if isinstance(key, str) and key and is_unicode(key):
        return plain_str(key)
    raise InvalidArgumentError(f"{what} has the key {key!r}; keys are str, not empty and valid Unicode.")


def encode_json(value: object, what: str, *, levels: int | None = None) -> str:
    """Return a value as JSON, if that can hold it exactly.

    `what` names the value in an error; `levels` limits the depth of lists and dicts.
    """
    try:
        _check_json(value, levels)
        return dump_json(value)
    except (ValueError, RecursionError) as error:
        reason = _too_deep(levels) if isinstance(error, RecursionError) else str(error)
        raise InvalidArgumentError(f"{what} {reason}.") from error


def duplicate_ids(ids: Iterable[Id], problem: str, advice: Advice | None = None) -> DuplicateIdError:
    """Return the error for ids that are given twice or are in the index already; `problem` says which of the two."""
    ids = list(ids)
    subject = "the id {} is" if len(ids) == 1 else "the ids {} are"
    return DuplicateIdError(f"{subject.format(_name_some(ids))} {problem}.", advice=advice)


def check_known(ids: Iterable[Id], found: Container[Id]) -> None:
    """Raise `UnknownIdError` unless all of `ids` were found in the index."""
    unknown = [id for id in dict.fromkeys(ids) if id not in found]
    if unknown:
        names = _name_some(unknown)
        raise UnknownIdError(f"no document has the id {names}.", advice="known-ids")


def _name_some(ids: Iterable[Id]) -> str:
    ids = list(ids)
    rest = f" and {len(ids) - _MOST_NAMED:,} more" if len(ids) > _MOST_NAMED else ""
    return ", ".join(map(repr, ids[:_MOST_NAMED])) + rest


def is_unicode(text: str) -> bool:
    """Whether SQLite can hold a text: a lone surrogate, as in a file name that is not UTF-8, cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_str(text: str) -> str:
    """Convert an instance of a subclass of str, such as numpy's or an enum's, to the plain str that SQLite returns."""
    return text if type(text) is str else str.__str__(text)  # str() of an enum's member would return its name


def dump_json(value: object) -> str:
    """Return a value that `encode_json` has checked as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _too_deep(levels: int | None) -> str:
    limit = "" if levels is None else f": lists and dicts may be nested {levels} levels deep"
    return f"is nested too deeply{limit}; flatten it, or store the inner levels as a JSON text"


def _check_json(value: object, levels: int | None, where: str = "", level: int = 1) -> None:
    """Raise ValueError for what JSON cannot hold or would silently change: NaN, tuples, keys that are not strings."""
    if levels is not None and level > levels and isinstance(value, (list, dict)):
        raise ValueError(_too_deep(levels))
    if isinstance(value, list):
        for item in value:
            _check_json(item, levels, where, level + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_json_key(key, where)
            _check_json(item, levels, where or f" under {key!r}", level + 1)
    elif isinstance(value, str):
        if not is_unicode(value):
            raise ValueError(f"holds a text that is not valid Unicode{where}")
    elif value is not None and not isinstance(value, (int, float)):
        module, name = type(value).__module__, type(value).__qualname__
        kind = name if module == "builtins" else f"{module}.{name}"  # numpy too has a type named bool
        raise ValueError(f"holds a {kind}{where}; JSON has None, bool, int, float, str, list and dict")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"holds {value}{where}, which JSON cannot; use None")


def _check_json_key(key: object, where: str) -> None:
    if not isinstance(key, str) or not is_unicode(key):
        raise ValueError(f"holds the key {key!r}{where}; keys are str and valid Unicode")
