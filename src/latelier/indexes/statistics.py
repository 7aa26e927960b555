"""`IndexStatistics`: how much an index in this library's own storage holds, and on how many bytes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IndexStatistics"]


@dataclass(frozen=True)
class IndexStatistics:
    """What an index holds.

    Parameters
    ----------
    documents, tokens
        Number of documents and of their token vectors, without removed ones.
    removed
        Removed documents with vectors that are still stored; `compact` frees them.
    bytes
        Size of all files of the index; 0 for an index in memory.
    has_texts, has_metadata
        Whether a document has a text, and whether one has metadata.

    Examples
    --------
    >>> statistics = IndexStatistics(10, 400, 0, 12_000, True, False)
    >>> statistics.bytes_per_document, statistics.bytes_per_token
    (1200.0, 30.0)
    """

    documents: int
    tokens: int
    removed: int
    bytes: int
    has_texts: bool
    has_metadata: bool

    @property
    def bytes_per_document(self) -> float:
        """Bytes on disk per document, everything included; 0 if there are no documents."""
        return self.bytes / self.documents if self.documents else 0.0

    @property
    def bytes_per_token(self) -> float:
        """Bytes on disk per token vector, everything included; 0 if there are no documents."""
        return self.bytes / self.tokens if self.tokens else 0.0
