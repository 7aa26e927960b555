"""`PendingDocuments`: the documents of an index together with those that are encoded now and stored soon.

While workers encode, later documents are read before earlier ones are stored. Their ids must be seen as those of the
index: for the numbers of documents without an id, and for ids that equal such a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from latelier.indexes import Id, Index
from latelier.retrieve.stored_documents import StoredDocuments

__all__ = ["PendingDocuments"]


class PendingDocuments(StoredDocuments):
    """Stored documents, and those between `begin` and `end`.

    Parameters
    ----------
    index, has_passages
        As for `StoredDocuments`.

    Examples
    --------
    >>> from latelier import indexes
    >>> documents = PendingDocuments(indexes.Flat())
    >>> documents.begin(["a", 7])
    >>> "a" in documents, documents.ids()
    (True, ['a', 7])
    >>> documents.end(["a", 7])
    >>> "a" in documents, documents.ids()
    (False, [])
    """

    def __init__(self, index: Index, has_passages: bool | None = None) -> None:
        super().__init__(index, has_passages)
        self._pending: Counter[Id] = Counter()

    def begin(self, ids: Iterable[Id]) -> None:
        """Count documents as stored from now on."""
        self._pending.update(ids)

    def end(self, ids: Iterable[Id]) -> None:
        """Stop counting documents, because they are stored."""
        self._pending -= Counter(ids)

    def is_pending(self, id: Id) -> bool:
        """Whether a document is between `begin` and `end`."""
        return id in self._pending

    def __contains__(self, id: Id | None) -> bool:
        return (id is not None and self.is_pending(id)) or super().__contains__(id)

    def ids(self) -> list[Id]:
        """Return the ids of all stored documents in the order of insertion, then those of the others."""
        stored = super().ids()
        if not self._pending:
            return stored
        known = set(stored)
        return [*stored, *(id for id in self._pending if id not in known)]
