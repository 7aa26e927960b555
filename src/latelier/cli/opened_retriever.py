"""Opens the `Retriever` of an index in a folder, or in a collection of Qdrant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier.cli.index_location import QdrantLocation, parse_location

if TYPE_CHECKING:
    from latelier.retrieve import Retriever

__all__ = ["open_retriever"]


def open_retriever(
    location: str | Path | QdrantLocation, *, read_only: bool = True, max_memory: str | None = None, **options: Any
) -> Retriever:
    """Open an index with the model that filled it, or with the one that the user names.

    Parameters
    ----------
    location
        The index, as the user types it or parsed; see `latelier.cli.index_location.parse_location`.
    read_only
        Open a folder for reading only; Qdrant has no such mode.
    max_memory
        Memory budget of an index in a folder.
    **options
        ``model``, ``device`` and ``backend``, as of `latelier.retrieve.Retriever.open`.

    Raises
    ------
    LatelierError
        As `Retriever.open` does; if there is no such collection; if one is given a memory budget.
    """
    from latelier.retrieve import Retriever

    place = parse_location(location) if isinstance(location, str) else location
    if not isinstance(place, QdrantLocation):
        return Retriever.open(place, read_only=read_only, max_memory=max_memory, **options)
    place.refuse_budget(max_memory)
    index = place.open_existing()
    try:
        return Retriever.open(index, **options)
    except BaseException:
        index.close()
        raise
