"""`merge_search_options`: the arguments of a search, from those of a retriever and those of one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import describe

__all__ = ["merge_search_options"]


def merge_search_options(*levels: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge arguments of `latelier.retrieve.Retriever.search`; later ones replace earlier ones.

    Parameters
    ----------
    *levels
        From general to special; None has no arguments. A ``filter`` comes with its own ``parameters``.

    Returns
    -------
    dict
        The arguments.

    Raises
    ------
    InvalidArgumentError
        If one is not a dict.

    Examples
    --------
    >>> own = {"k": 5, "filter": "year > ?", "parameters": (2020,)}
    >>> merge_search_options(own, {"k": 3})
    {'k': 3, 'filter': 'year > ?', 'parameters': (2020,)}
    >>> merge_search_options(own, {"filter": "lang = 'en'"})
    {'k': 5, 'filter': "lang = 'en'"}
    """
    merged: dict[str, Any] = {}
    for level in levels:
        if not isinstance(level, (Mapping, type(None))):
            raise InvalidArgumentError(
                f"received {describe(level)} as search options; expected a dict of arguments of Retriever.search."
            )
        given = level or {}
        if "filter" in given:
            merged.pop("parameters", None)
        merged.update(given)
    return merged
