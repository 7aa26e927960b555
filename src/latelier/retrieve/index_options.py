"""`check_index_options`: the options that the search of one kind of index has beyond those of every index."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.indexes import Index
from latelier.utils.checks import short

__all__ = ["check_index_options", "own_options"]


def check_index_options(index: Index, options: Mapping[str, Any]) -> None:
    """Check that the search of an index has some options, which every index names for itself.

    Parameters
    ----------
    index
        The index to search.
    options
        Further options of its `search`, such as ``effort`` of `latelier.indexes.IVF`.

    Raises
    ------
    InvalidArgumentError
        If the index has no option of such a name; the message names those that it has.

    Examples
    --------
    >>> from latelier import indexes
    >>> check_index_options(indexes.IVF(), {"effort": 2.0})
    >>> try:
    ...     check_index_options(indexes.Flat(), {"effort": 2.0})
    ... except InvalidArgumentError as error:
    ...     print(str(error).split(", and")[0])
    a search of Flat has no option 'effort'; it has none of its own
    """
    known = _parameters(type(index).search) - _parameters(Index.search)
    for name in options:
        if name not in known:
            named = f"its own are {', '.join(sorted(known))}" if known else "it has none of its own"
            every = ", ".join(sorted({"k"} | _parameters(Index.search) - {"texts"}))
            raise InvalidArgumentError(
                f"a search of {type(index).__name__} has no option {short(name)}; {named}, and every index has {every}."
            )


def own_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a search's options that not every index has.

    Examples
    --------
    >>> own_options({"mode": "hybrid", "effort": 2.0})
    {'effort': 2.0}
    """
    return {name: value for name, value in options.items() if name not in _parameters(Index.search)}


def _parameters(search: Callable[..., Any]) -> set[str]:
    """Return the names of the keyword-only parameters of an index's `search`."""
    parameters = inspect.signature(search).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
