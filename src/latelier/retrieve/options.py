"""Options of loading a model that an index keeps: plain numbers, words and texts, of known names.

Whatever could name code, files, credentials or another loader (``trust_remote_code``, ``model_kwargs``, ``token``,
``backend`` and so on) works for whoever passes it, and is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import describe, short

__all__ = ["check_option", "plain_options"]

_LARGEST = 1_000_000
_LONGEST = 10_000
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}", re.ASCII)


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that an index may keep.

    Examples
    --------
    >>> plain_options({"max_length_document": 64, "trust_remote_code": True, "prompts": {"query": "q: "}})
    {'max_length_document': 64, 'prompts': {'query': 'q: '}}
    """
    return {name: value for name, value in options.items() if name in _KNOWN and _KNOWN[name][0](value)}


def check_option(name: str, value: Any) -> None:
    """Refuse an option that is not plain.

    Raises
    ------
    InvalidArgumentError
        If the name is not known, or the value is of another type or out of range.

    Examples
    --------
    >>> check_option("truncate_dim", 64)
    >>> check_option("trust_remote_code", True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: the option 'trust_remote_code' is not one of embedding_size, ...
    """
    if name not in _KNOWN:
        raise InvalidArgumentError(f"the option {short(name)} is not one of {', '.join(_KNOWN)}.")
    is_plain, expected = _KNOWN[name]
    if not is_plain(value):
        raise InvalidArgumentError(f"the option {name} is {describe(value)}; expected {expected}.")


def _is_number(value: Any) -> bool:
    return value is None or (type(value) is int and 1 <= value <= _LARGEST)


def _is_text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= _LONGEST)


def _are_prompts(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and len(value) <= 100
        and all(isinstance(key, str) and len(key) <= 100 and isinstance(text, str) for key, text in value.items())
        and all(map(_is_text, value.values()))
    )


def _is_revision(value: Any) -> bool:
    return value is None or (isinstance(value, str) and bool(_REVISION.fullmatch(value)) and ".." not in value)


def _is_similarity(value: Any) -> bool:
    return value is None or value in ("maxsim", "meanmaxsim")


_NUMBER = (_is_number, f"an integer from 1 to {_LARGEST:,}")
_KNOWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "embedding_size": _NUMBER,
    "max_length_query": _NUMBER,
    "max_length_document": _NUMBER,
    "truncate_dim": _NUMBER,
    "prompts": (_are_prompts, "texts by name"),
    "default_prompt_name": (_is_text, f"a text of at most {_LONGEST:,} characters"),
    "similarity_fn_name": (_is_similarity, "'maxsim' or 'meanmaxsim'"),
    "revision": (_is_revision, "a name of a branch, a tag or a commit"),
}
