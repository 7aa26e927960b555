"""Payloads, reads, writes, BM25 as sparse vectors.

The payload of a point has these keys:

``id``, ``text``
    As the user gave them; no ``text`` if there is none.
``metadata``
    The metadata as exact JSON text: a payload itself cannot hold integers beyond 64 bits, and may reorder keys.
``numbers``, ``strings``, ``lists``, ``true``
    The fields that filters read, by type: see `latelier.indexes.qdrant.fields`.
``sequence``, ``tokens``, ``checksum``
    The place in the order of insertion, the number of token vectors, and the CRC-32 of all that is stored.

Qdrant has no transactions, so bad input must be found before anything is sent. The first batch stays in memory; when
there are more, they wait in files in the folder for temporary files.

A sparse vector has one dimension per word: a hash of it, 32 bits. The value of a word in a document is

    (k1 + 1) * tf / (tf + k1 * (1 - b + b * length / average length))    with k1 = 1.2, b = 0.75

and 1 in a query. Qdrant multiplies it with ``idf = log(1 + (N - n + 0.5) / (n + 0.5))``, from the ``n`` documents of
``N`` that hold the word at the time of the search. FTS5 has no 1 in the logarithm, and cuts the idf at 1e-6.

The average length is that of the texts of the first write, since later ones cannot change what is stored; making the
keyword index again (``compact(keywords=True)``) takes the average of all texts.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
import uuid
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, EmbeddingsError, LatelierError, StorageError
from latelier.indexes.documents import DocumentBatch, DocumentBatches
from latelier.indexes.qdrant.collection import FIRST_STAGE, KEYWORDS, TOKENS, QdrantCollection
from latelier.indexes.qdrant.fields import field_payload
from latelier.indexes.results import Id, Record
from latelier.indexes.store import connections
from latelier.indexes.store.keywords import TOKENIZERS, query_words
from latelier.indexes.store.rows import StoredDocument
from latelier.indexes.values import duplicate_ids
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

if TYPE_CHECKING:
    from qdrant_client import models

__all__ = [
    "PLACE",
    "Points",
    "SparseVector",
    "Spool",
    "as_record",
    "average_length",
    "check_payload",
    "checksum",
    "count_words",
    "document_vector",
    "make_payload",
    "point_id",
    "query_vector",
    "stored_part",
    "write_documents",
]

# Any fixed UUID: the ids of points must be the same in each version of this library.
_NAMESPACE = uuid.UUID("6f3c1a52-7d0e-5c1b-9a43-0f4e2b7d9c61")


def point_id(id: Id) -> str:
    """Return the id of a document's point, a UUID that depends on the id and its type."""
    return str(uuid.uuid5(_NAMESPACE, f"{type(id).__name__}:{id}"))


def make_payload(document: StoredDocument, sequence: int, vectors: np.ndarray) -> dict[str, Any]:
    """Return the payload of a document.

    `sequence`: its place in the order of insertion; `vectors`: ``(tokens, dim)``: its token vectors, as they are
    stored.

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


class Spool:
    """Batches of documents, kept until they have been sent."""

    def __init__(self) -> None:
        self.documents = 0
        self._first: DocumentBatch | None = None
        self._files = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def append(self, batch: DocumentBatch) -> None:
        """Keep a batch."""
        self.documents += len(batch.documents)
        if self._first is None:
            self._first = batch
            return
        file = self._file(self._files)
        arrays: dict[str, Any] = {"lengths": batch.lengths, **batch.arrays}
        np.savez(file, **arrays)
        rows = [[row.id, row.text, row.metadata, dict(row.fields)] for row in batch.documents]
        file.with_suffix(".json").write_text(json.dumps([batch.dim, rows]), encoding="utf-8")
        self._files += 1

    def __iter__(self) -> Iterator[DocumentBatch]:
        if self._first is not None:
            yield self._first
        for number in range(self._files):
            file = self._file(number)
            dim, rows = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
            with np.load(file, allow_pickle=False) as arrays:
                kept = {name: arrays[name] for name in arrays.files}
            yield DocumentBatch([StoredDocument(*row) for row in rows], kept.pop("lengths"), dim, kept)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _file(self, number: int) -> Path:
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="latelier-")
        return Path(self._folder.name) / f"{number}.npz"


_K1, _B = 1.2, 0.75
# Characters of a word of a query that are searched for with the tokenizer "trigram", as in FTS5 indexes.
_TRIGRAM_WORD = 64


class SparseVector(NamedTuple):
    """Dimensions, and the value of each."""

    indices: list[int]
    values: list[float]


def count_words(texts: Sequence[str], tokenizer: str) -> list[dict[str, int]]:
    """Return how often each text has each of its words, as FTS5 cuts it.

    Examples
    --------
    >>> count_words(["Wings, winged: the wing"], "porter")
    [{'the': 1, 'wing': 3}]
    """
    with connections.using(), closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            f"CREATE VIRTUAL TABLE keyword USING fts5(text, content='', tokenize='{TOKENIZERS[tokenizer]}')"
        )
        connection.execute("CREATE VIRTUAL TABLE word USING fts5vocab(keyword, 'instance')")
        connection.executemany("INSERT INTO keyword(rowid, text) VALUES (?, ?)", enumerate(texts))
        counts: list[dict[str, int]] = [{} for _ in texts]
        for document, word, count in connection.execute("SELECT doc, term, count(*) FROM word GROUP BY doc, term"):
            counts[document][word] = count
        return counts


def average_length(counts: Sequence[dict[str, int]]) -> float:
    """Return the average number of words of some texts, at least 1."""
    return max(1.0, sum(sum(each.values()) for each in counts) / max(1, len(counts)))


def document_vector(counts: dict[str, int], average: float) -> SparseVector:
    """Return the sparse vector of a text.

    `counts`: its words, from `count_words`.

    Examples
    --------
    >>> document_vector({"wing": 1}, average=1.0).values
    [1.0]
    """
    norm = _K1 * (1 - _B + _B * sum(counts.values()) / average)
    return _sparse({word: (_K1 + 1) * count / (count + norm) for word, count in counts.items()})


def query_vector(text: str, tokenizer: str) -> SparseVector:
    """Return the sparse vector of a query; empty if it has no word.

    A word that the tokenizer cuts further counts as several words; in FTS5, they must follow each other.

    Examples
    --------
    >>> query_vector("wing, WING!", "porter").values
    [1.0]
    """
    words = query_words(text)
    if tokenizer == "trigram":
        words = [word[:_TRIGRAM_WORD] for word in words]
    return _sparse({word: 1.0 for counts in count_words(words, tokenizer) for word in counts})


def _sparse(weights: dict[str, float]) -> SparseVector:
    """Return the weights of words by dimension; those of two words with the same hash are added."""
    by_dimension: dict[int, float] = {}
    for word, weight in weights.items():
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        dimension = int.from_bytes(digest, "little")
        by_dimension[dimension] = by_dimension.get(dimension, 0.0) + weight
    return SparseVector(list(by_dimension), list(by_dimension.values()))


# Payload keys that say which document a point is, and where it stands in the order of insertion.
PLACE = ["id", "sequence"]
# Points per request that reads or deletes.
_PAGE = 1000
# Numbers and points per request that writes or reads vectors: as JSON, 20 bytes per number. Servers accept 32 MB.
_NUMBERS, _POINTS = 1 << 19, 128


class Points:
    """The documents of an index as points."""

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

        `keys`: keys of the payloads to read; False for none.
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

        `batch`: the documents; their vectors are the array ``"vectors"``. `sequence`: the place of the first document
        in the order of insertion.
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


# A batch of documents in memory, in bytes.
_BATCH_BYTES = 64 << 20
# Qdrant stores multi-vectors of fewer numbers only (MAX_MULTIVECTOR_FLATTENED_LEN).
_MOST_NUMBERS = 1 << 20
# Texts of the first write that give the average length.
_SAMPLE = 10_000


def write_documents(
    points: Points,
    collection: QdrantCollection,
    given: tuple[Any, Any, Any, Any],
    *,
    replace: bool = False,
    prefixes: Sequence[str] = (),
    show_progress: bool = False,
) -> None:
    """Insert documents.

    `given`: the ids, embeddings, texts and metadata, as the user gave them. `replace`: replace documents that are in
    the index. `prefixes`: remove the documents that were in the index and whose ids begin with one of these.
    `show_progress`: show a progress bar while the documents are read. Raises `DuplicateIdError` if an id is given twice
    or, without `replace`, is in the index. Raises `EmbeddingsError` or `InvalidArgumentError` if a document cannot be
    stored; nothing has been sent then. Raises `StorageError` if Qdrant does not answer.
    """
    collection.read()  # others may have changed its dim or its tokenizer, or deleted it
    dtype = collection.configuration.dtype
    batches = DocumentBatches(*given, dtype=dtype, batch_bytes=_BATCH_BYTES, show_progress=show_progress)
    seen: set[Id] = set()
    with Spool() as spool:
        empty = points.count() == 0
        for batch in batches.read(None if empty else collection.dim, lambda part, _: {"vectors": part.vectors}):
            _check_ids(points, batch, seen, replace)
            _check_sizes(batch)
            spool.append(batch)
        replaced = {id for prefix in prefixes for id in points.ids(prefix)} - seen
        if spool.documents:
            _send(points, collection, spool)
        # The old documents go last: until then, searches find the old ones, the new ones, or both, but never neither.
        points.delete(replaced)


def _send(points: Points, collection: QdrantCollection, spool: Spool) -> None:
    stored = 0
    try:
        for batch in spool:
            if stored == 0:
                collection.create(batch.dim)
                sequence = points.last_sequence() + 1
                _set_average_length(collection, batch)
            collection.add_fields(dict.fromkeys(key for document in batch.documents for key in document.fields))
            for count in points.upsert(batch, sequence):
                stored += count
                sequence += count
    except LatelierError as error:
        if not stored:
            raise
        raise stored_part(error, stored, spool.documents) from error


def _check_ids(points: Points, batch: DocumentBatch, seen: set[Id], replace: bool) -> None:
    counts = Counter(document.id for document in batch.documents)
    twice = [id for id, count in counts.items() if count > 1 or id in seen]
    if twice:
        raise duplicate_ids(twice, "given twice in this call; give every document a different id")
    seen.update(counts)
    present = {} if replace else points.find(counts)
    if present:
        raise duplicate_ids(present, "in the index already; update() replaces documents")


def _check_sizes(batch: DocumentBatch) -> None:
    for document, length in zip(batch.documents, batch.lengths, strict=True):
        if length * batch.dim >= _MOST_NUMBERS:
            raise EmbeddingsError(
                f"document {document.id!r} has {length:,} tokens of dim {batch.dim}; Qdrant stores fewer than "
                f"{_MOST_NUMBERS:,} numbers per document. Cut it into passages, or pool its tokens."
            )


def _set_average_length(collection: QdrantCollection, batch: DocumentBatch) -> None:
    """Set the average length of texts that BM25 divides by, if it is not set yet and there are texts."""
    configuration = collection.configuration
    texts = [document.text for document in batch.documents[:_SAMPLE] if document.text is not None]
    if configuration.tokenizer is not None and configuration.average_length is None and texts:
        collection.write_configuration(average_length=average_length(count_words(texts, configuration.tokenizer)))
