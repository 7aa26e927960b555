"""The keys of documents' metadata that are fields, by which filters name them."""

from __future__ import annotations

import string
from collections.abc import Iterable

RESERVED = ("id", "text", "metadata")
_NOT_NAMEABLE = {*RESERVED, "true", "false"}  # SQLite reads the last two as constants in a subquery, even in quotes
MOST_FIELDS = 500
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def fold_name(name: str) -> str:
    """Return the form in which SQL compares names: ASCII letters in lower case, all others unchanged."""
    return name.translate(_FOLD)


def is_nameable(folded: str) -> bool:
    """Whether filters can name a key of the metadata, given as `fold_name` returns it."""
    # A null character would end the statement.
    return folded not in _NOT_NAMEABLE and "\0" not in folded


def new_fields(known: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Return those of some metadata keys that become fields beside the known ones, up to 500 in all."""
    folded = {fold_name(key) for key in known}
    found = []
    for key in dict.fromkeys(keys):
        name = fold_name(key)
        if name not in folded and is_nameable(name) and len(folded) < MOST_FIELDS:
            folded.add(name)
            found.append(key)
    return found
