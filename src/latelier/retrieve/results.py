"""`Result`: one hit of a search by text; `Results`: those of one query."""

from __future__ import annotations

from typing import Any, NamedTuple

from latelier.indexes import Id
from latelier.utils.checks import cut
from latelier.utils.misc import bar, fragment, table

# Characters of a text, and of the metadata of a document, that the table of a notebook shows.
_LONGEST_TEXT, _LONGEST_METADATA = 300, 200


class Result(NamedTuple):
    """One hit of a search: the document's id, its MaxSim score (higher is better), its text and its metadata.

    In an index of passages, the text is that of the document's best passage: `start` and `end` are its place in the
    text that the user gave, in characters. If the document has a title, the passage begins with it, so the last
    ``end - start`` characters of the text are those of that place. For whole documents, both are None.

    Examples
    --------
    >>> Result("a", 1.5, "Bananas are healthy.", {"year": 2024}).metadata["year"]
    2024
    """

    id: Id
    score: float
    text: str | None
    metadata: dict[str, Any]
    start: int | None = None
    end: int | None = None


class Results(list[Result]):
    """The hits of one query, best first: a list that a notebook shows as a table.

    Examples
    --------
    >>> results = Results([Result("a", 1.5, "Bananas are healthy.", {})])
    >>> results == [Result("a", 1.5, "Bananas are healthy.", {})]
    True
    """

    def _repr_html_(self) -> str:
        if not self:
            return fragment("no document found")
        most = max(result.score for result in self)
        has_metadata = any(result.metadata for result in self)
        rows: list[tuple[Any, ...]] = []
        for rank, result in enumerate(self, start=1):
            score = bar(f"{result.score:.3f}", result.score / most if most > 0 else 0.0)
            metadata = "\n".join(f"{key}: {value}" for key, value in result.metadata.items())
            # Cut before the text is split: it may have megabytes.
            text = cut(" ".join((result.text or "")[: 2 * _LONGEST_TEXT].split()), _LONGEST_TEXT)
            row = (rank, score, str(result.id), text)
            rows.append((*row, cut(metadata, _LONGEST_METADATA)) if has_metadata else row)
        return fragment(table(["rank", "score", "id", "text", "metadata"][: len(rows[0])], rows))
