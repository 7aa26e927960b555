"""The arguments of a search: those of a retriever and those of one call, and a filter of another package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.integrations.conditions import SqlCondition
from latelier.utils.checks import describe

__all__ = ["add_filter", "merge_search_options"]


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


def add_filter(options: Mapping[str, Any], condition: SqlCondition | None) -> dict[str, Any]:
    """Add a condition to the filter of a search, so that both have to hold.

    Parameters
    ----------
    options
        Arguments of `latelier.retrieve.Retriever.search`.
    condition
        The condition, or None.

    Returns
    -------
    dict
        The arguments.

    Raises
    ------
    InvalidArgumentError
        If the filter of the options has named parameters, which a condition cannot be added to.

    Examples
    --------
    >>> own = {"filter": "year > ?", "parameters": (2020,)}
    >>> add_filter(own, SqlCondition("lang = ?", ("en",)))
    {'filter': ['year > ?', 'lang = ?'], 'parameters': (2020, 'en')}
    """
    if condition is None:
        return dict(options)
    filters, parameters = options.get("filter"), options.get("parameters", ())
    if isinstance(parameters, Mapping):
        raise InvalidArgumentError(
            f"received filters, and search options with the named parameters {', '.join(map(repr, parameters))}; give "
            "the values of ? in a tuple."
        )
    both = [] if filters is None else [filters] if isinstance(filters, str) else list(filters)
    return {**options, "filter": [*both, condition.sql], "parameters": (*parameters, *condition.parameters)}
