"""The results of an index's methods: hits, records, and the reports of `check` and `verify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, overload

from latelier.utils.misc import bar, fragment, table

__all__ = ["CheckReport", "Damage", "Hit", "Id", "Record", "VerifyReport"]

Id: TypeAlias = "str | int"
"""The id of a document; 1 and "1" are two ids."""


class Hit(NamedTuple):
    """A document found by a search: its id and its MaxSim score; higher is better.

    It is a named tuple that can also be read like a dict: ``hit["id"]``, ``dict(hit)``.

    Examples
    --------
    >>> hit = Hit("a", 3.5)
    >>> hit.id, hit.score
    ('a', 3.5)
    >>> hit["id"], hit[0], dict(hit)
    ('a', 'a', {'id': 'a', 'score': 3.5})
    """

    id: Id
    score: float

    @overload
    def __getitem__(self, key: Literal[0, -2, "id"]) -> Id: ...

    @overload
    def __getitem__(self, key: Literal[1, -1, "score"]) -> float: ...

    @overload
    def __getitem__(self, key: SupportsIndex) -> Id | float: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Id | float, ...]: ...

    def __getitem__(self, key: SupportsIndex | slice | str) -> Any:
        """Return a field by name or position, or a slice."""
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        if key not in self._fields:
            raise KeyError(f"a hit has no field {key!r}; it has {' and '.join(map(repr, self._fields))}.")
        return getattr(self, key)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields, so that ``dict(hit)`` and ``f(**hit)`` work."""
        return self._fields


class Record(NamedTuple):
    """Text and metadata of one document; ``metadata`` is ``{}`` if none was given.

    Examples
    --------
    >>> Record("a", None, {"year": 2024}).metadata["year"]
    2024
    """

    id: Id
    text: str | None
    metadata: dict[str, Any]


@dataclass(frozen=True)
class CheckReport:
    """Recall of a search, measured against exact scores.

    Parameters
    ----------
    k
        Number of hits compared per query.
    recall
        Fraction of the exact best `k` that were found, averaged over all queries; tied documents count as found.
    worst
        The lowest recall of a query.
    queries, documents
        Number of queries used, and number of documents searched.
    advice
        A recommendation, such as an effort that raises a low recall; empty if there is none.

    Examples
    --------
    >>> report = CheckReport(10, 0.985, worst=0.9, queries=20, documents=1500)
    >>> print(str(report).partition(":")[0])
    recall@10 0.985 (worst query 0.900) against exact scores
    """

    k: int
    recall: float
    worst: float
    queries: int
    documents: int
    advice: str = ""

    def __str__(self) -> str:
        measured = (
            f"recall@{self.k} {self.recall:.3f} (worst query {self.worst:.3f}) against exact scores: "
            f"{self.queries:,} of its own documents as queries, {self.documents:,} searched"
        )
        return f"{measured}; {self.advice}" if self.advice else measured

    def _repr_html_(self) -> str:
        rows = [
            (f"recall@{self.k}", bar(f"{self.recall:.3f}", self.recall)),
            ("of the worst query", bar(f"{self.worst:.3f}", self.worst)),
        ]
        caption = f"{self.queries:,} of its own documents as queries, {self.documents:,} searched"
        parts = [table(["against exact scores", ""], rows, caption=caption)]
        return fragment(*parts, *([self.advice] if self.advice else []))


@dataclass(frozen=True)
class Damage:
    """A damaged file.

    Parameters
    ----------
    file
        Path, relative to the folder of the index.
    reason
        What is wrong with it.
    ids
        Ids of the documents that cannot be read because of it.

    Examples
    --------
    >>> print(Damage("segments/1/vectors.npy", "it is missing", ("a", "b")))
    segments/1/vectors.npy: it is missing (2 documents)
    """

    file: str
    reason: str
    ids: tuple[Id, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.reason} ({len(self.ids):,} documents)"


@dataclass(frozen=True)
class VerifyReport:
    """Damage of an index, found by comparing all files with their checksums.

    Parameters
    ----------
    files
        Number of files that were read.
    damages
        The damaged files.

    Examples
    --------
    >>> damage = Damage("segments/1/vectors.npy", "it is missing", ("a", "b"))
    >>> report = VerifyReport(files=4, damages=(damage,))
    >>> print(report)
    1 of 4 files damaged:
      segments/1/vectors.npy: it is missing (2 documents)
    >>> report.is_whole, report.ids
    (False, ['a', 'b'])
    """

    files: int
    damages: tuple[Damage, ...]

    @property
    def is_whole(self) -> bool:
        """Whether no damage was found."""
        return not self.damages

    @property
    def ids(self) -> list[Id]:
        """Ids of the damaged documents, without duplicates; `update` or `remove` them to repair the index."""
        return list(dict.fromkeys(id for damage in self.damages for id in damage.ids))

    def __str__(self) -> str:
        if self.is_whole:
            return f"all {self.files} files are whole"
        return "\n  ".join([f"{len(self.damages)} of {self.files} files damaged:", *map(str, self.damages)])

    def _repr_html_(self) -> str:
        if self.is_whole:
            return fragment(str(self))
        rows = [(damage.file, damage.reason, len(damage.ids)) for damage in self.damages]
        caption = f"{len(self.damages):,} of {self.files:,} files damaged"
        return fragment(table(["file", "damage", "documents"], rows, caption=caption))
