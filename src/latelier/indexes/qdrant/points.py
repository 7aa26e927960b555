"""Documents as points: payloads, sparse vectors of words, reads and writes.

The payload of a point has these keys:

``id``, ``text``
    As the user gave them; no ``text`` if there is none.
``metadata``
    The metadata as exact JSON text: a payload itself cannot hold integers beyond 64 bits, and may reorder keys.
``numbers``, ``strings``
    The SQL value of each field by its `field_key`; a field in neither is NULL. Whole numbers are integers, whatever
    type they had, since SQL compares 2.0 with 2 and Qdrant's match does not.
``lists``, ``true``
    The elements of each list, dict and string that is JSON, as json_each reads them; the fields whose string is true in
    SQL, since it begins with a number other than 0.
``sequence``, ``tokens``
    The place in the order of insertion, and the number of token vectors.

A sparse vector has one dimension per word: a hash of it, 32 bits. The value of a word in a document is

    (k1 + 1) * tf / (tf + k1 * (1 - b + b * length / average length))    with k1 = 1.2, b = 0.75

and 1 in a query. Qdrant multiplies it with ``idf = log(1 + (N - n + 0.5) / (n + 0.5))`` (FTS5 has no 1 there). The
average length is that of the first write, until the keyword index is made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError
from latelier.indexes.documents import DocumentBatch
from latelier.indexes.filters import fold_name, is_nameable
from latelier.indexes.qdrant.collection import FIRST_STAGE, KEYWORDS, TOKENS, QdrantCollection
from latelier.indexes.results import INT64, Id, dump_json
from latelier.indexes.store.keywords import TOKENIZERS, query_words, with_parts
from latelier.indexes.store.rows import SqlValue, StoredDocument
from latelier.utils.batching import lengths_to_offsets, split_by_rows

if TYPE_CHECKING:
    from qdrant_client import models

# Payload keys that say which document a point is, and where it stands in the order of insertion.
PLACE = ["id", "sequence"]
# Any fixed UUID: the ids of points must be the same in each version of this library.
_NAMESPACE = uuid.UUID("6f3c1a52-7d0e-5c1b-9a43-0f4e2b7d9c61")
# Points per request that reads or deletes.
_PAGE = 1000
# Numbers and points per request that writes or reads vectors: as JSON, 20 bytes per number. Servers accept 32 MB.
_NUMBERS, _POINTS = 1 << 19, 128


class Points:
    """The documents of an index as points."""

    def __init__(self, collection: QdrantCollection) -> None:
        self._collection = collection

    def count(self, condition: models.Filter | None = None) -> int:
        """Return the number of points, exactly."""
        if not self._exists():
            return 0
        with self._collection.connection.use() as client:
            return int(client.count(self._collection.name, count_filter=condition, exact=True).count)

    def count_texts(self) -> int:
        """Return the number of documents with a text."""
        from qdrant_client import models

        empty = models.IsEmptyCondition(is_empty=models.PayloadField(key="text"))
        return self.count(models.Filter(must_not=[empty]))

    def find(self, ids: Iterable[Id], keys: list[str] | bool = False) -> dict[Id, dict[str, Any]]:
        """Return the payloads of documents by id; those that are not in the index are left out."""
        # A document without a text has no key for it.
        needed = [key for key in keys if key != "text"] if isinstance(keys, list) else []
        found = self._retrieve(ids, _PAGE, keys, vectors=False)
        return {id: check_payload(record, needed) for id, record in found}

    def vectors(self, ids: Sequence[Id]) -> dict[Id, np.ndarray]:
        """Return the token vectors of documents by id; those that are not in the index are left out."""
        lengths = [payload["tokens"] for payload in self.find(ids, ["tokens"]).values()]
        size = max(1, int(np.mean(lengths or [1])) * (self._collection.dim or 1))
        found: dict[Id, np.ndarray] = {}
        for id, record in self._retrieve(ids, max(1, min(_PAGE, _NUMBERS // size)), False, vectors=True):
            if TOKENS not in (record.vector or {}):
                raise foreign(record, f"vectors {TOKENS!r}")
            found[id] = np.asarray(record.vector[TOKENS], dtype="float32")
        return found

    def _retrieve(
        self, ids: Iterable[Id], size: int, keys: list[str] | bool, *, vectors: bool
    ) -> Iterator[tuple[Id, Any]]:
        if not self._exists():
            return
        for chunk in _chunks(dict.fromkeys(ids), size):
            by_point = {point_id(id): id for id in chunk}
            with self._collection.connection.use() as client:
                records = client.retrieve(
                    self._collection.name,
                    list(by_point),
                    with_payload=keys,
                    with_vectors=[TOKENS] if vectors else False,
                )
            yield from ((by_point[str(record.id)], record) for record in records)

    def scroll(
        self, keys: list[str] | bool, condition: models.Filter | None = None, *, vectors: bool = False
    ) -> Iterator[Any]:
        """Yield the points with some keys of their payloads, in the order of Qdrant, which is that of their ids."""
        offset, more = None, self._exists()
        while more:
            with self._collection.connection.use() as client:
                records, offset = client.scroll(
                    self._collection.name,
                    scroll_filter=condition,
                    limit=32 if vectors else _PAGE,  # what fits in an answer
                    offset=offset,
                    with_payload=keys,
                    with_vectors=[TOKENS] if vectors else False,
                )
            yield from records
            more = offset is not None

    def ids(self, prefix: str | None = None) -> list[Id]:
        """Return the ids in the order of insertion, or those that are strings and begin with a prefix."""
        from qdrant_client import models

        condition = None
        if prefix is not None:
            condition = models.Filter(must=[models.FieldCondition(key="id", match=models.MatchPrefix(prefix=prefix))])
        payloads = [check_payload(record, PLACE) for record in self.scroll(PLACE, condition)]
        return [payload["id"] for payload in sorted(payloads, key=lambda payload: payload["sequence"])]

    def texts(self, size: int) -> Iterator[list[tuple[Id, str]]]:
        """Yield the ids and texts of all documents with a text, some at a time."""
        payloads = (check_payload(record, ["id"]) for record in self.scroll(["id", "text"]))
        yield from _chunks(((each["id"], each["text"]) for each in payloads if each.get("text") is not None), size)

    def last_sequence(self) -> int:
        """Return the place of the document that was inserted last; -1 if there is none."""
        from qdrant_client import models

        order = models.OrderBy(key="sequence", direction=models.Direction.DESC)
        with self._collection.connection.use() as client:
            records, _ = client.scroll(self._collection.name, limit=1, order_by=order, with_payload=["sequence"])
        return int((records[0].payload or {})["sequence"]) if records else -1

    def upsert(self, batch: DocumentBatch, sequence: int) -> Iterator[int]:
        """Insert or replace documents from a place in the order on; yield how many each request has stored."""
        from qdrant_client import models

        first_stage = self._collection.configuration.first_stage
        embeddings = TokenEmbeddings(batch.arrays["vectors"], lengths_to_offsets(batch.lengths))
        size = batch.dim + first_stage.size(batch.dim)
        for first, last in split_by_rows(embeddings.offsets, max(1, _NUMBERS // size), _POINTS):
            part, documents = embeddings[first:last], batch.documents[first:last]
            singles = first_stage.encode_documents(part)
            words = self._sparse([document.text or "" for document in documents])
            points = [
                models.PointStruct(
                    id=point_id(document.id),
                    payload=_payload(document, sequence + first + i, len(part[i])),
                    vector={TOKENS: part[i].tolist(), FIRST_STAGE: singles[i].tolist(), **words[i]},
                )
                for i, document in enumerate(documents)
            ]
            with self._collection.connection.use() as client:
                client.upsert(self._collection.name, points, wait=True)
            yield last - first

    def delete(self, ids: Iterable[Id]) -> None:
        """Delete documents; those that are not in the index are skipped."""
        from qdrant_client import models

        for chunk in _chunks(ids, _PAGE):
            selector = models.PointIdsList(points=[point_id(id) for id in chunk])
            with self._collection.connection.use() as client:
                client.delete(self._collection.name, selector, wait=True)

    def write_keywords(self, texts: Sequence[tuple[Id, str]]) -> None:
        """Make the sparse vectors of texts again."""
        from qdrant_client import models

        made = zip(texts, self._sparse([text for _, text in texts]), strict=True)
        vectors = [models.PointVectors(id=point_id(id), vector=words) for (id, _), words in made if words]
        if vectors:
            with self._collection.connection.use() as client:
                client.update_vectors(self._collection.name, vectors, wait=True)

    def drop_keywords(self) -> None:
        """Delete all sparse vectors."""
        from qdrant_client import models

        having = models.Filter(must=[models.HasVectorCondition(has_vector=KEYWORDS)])
        with self._collection.connection.use() as client:
            client.delete_vectors(self._collection.name, [KEYWORDS], having, wait=True)

    def _exists(self) -> bool:
        if not self._collection.exists:
            self._collection.read()
        return self._collection.exists

    def _sparse(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the sparse vector of each text by its name; nothing for one without words."""
        configuration = self._collection.configuration
        if configuration.tokenizer is None or configuration.average_length is None:
            return [{} for _ in texts]
        counts = count_words([with_parts(text) for text in texts], configuration.tokenizer)
        vectors = [_document_vector(each, configuration.average_length) for each in counts]
        return [{} if vector is None else {KEYWORDS: vector} for vector in vectors]


def point_id(id: Id) -> str:
    """Return the id of a document's point, a UUID that depends on the id and its type."""
    return str(uuid.uuid5(_NAMESPACE, f"{type(id).__name__}:{id}"))


def check_payload(record: Any, keys: Iterable[str]) -> dict[str, Any]:
    """Return the payload of a point; raise `CorruptedIndexError` if it lacks a key."""
    payload: dict[str, Any] = record.payload or {}
    for key in keys:
        if key not in payload:
            raise foreign(record, f"payload key {key!r}")
    return payload


def foreign(record: Any, missing: str) -> CorruptedIndexError:
    """Return the error for a point that is not one of an index."""
    return CorruptedIndexError(
        f"the point {record.id} of the collection has no {missing}: another program has added or changed it. verify() "
        "lists all such points; delete them with Qdrant's client, and add their documents again."
    )


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk


# Payloads.

_JSON_BEGIN = re.compile(r'[ \t\n\r]*(?:[\[{"]|-?[0-9]|true|false|null)')
_NUMERIC_PREFIX = re.compile(r"[ \t\n\v\f\r]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")


def _payload(document: StoredDocument, sequence: int, tokens: int) -> dict[str, Any]:
    payload = {"id": document.id, "metadata": document.metadata, "sequence": sequence, "tokens": tokens}
    payload |= {} if document.text is None else {"text": document.text}
    numbers: dict[str, int | float] = {}
    strings: dict[str, str] = {}
    lists: dict[str, list[Any]] = {}
    originals = json.loads(document.metadata) if document.fields else {}
    # Reversed, so that of keys that differ only in case the first one wins.
    for name, value in reversed(list(document.fields.items())):
        if not is_nameable(fold_name(name)):
            continue
        key, original = field_key(name), originals[name]
        for kept in (numbers, strings, lists):
            kept.pop(key, None)
        elements = None
        if isinstance(original, (list, dict)):
            elements = _elements(original)
        elif isinstance(original, str):
            elements = text_elements(original)
        if elements is not None:
            lists[key] = elements
        if isinstance(value, str):
            strings[key] = value
        elif value is not None:
            numbers[key] = as_number(value)
    true = sorted(key for key, value in strings.items() if is_true_text(value))
    parts = {"numbers": numbers, "strings": strings, "lists": lists, "true": true}
    return payload | {name: part for name, part in parts.items() if part}


def field_key(name: str) -> str:
    """Return the key of a field in a payload, which is also a step of Qdrant's paths.

    A path quotes a step that is not a word, and cannot hold a double quote: it becomes ``%22``, and ``%`` ``%25``.
    """
    return fold_name(name).replace("%", "%25").replace('"', "%22")


def as_number(value: int | float) -> int | float:
    """Return a number as payloads hold it: 2.0 as 2, beyond 64 bits as the nearest float, and no infinity."""
    if isinstance(value, int) and value not in INT64:
        value = float(value) if abs(value) < 2**1023 else math.copysign(math.inf, 1 if value > 0 else -1)
    if isinstance(value, float):
        if math.isinf(value):
            return math.copysign(sys.float_info.max, value)
        if not value.is_integer() or int(value) not in INT64:
            return value
    return int(value)


def is_true_text(value: str) -> bool:
    """Whether a string is true as a condition of SQL: it begins with a number other than 0."""
    found = _NUMERIC_PREFIX.match(value)
    return found is not None and float(found[1]) != 0


def text_elements(text: str) -> list[SqlValue] | None:
    """Return what json_each reads from a string: the elements of its JSON, or one value; None if it is not JSON."""
    if not _JSON_BEGIN.match(text):  # most strings, without the cost of an exception
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _elements(value if isinstance(value, (list, dict)) else [value])


def _elements(value: Any) -> list[SqlValue]:
    found: list[SqlValue] = []
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, (list, dict)):
            found.append(dump_json(each))
        else:
            found.append(each if each is None or isinstance(each, str) else as_number(each))
    return found


# Words.

_K1, _B = 1.2, 0.75
# Characters of a word of a query that are searched for with the tokenizer "trigram", as in FTS5 indexes.
_TRIGRAM_WORD = 64


def count_words(texts: Sequence[str], tokenizer: str) -> list[dict[str, int]]:
    """Return how often each text has each of its words, as FTS5 cuts it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            f"CREATE VIRTUAL TABLE keyword USING fts5(text, content='', tokenize='{TOKENIZERS[tokenizer]}')"
        )
        connection.execute("CREATE VIRTUAL TABLE word USING fts5vocab(keyword, 'instance')")
        connection.executemany("INSERT INTO keyword(rowid, text) VALUES (?, ?)", enumerate(texts))
        counts: list[dict[str, int]] = [{} for _ in texts]
        for document, word, count in connection.execute("SELECT doc, term, count(*) FROM word GROUP BY doc, term"):
            counts[document][word] = count
        return counts


def query_vector(text: str, tokenizer: str) -> models.SparseVector | None:
    """Return the sparse vector of a query; None if it has no word.

    A word that the tokenizer cuts further counts as several words; in FTS5, they must follow each other.
    """
    words = query_words(text)
    if tokenizer == "trigram":
        words = [word[:_TRIGRAM_WORD] for word in words]
    return _sparse_vector({word: 1.0 for counts in count_words(words, tokenizer) for word in counts})


def _document_vector(counts: dict[str, int], average: float) -> models.SparseVector | None:
    norm = _K1 * (1 - _B + _B * sum(counts.values()) / average)
    return _sparse_vector({word: (_K1 + 1) * count / (count + norm) for word, count in counts.items()})


def _sparse_vector(weights: dict[str, float]) -> models.SparseVector | None:
    """Return the weights of words by dimension; those of two words with the same hash are added."""
    from qdrant_client import models

    values: dict[int, float] = {}
    for word, weight in weights.items():
        dimension = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little")
        values[dimension] = values.get(dimension, 0.0) + weight
    return models.SparseVector(indices=list(values), values=list(values.values())) if values else None
