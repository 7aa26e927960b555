"""Documents as points of a collection: their ids, payloads and vectors, and back.

The payload of a point has these keys:

``id``, ``text``
    As the user gave them; no ``text`` if there is none.
``metadata``
    The metadata as exact JSON text: a payload itself cannot hold integers beyond 64 bits, and may reorder keys.
``numbers``, ``strings``, ``lists``, ``true``
    The fields that filters read, by type: see `latelier.indexes.qdrant.fields`.
``sequence``, ``tokens``, ``checksum``
    The place in the order of insertion, the number of token vectors, and the CRC-32 of all that is stored.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from latelier.indexes.catalog.document_rows import StoredDocument
from latelier.indexes.qdrant.fields import field_payload
from latelier.indexes.results import Id, Record

__all__ = ["as_record", "checksum", "make_payload", "point_id"]

# Any fixed UUID: the ids of points must be the same in each version of this library.
_NAMESPACE = uuid.UUID("6f3c1a52-7d0e-5c1b-9a43-0f4e2b7d9c61")


def point_id(id: Id) -> str:
    """Return the id of a document's point, a UUID that depends on the id and its type.

    Examples
    --------
    >>> point_id(1) == point_id("1")
    False
    """
    return str(uuid.uuid5(_NAMESPACE, f"{type(id).__name__}:{id}"))


def make_payload(document: StoredDocument, sequence: int, vectors: np.ndarray) -> dict[str, Any]:
    """Return the payload of a document.

    Parameters
    ----------
    document
        Its id, text, metadata and fields.
    sequence
        Its place in the order of insertion.
    vectors
        ``(tokens, dim)``: its token vectors, as they are stored.

    Examples
    --------
    >>> document = StoredDocument("a", None, '{"year":2024}', {"year": 2024})
    >>> payload = make_payload(document, 7, np.ones((3, 2), "float32"))
    >>> payload["id"], payload["sequence"], payload["tokens"], payload["numbers"]
    ('a', 7, 3, {'year': 2024})
    """
    payload = {
        "id": document.id,
        "metadata": document.metadata,
        "sequence": sequence,
        "tokens": len(vectors),
        "checksum": checksum(document.id, document.text, document.metadata, vectors),
        **field_payload(document),
    }
    return payload if document.text is None else {**payload, "text": document.text}


def as_record(payload: Mapping[str, Any]) -> Record:
    """Return the text and metadata of a payload."""
    return Record(payload["id"], payload.get("text"), json.loads(payload["metadata"]))


def checksum(id: Id, text: str | None, metadata: str, vectors: np.ndarray) -> int:
    """Return the CRC-32 of a document: of its id, text and metadata as JSON, and of the bytes of its vectors."""
    contents = json.dumps([id, text, metadata], ensure_ascii=True).encode()
    return zlib.crc32(np.ascontiguousarray(vectors, dtype="<f4").tobytes(), zlib.crc32(contents))
