"""`RowIds`: the ids of what one transaction adds, chosen when no other writer can change the index.

Documents without an id get numbers before they are encoded. Until they are stored, which takes seconds, other threads
and processes may have stored documents under the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from latelier.indexes import Id
from latelier.indexes.catalog.values import duplicate_ids
from latelier.retrieve.passage_ids import decode_passage_id, encode_passage_id
from latelier.retrieve.stored_documents import StoredDocuments

__all__ = ["RowIds", "next_number"]


class RowIds:
    """The ids of new documents, or of their passages, as `latelier.indexes.Index.add` takes them.

    An index reads the ids of a write after it has become the only writer. Numbers that are in the index by then are
    replaced by those after its largest one, so nothing has to be encoded again.

    Parameters
    ----------
    ids
        The ids of the rows.
    documents
        The ids of their documents.
    numbers
        Those that documents without an id got, ascending.
    stored
        The documents of the index, without those that are not stored yet.

    Raises
    ------
    DuplicateIdError
        While it is read, if a document that is stored as passages is in the index by now: the ids of its new passages
        may differ from those of the old ones, so the index itself would take both.

    Examples
    --------
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> ids = RowIds([0, "a", 1], [0, "a", 1], [0, 1], StoredDocuments(index))
    >>> list(ids)
    [0, 'a', 1]
    >>> index.add([1], [[[1.0, 0.0]]])
    >>> list(ids)
    [2, 'a', 3]
    """

    def __init__(
        self, ids: Sequence[Id], documents: Sequence[Id], numbers: Iterable[Id], stored: StoredDocuments
    ) -> None:
        self._ids, self._documents, self._numbers, self._stored = ids, documents, dict.fromkeys(numbers), stored

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Id]:
        moved = self._moved()  # when the first id is read, not before
        for id in self._ids:
            passage = decode_passage_id(id) if moved and self._stored.has_passages else None
            if passage is None:
                yield moved.get(id, id)
            else:
                yield encode_passage_id(passage._replace(document=moved.get(passage.document, passage.document)))

    def _moved(self) -> dict[Id, Id]:
        """Return the new number of each number, if one of them is in the index."""
        # The index itself finds the ids of whole documents.
        checked = self._documents if self._stored.has_passages else self._numbers
        taken = [id for id in checked if id in self._stored]
        given = [id for id in taken if id not in self._numbers]
        if given:
            raise duplicate_ids(given, "in the index already")
        if not taken:
            return {}
        others = [id for id in self._documents if id not in self._numbers]
        first = next_number(itertools.chain(self._stored.ids(), others))
        return dict(zip(self._numbers, itertools.count(first), strict=False))


def next_number(ids: Iterable[Id]) -> int:
    """Return the integer after the largest one among ids; 0 if there is none.

    Examples
    --------
    >>> next_number([3, "a", 7]), next_number(["a"])
    (8, 0)
    """
    return 1 + max((id for id in ids if isinstance(id, int)), default=-1)
