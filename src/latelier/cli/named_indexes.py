"""Several indexes on one command line, each with a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier.cli.index_location import QdrantLocation, open_index, parse_location
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


def open_named(
    locations: Mapping[str, Path | QdrantLocation],
    stack: ExitStack,
    *,
    read_only: bool,
    max_memory: str | None = None,
    **options: Any,
) -> dict[str, Retriever]:
    """Open indexes, first all of them and then their models, which takes much longer.

    Parameters
    ----------
    locations
        Where the indexes are, by name.
    stack
        Closes them.
    read_only, max_memory
        As of `latelier.cli.index_location.open_index`, also about errors.
    **options
        ``model``, ``device`` and ``backend``, as of `latelier.retrieve.Retriever.open`.

    Returns
    -------
    dict
        Retrievers by name.
    """
    from latelier.retrieve import Retriever

    opened = {
        name: stack.enter_context(open_index(location, read_only=read_only, max_memory=max_memory))
        for name, location in locations.items()
    }
    return {name: Retriever.open(index, **options) for name, index in opened.items()}


def _named(argument: str) -> tuple[str, str]:
    """Return the name, or an empty one, and the location of an argument, ``INDEX`` or ``NAME=INDEX``."""
    name, equals, location = argument.partition("=")
    # A colon or slash before the sign belongs to a location.
    if equals and location and not {"/", ":"} & set(name) and not Path(argument).exists():
        return name, location
    return "", argument
