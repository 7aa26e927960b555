"""`Result`: one hit of a search by text."""

from __future__ import annotations

from typing import Any, NamedTuple

from latelier.indexes import Id

__all__ = ["Result"]


class Result(NamedTuple):
    """One hit of a search: the document's id, its MaxSim score (higher is better), its text and its metadata.

    Examples
    --------
    >>> Result("a", 1.5, "Bananas are healthy.", {"year": 2024}).metadata["year"]
    2024
    """

    id: Id
    score: float
    text: str | None
    metadata: dict[str, Any]
