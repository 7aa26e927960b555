"""`Documents`: the documents of a retriever, as a collection by id."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.indexes import FieldValues, Id, Index, Parameters, Passage, Record
from latelier.utils.checks import did_you_mean, short


class Documents(Collection[Id]):
    """The documents of a retriever by their ids, whole or in passages: `Retriever.documents`.

    Each look sees the latest commit; `Index.snapshot` holds one.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> record = {"id": "a", "text": "Bananas are healthy.", "year": 2024}
    >>> retriever.add([record, {"id": "b", "text": "The moon is far."}])
    >>> retriever.documents["a"].text, retriever.documents["a"].metadata
    ('Bananas are healthy.', {'year': 2024})
    >>> "b" in retriever.documents, len(retriever.documents), list(retriever.documents)
    (True, 2, ['a', 'b'])
    >>> [(each.value, each.documents) for each in retriever.documents.values("year").values]
    [(2024, 1)]
    """

    def __init__(self, index: Index) -> None:
        self._index = index

    def __getitem__(self, id: Id) -> Record:
        """Return a document; raises `UnknownIdError` if there is none with this id."""
        return self.get([id])[0]

    def __contains__(self, id: object) -> bool:
        return id in self._index

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Id]:
        return iter(self.ids())

    def __repr__(self) -> str:
        return f"Documents({len(self):,})"

    def ids(self) -> list[Id]:
        """Return the ids of all documents in the order of insertion."""
        return self._index.ids()

    def get(self, ids: Id | Iterable[Id]) -> list[Record]:
        """Return the texts, the metadata and the passages of documents.

        Parameters
        ----------
        ids
            One id or several.

        Returns
        -------
        list of Record
            One per id, in the same order. The text is that which the user gave, after its title if the document is
            stored whole; the titles of passages are in `Record.passages`.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """
        found: Record | list[Record] = self._index.get(ids)
        if isinstance(found, Record):
            return [found]
        return found

    def values(
        self, field: str, most: int = 20, *, filter: str | Sequence[str] | None = None, parameters: Parameters = ()
    ) -> FieldValues:
        """Return the values that documents have in a field of their metadata, see `Index.field_values`.

        Parameters
        ----------
        field
            The key of the metadata.
        most
            Maximum number of values.
        filter, parameters
            Only documents that a filter selects, as in `Retriever.search`.

        Raises
        ------
        InvalidArgumentError
            If no document has the field.
        """
        options: dict[str, Any] = {"filter": filter, "parameters": parameters}
        found = self._index.field_values(most, field=field, **options)
        if not found:
            known = self._index.fields
            listed = ", ".join(known) or "none"
            raise InvalidArgumentError(
                f"no document has the field {short(field)}; the fields are: {listed}.{did_you_mean(str(field), known)}"
            )
        return found[0]


def passage_at(record: Record, start: int | None, end: int | None) -> Passage | None:
    """Return the passage of a document with this range; None for a whole document."""
    return next((each for each in record.passages if (each.start, each.end) == (start, end)), None)
