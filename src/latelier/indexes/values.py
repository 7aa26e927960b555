"""What may stand beside the vectors: ids, texts and metadata, checked and turned into what the catalog stores.

Metadata is kept twice: as exact JSON, which is what `get` returns, and as one SQL value per top-level key, which is
what filters compare. The SQL values are 0 and 1 for booleans, JSON text for lists and dicts, and the nearest float
for integers beyond 64 bits.
"""

from __future__ import annotations

import json
import math
import os
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from latelier.errors import DuplicateIdError, InvalidArgumentError, StorageError, UnknownIdError
from latelier.indexes.base import Id
from latelier.utils.describing import describe

__all__ = [
    "SqlValue",
    "as_folder",
    "as_id",
    "as_ids",
    "check_text",
    "duplicate_ids",
    "encode_metadata",
    "encode_setting",
    "fold_name",
    "is_single_id",
    "is_unicode",
    "unknown_ids",
]

SqlValue: TypeAlias = "int | float | str | None"
_INT64 = range(-(2**63), 2**63)
# What documents without metadata share: thousands of empty dicts would keep the garbage collector busy.
_NOTHING: Mapping[str, SqlValue] = MappingProxyType({})
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def is_single_id(ids: object) -> bool:
    """Whether the user named one document rather than several."""
    return isinstance(ids, (str, int, np.integer))


def as_id(value: object) -> Id:
    """Return an id as plain ``str`` or ``int``, or say why it cannot be one."""
    if isinstance(value, str) and value and is_unicode(value):
        return _plain(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) in _INT64:
        return int(value)
    raise InvalidArgumentError(
        f"received {describe(value)} as an id; an id is a str that is not empty and is valid Unicode, "
        "or an int of 64 bits."
    )


def as_ids(ids: object) -> list[Id]:
    """Return one id or an iterable of ids as a list."""
    if is_single_id(ids):
        return [as_id(ids)]
    if not isinstance(ids, Iterable) or getattr(ids, "ndim", 1) != 1:
        raise InvalidArgumentError(f"received {type(ids).__name__} as ids; give one id or an iterable of ids.")
    return [as_id(value) for value in ids]


def as_folder(path: object) -> Path:
    """Return a path as an absolute one, or say why it cannot be a folder's."""
    if isinstance(path, (str, os.PathLike)) and "\0" not in os.fsdecode(path) and _is_encodable(path):
        # Connections and segments are still opened after the process has changed its folder.
        folder = Path(os.fsdecode(path)).absolute()
        try:
            folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass  # may be made, or is said elsewhere
        except OSError as error:  # a name that is too long, or a folder above that may not be read
            reason = error.strerror or error
            raise StorageError(f"could not look for an index in {str(folder)!r:.200}: {reason}.") from error
        return folder
    raise InvalidArgumentError(f"received {describe(path)} as a path; give the folder of the index as a str or a Path.")


def _is_encodable(path: str | os.PathLike[str]) -> bool:
    """Whether the system can be asked for a path; a lone surrogate that stands for no byte has no form there."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def check_text(text: object, id: Id) -> str | None:
    """Return the text of a document, or say why it cannot be stored."""
    if text is None:
        return None
    if isinstance(text, str) and is_unicode(text):
        return _plain(text)
    received = "a text that is not valid Unicode" if isinstance(text, str) else type(text).__name__
    raise InvalidArgumentError(f"document {id!r} came with {received} as its text; give a str or None.")


def encode_metadata(metadata: object, id: Id) -> tuple[str, Mapping[str, SqlValue]]:
    """Return the exact JSON of a document's metadata, and one SQL value per key.

    Examples
    --------
    >>> encode_metadata({"year": 2020, "open": True, "tags": ["a"]}, "doc")
    ('{"year":2020,"open":true,"tags":["a"]}', {'year': 2020, 'open': 1, 'tags': '["a"]'})
    """
    if metadata is None:
        return "{}", _NOTHING
    if not isinstance(metadata, Mapping):
        raise InvalidArgumentError(
            f"document {id!r} came with {type(metadata).__name__} as its metadata; give a dict or None."
        )
    try:
        plain = {_key(key): value for key, value in metadata.items()}
        _check_json(plain)
        return _dump(plain), {key: _sql_value(value) for key, value in plain.items()}
    except (ValueError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidArgumentError(f"the metadata of document {id!r} {reason}.") from error


def encode_setting(name: object, value: object) -> tuple[str, str]:
    """Return the name of a user's setting and its value as JSON, or say why it cannot be stored."""
    try:
        known = _key(name)
        _check_json(value)
        return known, _dump(value)
    except (ValueError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidArgumentError(f"the setting {name!r} {reason}.") from error


def fold_name(name: str) -> str:
    """Return the form in which SQL compares names: ASCII letters in lower case, others untouched."""
    return name.translate(_FOLD)


def duplicate_ids(ids: Iterable[Id], problem: str) -> DuplicateIdError:
    """Return the error for ids that came twice."""
    return DuplicateIdError(f"{_name_some(ids)} {problem}.")


def unknown_ids(ids: Iterable[Id]) -> UnknownIdError:
    """Return the error for ids that are not there."""
    return UnknownIdError(f"no document has the id {_name_some(ids)}; ids() lists those of the index (1 is not '1').")


def _name_some(ids: Iterable[Id], most: int = 5) -> str:
    ids = list(ids)
    rest = f" and {len(ids) - most:,} more" if len(ids) > most else ""
    return ", ".join(map(repr, ids[:most])) + rest


def is_unicode(text: str) -> bool:
    """Whether a text has a UTF-8 form."""
    # A lone surrogate, as os.fsdecode makes of a broken file name, has no UTF-8 form: SQLite cannot hold it.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(text: str) -> str:
    """Return a text of numpy, an enum or another subclass as a str, which is what comes back from SQLite."""
    return text if type(text) is str else str.__str__(text)  # str() of a member of an enum would be its name


def _key(key: object) -> str:
    if isinstance(key, str) and key and is_unicode(key):
        return _plain(key)
    raise ValueError(f"has the key {key!r}; keys are str, not empty and valid Unicode")


def _check_json(value: object, where: str = "") -> None:
    """Refuse what JSON cannot hold or would silently change: NaN, tuples, keys that are not strings."""
    if isinstance(value, list):
        for item in value:
            _check_json(item, where)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str) or not is_unicode(key):
                raise ValueError(f"holds the key {key!r}{where}; keys are str and valid Unicode")
            _check_json(item, where or f" under {key!r}")
    elif isinstance(value, str):
        if not is_unicode(value):
            raise ValueError(f"holds a text that is not valid Unicode{where}")
    elif value is not None and not isinstance(value, (int, float)):
        kinds = "None, bool, int, float, str, list and dict"
        raise ValueError(f"holds a {type(value).__name__}{where}; JSON has {kinds}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"holds {value}{where}, which JSON cannot; use None")


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _sql_value(value: Any) -> SqlValue:
    if isinstance(value, (list, dict)):
        return _dump(value)
    if isinstance(value, int) and int(value) not in _INT64:
        return float(value) if abs(value) < 2**1023 else math.copysign(math.inf, 1 if value > 0 else -1)
    if isinstance(value, str):
        return _plain(value)
    # Not a bool, nor a number of numpy.
    return None if value is None else int(value) if isinstance(value, int) else float(value)
