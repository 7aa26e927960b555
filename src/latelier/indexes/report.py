"""What `check` and `verify` return: small values that print as something to read."""

from __future__ import annotations

from dataclasses import dataclass

from latelier.indexes.base import Id

__all__ = ["CheckReport", "Damage", "VerifyReport"]


@dataclass(frozen=True)
class CheckReport:
    """How much of the exact result a search finds.

    Parameters
    ----------
    k
        Hits compared per query.
    recall
        The part of the hits that belong to the exact best `k`, over all queries; ties count as right.
    worst
        The same for the query with the lowest.
    queries, documents
        How many were used, and how many were searched.
    advice
        What to do about it, in words; empty where there is nothing to do.

    Examples
    --------
    >>> print(CheckReport(k=10, recall=0.985, worst=0.9, queries=20, documents=1500))
    recall@10 0.985 (worst query 0.900) against exact scores: 20 of its own documents as queries, 1,500 searched
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


@dataclass(frozen=True)
class Damage:
    """A damaged file.

    Parameters
    ----------
    file
        Relative to the index's folder.
    reason
        What is wrong with it.
    ids
        The documents whose vectors cannot be trusted any more.

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
    """Whether all that was written is still there.

    Parameters
    ----------
    files
        How many files were read.
    damages
        What was found.

    Examples
    --------
    >>> report = VerifyReport(files=4, damages=(Damage("segments/1/vectors.npy", "it is missing", ("a", "b")),))
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
        """The documents to `update` or `remove`, each one once."""
        return list(dict.fromkeys(id for damage in self.damages for id in damage.ids))

    def __str__(self) -> str:
        if self.is_whole:
            return f"all {self.files} files are whole"
        return "\n  ".join([f"{len(self.damages)} of {self.files} files damaged:", *map(str, self.damages)])
