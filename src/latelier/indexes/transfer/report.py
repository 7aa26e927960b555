"""`TransferReport`: what an export, an import or a copy has moved."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TransferReport"]


@dataclass(frozen=True)
class TransferReport:
    """What was moved; prints as one line.

    Parameters
    ----------
    documents, tokens
        Number of documents of the source, and of their token vectors.
    written
        Number of documents that this call wrote; the others were there already, from an interrupted call.
    destination
        The folder, or the kind and folder of the index, that they were written to.
    seconds
        Duration of this call.

    Examples
    --------
    >>> print(TransferReport(1500, 180_000, 400, "./moved", 2.5))
    1,500 documents with 180,000 tokens: 400 written to ./moved, 1,100 were there already (2.5 s)
    """

    documents: int
    tokens: int
    written: int
    destination: str
    seconds: float

    @property
    def kept(self) -> int:
        """Number of documents that were there already."""
        return self.documents - self.written

    def __str__(self) -> str:
        there = f", {self.kept:,} were there already" if self.kept else ""
        return (
            f"{self.documents:,} documents with {self.tokens:,} tokens: {self.written:,} written to "
            f"{self.destination}{there} ({self.seconds:.1f} s)"
        )
