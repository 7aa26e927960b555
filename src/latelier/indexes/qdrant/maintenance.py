"""Maintenance of a collection: its sparse vectors, payload indexes, checksums and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes.qdrant.collection import KEYWORDS, TOKENS, QdrantCollection
from latelier.indexes.qdrant.documents import as_record, checksum, point_id
from latelier.indexes.qdrant.fields import field_path
from latelier.indexes.qdrant.keywords import average_length, count_words
from latelier.indexes.qdrant.points import Points, check_payload
from latelier.indexes.results import Damage, VerifyReport
from latelier.indexes.statistics import IndexStatistics
from latelier.utils.checks import describe

__all__ = ["drop_sparse_vectors", "index_fields", "make_sparse_vectors", "statistics", "verify_points"]

# Texts that are cut into words at a time.
_TEXTS = 1000


def make_sparse_vectors(
    points: Points, collection: QdrantCollection, tokenizer: str, progress: Callable[[int], Any]
) -> None:
    """Make the sparse vectors of all texts, with the average length of all of them.

    Searches by keywords meanwhile compare old vectors with new ones.
    """
    collection.create(None)
    total = count = 0.0
    for texts in _texts(points):
        total += average_length(count_words([text for _, text in texts], tokenizer)) * len(texts)
        count += len(texts)
    average = max(1.0, total / count) if count else None
    drop_sparse_vectors(collection)
    collection.write_configuration(tokenizer=tokenizer, average_length=average)
    for texts in _texts(points):
        points.write_keywords(texts)
        progress(len(texts))


def drop_sparse_vectors(collection: QdrantCollection) -> None:
    """Delete all sparse vectors."""
    from qdrant_client import models

    collection.create(None)
    collection.write_configuration(tokenizer=None, average_length=None)
    with collection.connection.use() as client:
        having = models.Filter(must=[models.HasVectorCondition(has_vector=KEYWORDS)])
        client.delete_vectors(collection.name, [KEYWORDS], having, wait=True)


def index_fields(collection: QdrantCollection, names: Iterable[str]) -> None:
    """Make payload indexes of some metadata keys; see `latelier.indexes.Qdrant.index_fields`."""
    from qdrant_client import models

    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(
                f"received {describe(name)} as a metadata key; expected a str that is not empty."
            )
    collection.create(None)
    collection.add_fields(listed)
    if collection.connection.is_local:
        return
    types = {
        "numbers": models.PayloadSchemaType.FLOAT,
        "strings": models.PayloadSchemaType.KEYWORD,
        "lists": models.PayloadSchemaType.KEYWORD,
    }
    for name in listed:
        for kind, schema in types.items():
            with collection.connection.use() as client:
                client.create_payload_index(collection.name, field_path(kind, name), schema, wait=True)


def verify_points(points: Points) -> VerifyReport:
    """Compare every point with the checksum in its payload."""
    damages = []
    count = 0
    for record in points.scroll(True, vectors=True):
        count += 1
        reason = _damage(record)
        if reason:
            payload = record.payload or {}
            ids = (payload["id"],) if "id" in payload else ()
            damages.append(Damage(f"point {record.id}", reason, ids))
    return VerifyReport(count, tuple(damages))


def statistics(points: Points, collection: QdrantCollection) -> IndexStatistics:
    """Return how much an index holds."""
    from qdrant_client import models

    tokens = [check_payload(record, ["tokens"])["tokens"] for record in points.scroll(["tokens"])]
    no_text = models.IsEmptyCondition(is_empty=models.PayloadField(key="text"))
    no_metadata = models.FieldCondition(key="metadata", match=models.MatchValue(value="{}"))
    return IndexStatistics(
        documents=len(tokens),
        tokens=sum(tokens),
        removed=0,
        bytes=_stored_bytes(collection),
        has_texts=points.count(models.Filter(must_not=[no_text])) > 0,
        has_metadata=points.count(models.Filter(must_not=[no_metadata])) > 0,
    )


def _stored_bytes(collection: QdrantCollection) -> int | None:
    """Return the size of the files of a collection; None if it is on a server, which does not tell."""
    connection = collection.connection
    if not connection.is_local:
        return None
    # The folder of the local mode may hold other collections too.
    folder = None if connection.path is None else connection.path / "collection" / collection.name
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder is not None else 0


def _texts(points: Points) -> Iterable[list[tuple[Any, str]]]:
    """Yield the ids and texts of all documents with a text, some at a time."""
    waiting: list[tuple[Any, str]] = []
    for record in points.scroll(["id", "text"]):
        payload = check_payload(record, ["id"])
        if payload.get("text") is not None:
            waiting.append((payload["id"], payload["text"]))
        if len(waiting) == _TEXTS:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _damage(record: Any) -> str:
    """Return what is wrong with a point; nothing if all is right."""
    payload = record.payload or {}
    try:
        if str(record.id) != point_id(payload["id"]):
            return "it has the id of another document"
        as_record(payload)
        vectors = np.asarray(record.vector[TOKENS], dtype="float32")
        if payload["checksum"] != checksum(payload["id"], payload.get("text"), payload["metadata"], vectors):
            return "its contents differ from its checksum"
    except (KeyError, TypeError, ValueError) as error:
        return f"its payload or its vectors are incomplete ({type(error).__name__}: {error})"
    return ""
