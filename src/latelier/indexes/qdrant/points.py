"""The points of a collection, read and written in requests of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, LatelierError, StorageError
from latelier.indexes.catalog.document_rows import StoredDocument
from latelier.indexes.inputs import DocumentBatch
from latelier.indexes.qdrant.collection import FIRST_STAGE, KEYWORDS, TOKENS, QdrantCollection
from latelier.indexes.qdrant.documents import make_payload, point_id
from latelier.indexes.qdrant.keywords import SparseVector, count_words, document_vector
from latelier.indexes.results import Id
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

if TYPE_CHECKING:
    from qdrant_client import models

__all__ = ["PLACE", "Points", "check_payload", "stored_part"]

# Payload keys that say which document a point is, and where it stands in the order of insertion.
PLACE = ["id", "sequence"]
# Points per request that reads or deletes.
_PAGE = 1000
# Numbers and points per request that writes or reads vectors: as JSON, 20 bytes per number. Servers accept 32 MB.
_NUMBERS, _POINTS = 1 << 19, 128


class Points:
    """The documents of an index as points.

    Parameters
    ----------
    collection
        Where they are.
    """

    def __init__(self, collection: QdrantCollection) -> None:
        self._collection = collection
        self._connection = collection.connection

    def count(self, condition: models.Filter | None = None) -> int:
        """Return the number of points, exactly."""
        if not self._exists():
            return 0
        with self._connection.use() as client:
            return int(client.count(self._collection.name, count_filter=condition, exact=True).count)

    def find(self, ids: Iterable[Id], keys: list[str] | bool = False) -> dict[Id, dict[str, Any]]:
        """Return the payloads of documents by id; those that are not in the index are left out.

        Parameters
        ----------
        ids
            The documents.
        keys
            Keys of the payloads to read; False for none.
        """
        found: dict[Id, dict[str, Any]] = {}
        if not self._exists():
            return found
        for chunk in _chunks(ids, _PAGE):
            by_point = {point_id(id): id for id in chunk}
            with self._connection.use() as client:
                records = client.retrieve(self._collection.name, list(by_point), with_payload=keys, with_vectors=False)
            # A document without a text has no key for it.
            needed = [key for key in keys if key != "text"] if isinstance(keys, list) else []
            found.update((by_point[str(record.id)], check_payload(record, needed)) for record in records)
        return found

    def vectors(self, ids: Sequence[Id]) -> dict[Id, np.ndarray]:
        """Return the token vectors of documents by id; those that are not in the index are left out."""
        found: dict[Id, np.ndarray] = {}
        if not self._exists():
            return found
        lengths = [payload["tokens"] for payload in self.find(dict.fromkeys(ids), ["tokens"]).values()]
        size = max(1, int(np.mean(lengths or [1])) * (self._collection.dim or 1))
        for chunk in _chunks(dict.fromkeys(ids), max(1, min(_PAGE, _NUMBERS // size))):
            by_point = {point_id(id): id for id in chunk}
            with self._connection.use() as client:
                records = client.retrieve(
                    self._collection.name, list(by_point), with_payload=False, with_vectors=[TOKENS]
                )
            for record in records:
                vectors: Any = record.vector or {}
                if TOKENS not in vectors:
                    raise _foreign(record, f"vectors {TOKENS!r}")
                found[by_point[str(record.id)]] = np.asarray(vectors[TOKENS], dtype="float32")
        return found

    def scroll(
        self, keys: list[str] | bool, condition: models.Filter | None = None, *, vectors: bool = False
    ) -> Iterator[Any]:
        """Yield the points with some keys of their payloads, in the order of Qdrant, which is that of their ids."""
        if not self._exists():
            return
        # With vectors, a page is what fits in an answer.
        limit, offset = _PAGE if not vectors else 32, None
        while True:
            with self._connection.use() as client:
                records, offset = client.scroll(
                    self._collection.name,
                    scroll_filter=condition,
                    limit=limit,
                    offset=offset,
                    with_payload=keys,
                    with_vectors=[TOKENS] if vectors else False,
                )
            yield from records
            if offset is None:
                return

    def ids(self, prefix: str | None = None) -> list[Id]:
        """Return the ids in the order of insertion, or those that are strings and begin with a prefix."""
        condition = None
        if prefix is not None:
            from qdrant_client import models

            condition = models.Filter(must=[models.FieldCondition(key="id", match=models.MatchPrefix(prefix=prefix))])
        payloads = [check_payload(record, PLACE) for record in self.scroll(PLACE, condition)]
        return [payload["id"] for payload in sorted(payloads, key=lambda payload: payload["sequence"])]

    def last_sequence(self) -> int:
        """Return the place of the document that was inserted last; -1 if there is none."""
        if not self._exists():
            return -1
        from qdrant_client import models

        order = models.OrderBy(key="sequence", direction=models.Direction.DESC)
        with self._connection.use() as client:
            records, _ = client.scroll(self._collection.name, limit=1, order_by=order, with_payload=["sequence"])
        return int((records[0].payload or {})["sequence"]) if records else -1

    def upsert(self, batch: DocumentBatch, sequence: int) -> Iterator[int]:
        """Insert or replace documents; yield the number of those that each request has stored.

        Parameters
        ----------
        batch
            The documents; their vectors are the array ``"vectors"``.
        sequence
            The place of the first document in the order of insertion.
        """
        from qdrant_client import models

        embeddings = TokenEmbeddings(batch.arrays["vectors"], lengths_to_offsets(batch.lengths))
        size = batch.dim + self._collection.configuration.first_stage.size(batch.dim)
        for first, last in split_by_rows(embeddings.offsets, max(1, _NUMBERS // size), _POINTS):
            part, documents = embeddings[first:last], batch.documents[first:last]
            singles = self._collection.configuration.first_stage.encode_documents(part)
            points = [
                models.PointStruct(
                    id=point_id(document.id),
                    payload=make_payload(document, sequence + first + i, np.asarray(part[i])),
                    vector={TOKENS: part[i].tolist(), FIRST_STAGE: singles[i].tolist(), **words},
                )
                for i, (document, words) in enumerate(zip(documents, self._sparse(documents), strict=True))
            ]
            with self._connection.use() as client:
                client.upsert(self._collection.name, points, wait=True)
            yield last - first

    def delete(self, ids: Iterable[Id]) -> None:
        """Delete documents; those that are not in the index are skipped."""
        from qdrant_client import models

        for chunk in _chunks(ids, _PAGE):
            selector = models.PointIdsList(points=[point_id(id) for id in chunk])
            with self._connection.use() as client:
                client.delete(self._collection.name, selector, wait=True)

    def write_keywords(self, texts: Sequence[tuple[Id, str]]) -> None:
        """Make the sparse vectors of texts again."""
        from qdrant_client import models

        documents = [StoredDocument(id, text, "{}", {}) for id, text in texts]
        vectors = [
            models.PointVectors(id=point_id(document.id), vector=words)
            for document, words in zip(documents, self._sparse(documents), strict=True)
            if words
        ]
        if vectors:
            with self._connection.use() as client:
                client.update_vectors(self._collection.name, vectors, wait=True)

    def _exists(self) -> bool:
        if not self._collection.exists:
            self._collection.read()
        return self._collection.exists

    def _sparse(self, documents: Sequence[StoredDocument]) -> list[dict[str, Any]]:
        """Return the sparse vector of each document by its name; nothing for one without words."""
        from qdrant_client import models

        configuration = self._collection.configuration
        if configuration.tokenizer is None or configuration.average_length is None:
            return [{} for _ in documents]
        counts = count_words([document.text or "" for document in documents], configuration.tokenizer)
        found: list[SparseVector] = [document_vector(each, configuration.average_length) for each in counts]
        return [
            {KEYWORDS: models.SparseVector(indices=each.indices, values=each.values)} if each.indices else {}
            for each in found
        ]


def check_payload(record: Any, keys: Iterable[str]) -> dict[str, Any]:
    """Return the payload of a point; raise `CorruptedIndexError` if it lacks a key."""
    payload: dict[str, Any] = record.payload or {}
    for key in keys:
        if key not in payload:
            raise _foreign(record, f"payload key {key!r}")
    return payload


def stored_part(error: LatelierError, stored: int, total: int) -> LatelierError:
    """Return the error of a write that was interrupted between two requests, which says how much it has stored."""
    return StorageError(
        f"{error} The write has stored {stored:,} of {total:,} documents; repeat it with update(), which replaces them."
    )


def _foreign(record: Any, missing: str) -> CorruptedIndexError:
    return CorruptedIndexError(
        f"the point {record.id} of the collection has no {missing}: another program has added or changed it. verify() "
        "lists all such points; delete them with Qdrant's client, and add their documents again."
    )


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk
