"""`IndexStatistics`: how much an index holds, and on how many bytes."""

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
        Size of all files of the index; 0 for an index in memory, None if it is unknown, as on a server of Qdrant.
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
    bytes: int | None
    has_texts: bool
    has_metadata: bool

    @property
    def bytes_per_document(self) -> float | None:
        """Bytes on disk per document, everything included; 0 if there are no documents, None if unknown."""
        return self._bytes_per(self.documents)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes on disk per token vector, everything included; 0 if there are no documents, None if unknown."""
        return self._bytes_per(self.tokens)

    def _bytes_per(self, count: int) -> float | None:
        if self.bytes is None:
            return None
        return self.bytes / count if count else 0.0
