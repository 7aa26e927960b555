"""`StoredDocuments`: the documents of an index, each stored whole or as several passages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from latelier.indexes import Hit, Id, Index
from latelier.indexes.catalog.values import as_ids, check_known
from latelier.indexes.results import Record
from latelier.retrieve.document_settings import DocumentSettings
from latelier.retrieve.passage_ids import decode_passage_id, passage_prefix
from latelier.retrieve.results import Result

__all__ = ["SearchHits", "StoredDocuments"]

# ``search(rows, k)`` returns the k best hits of the queries at these positions, best first.
SearchHits = Callable[[Sequence[int], int], "list[list[Hit]]"]

# Passages searched at first, for each document that is wanted, and the factor by which their number then grows.
_PASSAGES = 4


class StoredDocuments:
    """The documents of an index by the ids that the user gave them.

    Parameters
    ----------
    index
        The index. An id in it that is not that of a passage, in an index of passages, was not written by a retriever;
        it is a document of its own.
    has_passages
        Whether it holds passages; None: as its settings say.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> text = "Pears ripen in September. " * 12
    >>> retriever.add([("pears", text), ("moon", "It is far.")], passages=40)
    >>> stored = StoredDocuments(retriever.index)
    >>> stored.ids(), len(stored.parts("pears")), stored.parts("moon")
    (['pears', 'moon'], 3, ['["moon",0,0,10]'])
    """

    def __init__(self, index: Index, has_passages: bool | None = None) -> None:
        self.index = index
        stored = DocumentSettings.stored_in(index).passages is not None if has_passages is None else has_passages
        self.has_passages = stored

    def __contains__(self, id: Id | None) -> bool:
        return bool(id is not None and self.parts(id)) if self.has_passages else id in self.index

    def __len__(self) -> int:
        return len(self.ids()) if self.has_passages else len(self.index)

    def ids(self) -> list[Id]:
        """Return the ids of all documents in the order of insertion."""
        stored = self.index.ids()
        return list(dict.fromkeys(map(_document, stored))) if self.has_passages else stored

    def parts(self, id: Id) -> list[Id]:
        """Return the ids under which the index stores a document, in the order of its passages; none if absent."""
        found = self.index.ids(passage_prefix(id)) if self.has_passages else []
        return found or ([id] if self._is_whole(id) else [])

    def get(self, ids: Id | Iterable[Id]) -> list[Record]:
        """Return the texts and metadata of documents, in the order of `ids`.

        The text of a document that is stored as passages is put together from them: its title, its passages without
        what overlaps, and spaces for the white space between two passages and before the first, which none of them
        holds.

        Raises
        ------
        UnknownIdError
            If one is not in the index.
        """
        wanted = as_ids(ids)
        with self.index.snapshot():
            if not self.has_passages:
                whole: list[Record] = self.index.get(wanted)
                return whole
            parts = [self.parts(id) for id in wanted]
            check_known(wanted, [id for id, found in zip(wanted, parts, strict=True) if found])
            records = iter(self.index.get([part for found in parts for part in found]))
        return [_joined(id, [next(records) for _ in found]) for id, found in zip(wanted, parts, strict=True)]

    def remove(self, ids: Id | Iterable[Id]) -> None:
        """Remove documents with all their passages, all or none.

        Raises
        ------
        UnknownIdError
            If one is not in the index.
        """
        if not self.has_passages:
            self.index.remove(ids)
            return
        wanted = as_ids(ids)
        check_known(wanted, [id for id in wanted if id in self])
        whole = [id for id in wanted if self._is_whole(id)]
        self.index.remove(whole, prefixes=map(passage_prefix, wanted))

    def search(self, search: SearchHits, queries: int, k: int) -> list[list[Hit]]:
        """Return the hits of the best documents of each query, each with the id of its best passage.

        More and more passages are searched until they belong to `k` documents, or there are no more. So the result is
        that of grouping all passages, if the ranking does not depend on their number.

        Parameters
        ----------
        search
            Searches the index.
        queries
            Number of queries.
        k
            Maximum number of documents per query.
        """
        if not self.has_passages:
            return search(range(queries), k)
        best: list[list[Hit]] = [[] for _ in range(queries)]
        most = max(k, len(self.index))
        waiting, limit = list(range(queries)), min(_PASSAGES * k, most)
        while waiting:
            unfinished = []
            for row, hits in zip(waiting, search(waiting, limit), strict=True):
                best[row] = list(_first_of_each(hits))[:k]
                if len(best[row]) < k and len(hits) == limit < most:
                    unfinished.append(row)
            waiting, limit = unfinished, min(_PASSAGES * limit, most)
        return best

    def result(self, hit: Hit, record: Record) -> Result:
        """Return a hit of `search` with the text and the metadata that are stored under its id."""
        passage = decode_passage_id(hit.id) if self.has_passages else None
        if passage is None:
            return Result(hit.id, hit.score, record.text, record.metadata)
        return Result(passage.document, hit.score, record.text, record.metadata, passage.start, passage.end)

    def document(self, id: Id) -> Id:
        """Return the id of the document that an id in the index belongs to."""
        return _document(id) if self.has_passages else id

    def _is_whole(self, id: Id) -> bool:
        """Whether a document is stored under its own id; an id that spells that of a passage is no such document."""
        return id in self.index and self.document(id) == id


def _document(id: Id) -> Id:
    passage = decode_passage_id(id)
    return id if passage is None else passage.document


def _first_of_each(hits: Iterable[Hit]) -> Iterator[Hit]:
    """Yield the first hit of each document."""
    seen = set()
    for hit in hits:
        document = _document(hit.id)
        if (type(document), document) not in seen:
            seen.add((type(document), document))
            yield hit


def _joined(id: Id, records: Sequence[Record]) -> Record:
    """Return a document from the records of its passages, in their order."""
    first = decode_passage_id(records[0].id)
    if first is None or records[0].text is None:
        return records[0]
    length = len(records[0].text) - (first.end - first.start)
    title, text = records[0].text[:length], ""
    for record in records:
        passage = decode_passage_id(record.id)
        if passage is not None and record.text is not None:
            own = record.text[len(record.text) - (passage.end - passage.start) :]
            text = text.ljust(passage.start) + own[max(len(text) - passage.start, 0) :]
    return Record(id, title + text, records[0].metadata)
