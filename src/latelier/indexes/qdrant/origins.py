"""Where the documents in a collection of Qdrant came from.

Documents have it in their payload, under ``origin``, and sources are in the metadata of the collection. The states of
files are points without vectors in a collection beside it, ``NAME-files``. Qdrant has no transactions: a write says
first that its files have to be read again, then stores the documents, and says last what is known of their files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from latelier.indexes.base import Origins
from latelier.indexes.qdrant.collection import Points, QdrantCollection, point_id
from latelier.indexes.store.sources import Changes, FileState, Origin, Seen, Source
from latelier.utils.values import Id

if TYPE_CHECKING:
    from qdrant_client import models

_SOURCE = "source:"
_PAGE = 1000


class QdrantOrigins(Origins):
    """Reads and writes where documents came from."""

    def __init__(self, collection: QdrantCollection, points: Points) -> None:
        self._collection = collection
        self._points = points
        self._files = f"{collection.name}-files"

    def sources(self) -> list[Source]:
        """See `Origins.sources`."""
        metadata = self._collection.read()
        return [Source(*json.loads(value)) for key, value in metadata.items() if key.startswith(_SOURCE)]

    def files(self, source: str) -> dict[str, FileState]:
        """See `Origins.files`."""
        states = [FileState(**payload) for payload in self._scroll_files(source)]
        return {state.name: state for state in states}

    def counts(self, source: str) -> dict[str, int]:
        """See `Origins.counts`; all documents of the source are looked at."""
        return Counter(seen.origin.file for _, seen in self._scroll(source) if not seen.origin.missing)

    def documents(self, source: str, file: str | None = None) -> dict[Id, Seen]:
        """See `Origins.documents`."""
        found = sorted(self._scroll(source, file), key=lambda pair: pair[1].number)
        return dict(found)

    def missing(self, source: str) -> dict[Id, Seen]:
        """See `Origins.missing`; all documents of the source are looked at."""
        return {id: seen for id, seen in self._scroll(source) if seen.origin.missing}

    def seen(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """See `Origins.seen`."""
        found = self._points.find(ids, ["id", "sequence", "origin"])
        return {id: _seen(payload) for id, payload in found.items()}

    def write(self, changes: Changes) -> None:
        """Write changes, one request after the other."""
        found = self.seen([*changes.removed, *changes.moved])
        self._points.delete([id for id, seen in changes.removed.items() if found.get(id) == seen])
        for id, seen in changes.moved.items():
            if id in found and found[id].number == seen.number:
                self._points.set_origin(id, seen.origin)
        if changes.sources:
            self._collection.merge({f"{_SOURCE}{source.key}": json.dumps(source) for source in changes.sources})
        self._write_files(changes)

    def _write_files(self, changes: Changes) -> None:
        from qdrant_client import models

        states = [
            models.PointStruct(id=point_id(json.dumps(state[:2])), payload=state._asdict(), vector={})
            for state in changes.files
        ]
        forgotten: list[Any] = [point_id(json.dumps(name)) for name in changes.forgotten]
        if not states and not forgotten:
            return
        with self._collection.connection.use() as client:
            if not client.collection_exists(self._files):
                client.create_collection(self._files, vectors_config={})
            for first in range(0, len(states), _PAGE):
                client.upsert(self._files, states[first : first + _PAGE], wait=True)
            if forgotten:
                client.delete(self._files, models.PointIdsList(points=forgotten), wait=True)

    def _scroll_files(self, source: str) -> Iterator[dict[str, Any]]:
        offset = None
        with self._collection.connection.use() as client:
            more = client.collection_exists(self._files)
        while more:
            with self._collection.connection.use() as client:
                records, offset = client.scroll(
                    self._files, scroll_filter=_filter("source", source), limit=_PAGE, offset=offset, with_payload=True
                )
            yield from (record.payload or {} for record in records)
            more = offset is not None

    def _scroll(self, source: str, file: str | None = None) -> Iterator[tuple[Id, Seen]]:
        for record in self._points.scroll(["id", "sequence", "origin"], _filter("origin.source", source)):
            payload = record.payload or {}
            seen = _seen(payload)
            if file in (None, seen.origin.file):
                yield payload["id"], seen


def _filter(key: str, value: str) -> models.Filter:
    from qdrant_client import models

    return models.Filter(must=[models.FieldCondition(key=key, match=models.MatchValue(value=value))])


def _seen(payload: dict[str, Any]) -> Seen:
    return Seen(payload["sequence"], Origin(**payload.get("origin") or {}))
