"""Opens the `Retriever` of an index in a folder, or in a collection of Qdrant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latelier.cli.index_location import open_index

if TYPE_CHECKING:
    from latelier.retrieve import Retriever

__all__ = ["open_retriever"]


def open_retriever(location: str, *, max_memory: str | None = None, **options: Any) -> Retriever:
    """Open an index for reading, with the model that filled it, or with the one that the user names.

    Parameters
    ----------
    location
        The index, as the user types it; see `latelier.cli.index_location.parse_location`.
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

    index = open_index(location, max_memory=max_memory)
    try:
        return Retriever.open(index, **options)
    except BaseException:
        index.close()
        raise
