"""Several indexes on one command line, each with a name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier.cli.index_location import QdrantLocation, parse_location
from latelier.cli.opened_retriever import open_retriever
from latelier.errors import InvalidArgumentError

if TYPE_CHECKING:
    from latelier.retrieve import Retriever

__all__ = ["named_locations", "open_named"]


def named_locations(arguments: Iterable[str]) -> dict[str, Path | QdrantLocation]:
    """Return where some indexes are, by name.

    Parameters
    ----------
    arguments
        Each ``INDEX``, whose name is that of the folder or of the collection of Qdrant, or ``NAME=INDEX``.

    Raises
    ------
    InvalidArgumentError
        If two have the same name.

    Examples
    --------
    >>> found = named_locations(["papers", "old=2024/papers", "qdrant:lib#notes"])
    >>> list(found), found["notes"].collection
    (['papers', 'old', 'notes'], 'notes')
    """
    locations: dict[str, Path | QdrantLocation] = {}
    for argument in arguments:
        name, text = _named(argument)
        location = parse_location(text)
        if not name:
            name = location.collection if isinstance(location, QdrantLocation) else location.resolve().name
        if name in locations:
            raise InvalidArgumentError(f"received two indexes named {name!r}; name one of them: NAME={text}")
        locations[name] = location
    return locations


def open_named(arguments: Iterable[str], stack: ExitStack, **options: Any) -> dict[str, Retriever]:
    """Open indexes.

    Parameters
    ----------
    arguments
        See `named_locations`, also about errors.
    stack
        Closes them.
    **options
        Those of `latelier.cli.opened_retriever.open_retriever`.

    Returns
    -------
    dict
        Retrievers by name.
    """
    locations = named_locations(arguments)
    return {name: stack.enter_context(open_retriever(location, **options)) for name, location in locations.items()}


def _named(argument: str) -> tuple[str, str]:
    """Return the name, or an empty one, and the location of an argument, ``INDEX`` or ``NAME=INDEX``."""
    name, equals, location = argument.partition("=")
    # A colon or slash before the sign belongs to a location.
    if equals and location and not {"/", ":"} & set(name) and not Path(argument).exists():
        return name, location
    return "", argument
