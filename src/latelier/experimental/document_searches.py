"""`DocumentSearches`: what several searches find for some queries, by document, however documents are stored."""

from __future__ import annotations

from collections.abc import Sequence

from latelier.embeddings import TokenEmbeddings
from latelier.indexes import Hit, Id, Index
from latelier.retrieve.stored_documents import StoredDocuments

__all__ = ["DocumentSearches"]


class DocumentSearches:
    """The hits of all searches so far, for each of some queries.

    Parameters
    ----------
    index
        The index; of documents stored as passages, only the best passage counts.
    queries
        Number of queries.

    Attributes
    ----------
    hits
        For each query the hits of each search, best first, with ids of documents.
    parts
        For each query the documents that were found; and the id of what was found last of each, in the index.

    Examples
    --------
    >>> import numpy as np
    >>> from latelier.indexes import Flat
    >>> index = Flat()
    >>> ones = np.ones((1, 2), "float32")
    >>> index.add(["a", "b"], [np.eye(2, dtype="float32"), ones])
    >>> searches = DocumentSearches(index, queries=1)
    >>> searches.search([0], TokenEmbeddings(ones, np.array([0, 1])), k=1)
    >>> searches.hits, searches.parts
    ([[[Hit(id='b', score=2.0)]]], [{'b': 'b'}])
    """

    def __init__(self, index: Index, queries: int) -> None:
        self.hits: list[list[list[Hit]]] = [[] for _ in range(queries)]
        self.parts: list[dict[Id, Id]] = [{} for _ in range(queries)]
        self._stored = StoredDocuments(index)

    def search(self, rows: Sequence[int], matrices: TokenEmbeddings, k: int) -> None:
        """Search for some of the queries.

        Parameters
        ----------
        rows
            Which queries.
        matrices
            Their vectors.
        k
            Maximum number of documents per query.
        """

        def find(asked: Sequence[int], limit: int) -> list[list[Hit]]:
            wanted = matrices if len(asked) == len(matrices) else matrices[list(asked)]
            return self._stored.index.search(wanted, limit)

        found = self._stored.search(find, len(matrices), k)
        for row, hits in zip(rows, found, strict=True):
            self.parts[row] |= {self._stored.document(hit.id): hit.id for hit in hits}
            self.hits[row].append([Hit(self._stored.document(hit.id), hit.score) for hit in hits])
