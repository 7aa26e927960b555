"""The collection of Qdrant that holds an index: its connection, its settings, and documents as points.

A point is a whole document, or a passage of one; searches of passages are grouped by the document. Points have three
named vectors: ``tokens``, the token vectors, compared by MaxSim and without an HNSW graph of their own;
``first_stage``, one vector, which finds candidates; and ``keywords``, a sparse vector of the text. The metadata of the
collection holds the rest, each value as JSON text, so that two writers change different keys: ``latelier``, the
configuration; ``passages``, if there were ever any; ``mean``, the mean of the token vectors, with their number and that
of the documents; ``field:...``, the spelling of a field; ``setting:...``.

The payload of a point has these keys:

``id``, ``text``
    As the user gave them; no ``text`` if there is none, and on the first passage of a document only.
``document``, ``position``
    The id of the point of the document, or of its first passage; and the place among its passages, from 1, which the
    first one does not have.
``start``, ``end``, ``passages``
    The range of a passage; and those of all passages with their titles and pages, as JSON text, on the first one.
``metadata``
    The metadata as exact JSON text: a payload itself cannot hold integers beyond 64 bits, and may reorder keys.
``numbers``, ``strings``
    The SQL value of each field by its `field_key`; a field in neither is NULL. Whole numbers are integers, whatever
    type they had, since SQL compares 2.0 with 2 and Qdrant's match does not.
``lists``, ``true``
    The elements of each list, dict and string that is JSON, as json_each reads them; the fields whose string is true in
    SQL, since it begins with a number other than 0.
``origin``, ``integer``
    Where the document came from, see `latelier.indexes.qdrant.origins`; its id if it is an integer.
``sequence``, ``tokens``
    The place in the order of insertion, and the number of token vectors.

A sparse vector has one dimension per word: a hash of it, 32 bits. The value of a word in a document is

    (k1 + 1) * tf / (tf + k1 * (1 - b + b * length / average length))    with k1 = 1.2, b = 0.75

and 1 in a query. Qdrant multiplies it with ``idf = log(1 + (N - n + 0.5) / (n + 0.5))``. The average length is that of
the first write, until the keyword index is made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import (
    CorruptedIndexError,
    FilterTimeoutError,
    IndexFormatError,
    InvalidArgumentError,
    LatelierError,
    StorageError,
)
from latelier.indexes.fields import fold_name, is_nameable, new_fields
from latelier.indexes.results import Passage
from latelier.indexes.single_vectors import SingleVectors, single_vectors_from_dict
from latelier.indexes.store.rows import DocumentBatch, SqlValue, StoredDocument
from latelier.indexes.store.sources import Origin
from latelier.indexes.words import document_terms, query_terms
from latelier.utils.batching import lengths_to_offsets, split_by_rows
from latelier.utils.checks import describe
from latelier.utils.misc import needs_extra
from latelier.utils.values import INT64, Id, as_key, dump_json, encode_json

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

TOKENS = "tokens"
FIRST_STAGE = "first_stage"
KEYWORDS = "keywords"
_FORMAT = 1
_MARK = "latelier"
_PASSAGES = "passages"
_FIELD = "field:"
_SETTING = "setting:"
# Characters that Qdrant does not allow in the name of a collection.
_NOT_IN_NAMES = frozenset('<>:"/\\|?*\0\x1f')


@dataclass(frozen=True)
class CollectionConfiguration:
    """The configuration of an index; `average_length`, for BM25, is None until a word is written."""

    dtype: str
    first_stage: SingleVectors
    tokenizer: str | None
    average_length: float | None = None

    def encode(self) -> str:
        """Return it as JSON text."""
        values = {"format": _FORMAT, "dtype": self.dtype, "first_stage": self.first_stage.to_dict()}
        return json.dumps({**values, "tokenizer": self.tokenizer, "average_length": self.average_length})

    @classmethod
    def decode(cls, text: str) -> CollectionConfiguration:
        """Return the configuration of a JSON text."""
        values = json.loads(text)
        if values["format"] > _FORMAT:
            raise ValueError(f"its format is {values['format']}, and this version of latelier knows up to {_FORMAT}")
        first_stage = single_vectors_from_dict(values["first_stage"])
        return cls(values["dtype"], first_stage, values["tokenizer"], values["average_length"])


class QdrantCollection:
    """The collection of an index, made by the first write; what others have made is refused and left as it is."""

    def __init__(self, connection: QdrantConnection, name: str, defaults: CollectionConfiguration) -> None:
        self.connection = connection
        self.name = name
        self.configuration = defaults
        self.exists = False
        self._dim: int | None = None
        self._metadata: dict[str, Any] = {}
        self.read()

    def read(self) -> Mapping[str, Any]:
        """Read the configuration again; return the metadata."""
        with self.connection.use() as client:
            self.exists = client.collection_exists(self.name)
            if self.exists:
                info = client.get_collection(self.name)
            else:
                info = None
        if info is None:
            self._dim = None
            self._metadata = {}
            return self._metadata
        self._metadata = dict(info.config.metadata or {})
        vectors = info.config.params.vectors
        self.configuration = self._decode(self._metadata, vectors)
        if isinstance(vectors, dict) and TOKENS in vectors:
            self._dim = vectors[TOKENS].size
        else:
            self._dim = None
        return self._metadata

    @property
    def dim(self) -> int | None:
        """Dimension of the token vectors of the collection, as read last; it may be empty."""
        if self._dim is None:
            self.read()
        return self._dim

    @property
    def has_passages(self) -> bool:
        """Whether a document was ever stored in passages, as read last."""
        return _PASSAGES in self._metadata

    def add_passages(self) -> None:
        """Note that documents are stored in passages, before the first one is."""
        if not self.has_passages:
            self.merge({_PASSAGES: "true"})

    def fields(self, known: Iterable[str] | None = None) -> dict[str, str]:
        """Return the spelling of each field by its name as SQL compares names; `known` names that suffice."""
        if known is None or not set(known) <= self._spellings().keys():
            self.read()
        return self._spellings()

    def write_configuration(self, **changes: Any) -> None:
        """Change the configuration."""
        self.configuration = replace(self.configuration, **changes)
        self.merge({_MARK: self.configuration.encode()})

    def add_fields(self, names: Iterable[str]) -> None:
        """Make metadata keys known as fields, up to 500 in all."""
        new = {f"{_FIELD}{fold_name(name)}": name for name in new_fields(self._spellings().values(), names)}
        if new:
            self.merge(new)

    def create(self, dim: int | None) -> None:
        """Make the collection, and its vectors as soon as their `dim` is known; an empty one can change it."""
        for _ in range(2):  # another writer may make it meanwhile, without vectors
            if not self.exists or dim not in (None, self._dim):
                self.read()
            if self.exists and dim in (None, self._dim):
                return
            with self.connection.use() as client:
                if self.exists:
                    self._change_dim(client, dim or 0)
                else:
                    self._create(client, dim)
            self.read()

    def _create(self, client: QdrantClient, dim: int | None) -> None:
        from qdrant_client import models

        sparse = {KEYWORDS: models.SparseVectorParams(modifier=models.Modifier.IDF)}
        try:
            client.create_collection(
                self.name,
                vectors_config={} if dim is None else self._vectors(dim),
                sparse_vectors_config=sparse,
                metadata={_MARK: self.configuration.encode()},
            )
        except Exception:
            if not client.collection_exists(self.name):  # another writer has just made it
                raise
            return
        if not self.connection.is_local:
            # Payload indexes, which the local mode does not have: reading in the order of a key needs one.
            integers = models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=False, range=True)
            client.create_payload_index(self.name, "sequence", integers)
            client.create_payload_index(self.name, "integer", integers)
            documents = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD)
            client.create_payload_index(self.name, DOCUMENT, documents)

    def _change_dim(self, client: QdrantClient, dim: int) -> None:
        """Make the vectors of a collection without points, in place of those of another dim."""
        from qdrant_client import models

        for name, params in self._vectors(dim).items():
            if self._dim is not None:
                client.delete_vector_name(self.name, name)
            dense = models.DenseVectorConfig(
                size=params.size,
                distance=params.distance,
                multivector_config=params.multivector_config,
                datatype=None if params.datatype is None else models.VectorStorageDatatype(params.datatype.value),
            )
            client.create_vector_name(self.name, name, models.DenseVectorNameConfig(dense=dense))
        if not self.connection.is_local:
            diff = models.VectorParamsDiff(hnsw_config=models.HnswConfigDiff(m=0))
            client.update_collection(self.name, vectors_config={TOKENS: diff})

    def _vectors(self, dim: int) -> dict[str, models.VectorParams]:
        from qdrant_client import models

        half = self.configuration.dtype == "float16"
        return {
            TOKENS: models.VectorParams(
                size=dim,
                distance=models.Distance.DOT,
                multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
                # Every search compares token vectors of few documents, or of all: a graph would only cost memory.
                hnsw_config=models.HnswConfigDiff(m=0),
                datatype=models.Datatype.FLOAT16 if half else models.Datatype.FLOAT32,
            ),
            FIRST_STAGE: models.VectorParams(
                size=self.configuration.first_stage.size(dim), distance=models.Distance.DOT
            ),
        }

    def merge(self, changes: Mapping[str, str | None]) -> None:
        """Change some keys of the metadata; None removes a key."""
        self.create(None)
        with self.connection.use() as client:
            client.update_collection(self.name, metadata=dict(changes))
        self.read()

    def _spellings(self) -> dict[str, str]:
        return {key[len(_FIELD) :]: value for key, value in self._metadata.items() if key.startswith(_FIELD)}

    def _decode(self, metadata: Mapping[str, Any], vectors: Any) -> CollectionConfiguration:
        """Return the configuration of an index, or raise an error that says why the collection is none."""
        if _MARK not in metadata:
            if isinstance(vectors, dict) and vectors:
                found = ", ".join(map(repr, vectors))
            else:
                found = "one without a name"
            raise IndexFormatError(
                f"the collection {self.name!r} in {self.connection.place} is not an index of latelier: its vectors are "
                f"{found}. It was left as it is; choose another name: collection='...'."
            )
        try:
            return CollectionConfiguration.decode(metadata[_MARK])
        except (ValueError, KeyError, TypeError) as error:
            raise IndexFormatError(
                f"the collection {self.name!r} in {self.connection.place} has a configuration that this version of "
                f"latelier cannot read ({error}); upgrade with: pip install --upgrade latelier"
            ) from error


class CollectionSettings(MutableMapping[str, Any]):
    """JSON values by name, read from Qdrant at each access and written to it at each assignment."""

    def __init__(self, collection: QdrantCollection) -> None:
        self._collection = collection

    def __getitem__(self, name: str) -> Any:
        return json.loads(self._texts()[name])

    def __setitem__(self, name: str, value: Any) -> None:
        what = f"the setting {name!r}"
        self._collection.merge({f"{_SETTING}{as_key(name, what)}": encode_json(value, what)})

    def __delitem__(self, name: str) -> None:
        if name not in self._texts():
            raise KeyError(name)
        self._collection.merge({f"{_SETTING}{name}": None})

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._texts()))

    def __len__(self) -> int:
        return len(self._texts())

    def __repr__(self) -> str:
        return f"CollectionSettings({dict(self)})"

    def _texts(self) -> dict[str, str]:
        found = self._collection.read()
        return {key[len(_SETTING) :]: value for key, value in found.items() if key.startswith(_SETTING)}


class QdrantConnection:
    """A client of Qdrant, used within ``with connection.use() as client``."""

    def __init__(
        self, path: Path | None, *, url: str | None, api_key: str | None, prefer_grpc: bool, timeout: int
    ) -> None:
        with needs_extra("indexes.Qdrant", "qdrant"):
            from qdrant_client import QdrantClient
        self.is_local = url is None
        self.path = path
        self.place = url or ("memory" if path is None else str(path))
        self.closed = False
        if path is not None:
            _check_folder(path)
        # The local mode is Python lists without a lock of their own.
        self._lock: AbstractContextManager[Any] = nullcontext()
        if self.is_local:
            self._lock = threading.RLock()
        with self._translate():
            if url is not None:
                # The first request of an index checks the server, and its error is one of this library.
                options: dict[str, Any] = {"url": url, "api_key": api_key, "timeout": timeout}
                self._client = QdrantClient(**options, prefer_grpc=prefer_grpc, check_compatibility=False)
            elif path is not None:
                self._client = QdrantClient(path=str(path), force_disable_check_same_thread=True)
            else:
                self._client = QdrantClient(location=":memory:")

    @contextmanager
    def use(self, *, filter: str | None = None) -> Iterator[QdrantClient]:
        """Return a context with the client, whose errors become those of this library, with the `filter` named."""
        self._check_open()
        with self._lock, self._translate(filter):
            yield self._client

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidArgumentError(f"the index in {self.place} is closed; open it again with indexes.Qdrant().")

    def close(self) -> None:
        """Close the client; closing twice is allowed."""
        if not self.closed:
            self.closed = True
            with self._lock:
                self._client.close()

    @contextmanager
    def _translate(self, filter: str | None = None) -> Iterator[None]:
        """Turn errors of the client within a ``with`` block into errors of this library."""
        try:
            yield
        except (LatelierError, KeyboardInterrupt):
            raise
        except Exception as error:
            self._check_open()  # another thread may have closed it meanwhile
            raise self._explain(error, filter) from error

    def _explain(self, error: Exception, filter: str | None) -> Exception:
        status = getattr(error, "status_code", None)  # of an HTTP answer
        name = getattr(getattr(error, "code", lambda: None)(), "name", "")  # of a gRPC call
        source = getattr(error, "source", error)  # what kept httpx from getting an answer
        content = getattr(source, "content", None)
        if isinstance(content, bytes):
            text = content.decode(errors="replace")
        else:
            text = str(source)
        reason = " ".join(text.split())[:300] or type(source).__name__
        if status in (401, 403) or name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            return StorageError(
                f"the Qdrant server at {self.place} refuses this access ({reason}).", advice="qdrant-key"
            )
        if status in (408, 504) or name == "DEADLINE_EXCEEDED" or "Timeout" in type(source).__name__:
            if filter is not None:
                return FilterTimeoutError(
                    f"a search with the filter {filter!r:.200} has not finished in time ({reason}); payload "
                    "indexes of its fields, made with Qdrant's client, help.",
                    advice="filter-timeout",
                )
            return StorageError(f"Qdrant at {self.place} has not answered in time ({reason}); raise timeout=.")
        if status is None and name in ("", "UNAVAILABLE") and not self.is_local:
            return StorageError(
                f"no Qdrant server answers at {self.place} ({type(source).__name__}: {reason}); check the url and that "
                "the server runs, for example with: curl URL/readyz"
            )
        if "already accessed" in reason:
            return StorageError(
                f"the folder {self.place} is open already, in this process or in another one; Qdrant's local mode lets "
                "one open it at a time. Close it first, or use a server: url=..."
            )
        if status == 404 or name == "NOT_FOUND" or "not found" in reason:
            return IndexFormatError(
                f"Qdrant at {self.place} does not find the collection, or a part of it ({reason}); others may have "
                "deleted it. Open the index again to make a new one."
            )
        return StorageError(f"Qdrant at {self.place} reports an error: {type(error).__name__}: {reason}.")


def _check_folder(path: Path) -> None:
    """Raise an error for a folder that neither is empty nor holds what the local mode writes."""
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
    else:
        names = set()
    others = sorted(names - {".lock", "meta.json", "collection"})
    if others and "meta.json" not in names:
        raise IndexFormatError(
            f"{path} is not a folder of Qdrant's local mode: it holds {', '.join(others[:3])}. Choose a new or an "
            "empty folder."
        )


def check_place(path: object, url: object, api_key: object, collection: object) -> None:
    """Raise an error if the place of an index is not clear."""
    if url is not None and path is not None:
        raise InvalidArgumentError(f"received path={path!r} and url={url!r}; give one: a folder, or a server.")
    if api_key is not None and url is None:
        raise InvalidArgumentError("received an api_key without a url, and only a server takes a key.")
    if not isinstance(collection, str) or not 0 < len(collection) <= 255 or _NOT_IN_NAMES & set(collection):
        raise InvalidArgumentError(
            f"received collection={describe(collection)}; expected a name of up to 255 characters, without any of "
            '< > : " / \\ | ? *.'
        )


# Documents as points.

# The payload key by which passages are grouped.
DOCUMENT = "document"
# Payload keys that say which document a point is, and where it stands in the order of insertion; and its range, if any.
PLACE = ["id", "sequence", DOCUMENT]
RANGE = ["start", "end"]
# Any fixed UUID: the ids of points must be the same in each version of this library.
_NAMESPACE = uuid.UUID("6f3c1a52-7d0e-5c1b-9a43-0f4e2b7d9c61")
# Points per request that reads or deletes.
_PAGE = 1000
# Numbers and points per request that writes or reads vectors: as JSON, 20 bytes per number. Servers accept 32 MB.
_NUMBERS = 1 << 19
_POINTS = 128


class Points:
    """The documents of an index as points."""

    def __init__(self, collection: QdrantCollection) -> None:
        self._collection = collection

    def count_documents(self) -> int:
        """Return the number of documents, exactly."""
        return self.count(self._firsts())

    def _firsts(self) -> models.Filter | None:
        """Return the condition of whole documents and first passages; None if all points are whole documents."""
        from qdrant_client import models

        if not self._exists() or not self._collection.has_passages:
            return None
        position = models.PayloadField(key="position")
        return models.Filter(must=[models.IsEmptyCondition(is_empty=position)])

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
        # A document without a text, or without passages, has no key for it.
        if isinstance(keys, list):
            needed = [key for key in keys if key not in ("text", "passages", "origin")]
        else:
            needed = []
        found = self._retrieve([PointPlace(id) for id in dict.fromkeys(ids)], _PAGE, keys, vectors=False)
        return {place.id: check_payload(record, needed) for place, record in found}

    def passages(self, ids: Iterable[Id]) -> dict[Id, tuple[Passage, ...]]:
        """Return the passages of documents by id; those that are not in the index are left out."""
        return {id: as_passages(payload) for id, payload in self.find(ids, ["passages"]).items()}

    def vectors(self, places: Sequence[PointPlace]) -> list[np.ndarray]:
        """Return the token vectors of whole documents and passages, which must exist."""
        tokens = self._retrieve(places, _PAGE, ["tokens"], vectors=False)
        lengths = [check_payload(record, ["tokens"])["tokens"] for _, record in tokens]
        size = max(1, int(np.mean(lengths or [1])) * (self._collection.dim or 1))
        found: dict[PointPlace, np.ndarray] = {}
        for place, record in self._retrieve(places, max(1, min(_PAGE, _NUMBERS // size)), False, vectors=True):
            if TOKENS not in (record.vector or {}):
                raise foreign(record, f"vectors {TOKENS!r}")
            found[place] = np.asarray(record.vector[TOKENS], dtype="float32")
        missing = next((place for place in places if place not in found), None)
        if missing is not None:
            raise CorruptedIndexError(
                f"passage {missing.position} of document {missing.id!r} is not in the collection."
            )
        return [found[place] for place in places]

    def _retrieve(
        self, places: Iterable[PointPlace], size: int, keys: list[str] | bool, *, vectors: bool
    ) -> Iterator[tuple[PointPlace, Any]]:
        if not self._exists():
            return
        for chunk in _chunks(dict.fromkeys(places), size):
            by_point = {point_id(*place): place for place in chunk}
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
        offset = None
        more = self._exists()
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

    def ids(self) -> list[Id]:
        """Return the ids in the order of insertion."""
        payloads = [check_payload(record, PLACE) for record in self.scroll(PLACE, self._firsts())]
        return [payload["id"] for payload in sorted(payloads, key=lambda payload: payload["sequence"])]

    def texts(self, size: int) -> Iterator[list[tuple[str, str]]]:
        """Yield the ids and texts of all points with a text, some at a time."""

        def read() -> Iterator[tuple[str, str]]:
            for record in self.scroll(["id", "text", "passages"], self._firsts()):
                payload = check_payload(record, ["id"])
                text = payload.get("text")
                passages = as_passages(payload)
                if text is not None and not passages:
                    yield str(record.id), text
                elif text is not None:
                    points = (point_id(payload["id"], position) for position in range(len(passages)))
                    yield from zip(points, (each.text_in(text) for each in passages), strict=True)

        yield from _chunks(read(), size)

    def last(self, key: str) -> int:
        """Return the largest number under a key of the payloads, such as ``sequence``; -1 if there is none."""
        from qdrant_client import models

        order = models.OrderBy(key=key, direction=models.Direction.DESC)
        with self._collection.connection.use() as client:
            records, _ = client.scroll(self._collection.name, limit=1, order_by=order, with_payload=[key])
        if records:
            return int((records[0].payload or {})[key])
        return -1

    def set_origin(self, id: Id, origin: Origin) -> None:
        """Say where a document came from."""
        with self._collection.connection.use() as client:
            client.set_payload(self._collection.name, {"origin": origin._asdict()}, [point_id(id)], wait=True)

    def upsert(self, batch: DocumentBatch, sequence: int) -> Iterator[int]:
        """Insert or replace documents from a place in the order on; yield how many each request has stored."""
        from qdrant_client import models

        first_stage = self._collection.configuration.first_stage
        embeddings = TokenEmbeddings(batch.arrays["vectors"], lengths_to_offsets(batch.lengths))
        size = batch.dim + first_stage.size(batch.dim)
        rows = [(document, position) for document in batch.documents for position in range(len(document.passages) or 1)]
        for first, last in split_by_rows(embeddings.offsets, max(1, _NUMBERS // size), _POINTS):
            part = embeddings[first:last]
            some = rows[first:last]
            singles = first_stage.encode_documents(part)
            words = self._sparse([_row_text(document, position) for document, position in some])
            points = [
                models.PointStruct(
                    id=point_id(document.id, position),
                    payload=_payload(document, position, sequence + first + i, len(part[i])),
                    vector={TOKENS: part[i].tolist(), FIRST_STAGE: singles[i].tolist(), **words[i]},
                )
                for i, (document, position) in enumerate(some)
            ]
            with self._collection.connection.use() as client:
                client.upsert(self._collection.name, points, wait=True)
            yield sum(not position for _, position in some)

    def delete(self, ids: Iterable[Id]) -> None:
        """Delete documents with all their passages; those that are not in the index are skipped."""
        self.delete_after({id: (0, len(passages)) for id, passages in self.passages(ids).items()})

    def delete_after(self, kept: Mapping[Id, tuple[int, int]]) -> None:
        """Delete the passages of documents from a place on, given with how many there are."""
        from qdrant_client import models

        points = (point_id(id, at) for id, (first, count) in kept.items() for at in range(first, count or 1))
        for chunk in _chunks(points, _PAGE):
            with self._collection.connection.use() as client:
                client.delete(self._collection.name, models.PointIdsList(points=chunk), wait=True)

    def write_keywords(self, texts: Sequence[tuple[str, str]]) -> None:
        """Make the sparse vectors of the texts of points again."""
        from qdrant_client import models

        made = zip(texts, self._sparse([text for _, text in texts]), strict=True)
        vectors = [models.PointVectors(id=point, vector=words) for (point, _), words in made if words]
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
        terms = [document_terms(text, configuration.tokenizer) for text in texts]
        vectors = [_document_vector(Counter(each), configuration.average_length) for each in terms]
        return [{} if vector is None else {KEYWORDS: vector} for vector in vectors]


class PointPlace(NamedTuple):
    """A whole document, or the passage at a position of one."""

    id: Id
    position: int = 0


def point_id(id: Id, position: int = 0) -> str:
    """Return the id of a point, a UUID that depends on the document's id, its type, and the passage."""
    passage = f"{position}:" if position else ""
    return str(uuid.uuid5(_NAMESPACE, f"{passage}{type(id).__name__}:{id}"))


def as_passages(payload: Mapping[str, Any]) -> tuple[Passage, ...]:
    """Return the passages of a document from the payload of its first point."""
    return tuple(Passage(*each) for each in json.loads(payload.get("passages", "[]")))


def _row_text(document: StoredDocument, position: int) -> str:
    """Return the text of a whole document or of a passage in which words are searched."""
    if document.text is None or not document.passages:
        return document.text or ""
    return document.passages[position].text_in(document.text)


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


def _payload(document: StoredDocument, position: int, sequence: int, tokens: int) -> dict[str, Any]:
    payload: dict[str, Any] = {"id": document.id, "metadata": document.metadata, "sequence": sequence, "tokens": tokens}
    payload[DOCUMENT] = point_id(document.id)
    if position:
        payload["position"] = position
    elif document.text is not None:
        payload["text"] = document.text
    if document.passages:
        payload |= {"start": document.passages[position].start, "end": document.passages[position].end}
    if document.passages and not position:
        payload["passages"] = dump_json(document.passages)
    if isinstance(document.id, int) and not position:
        payload["integer"] = document.id
    if document.origin is not None and not position:
        payload["origin"] = document.origin._asdict()
    return payload | _payload_of_fields(document)


def _payload_of_fields(document: StoredDocument) -> dict[str, Any]:
    numbers: dict[str, int | float] = {}
    strings: dict[str, str] = {}
    lists: dict[str, list[Any]] = {}
    if document.fields:
        originals = json.loads(document.metadata)
    else:
        originals = {}
    # Reversed, so that of keys that differ only in case the first one wins.
    for name, value in reversed(list(document.fields.items())):
        if not is_nameable(fold_name(name)):
            continue
        key = field_key(name)
        original = originals[name]
        for kept in (numbers, strings, lists):
            kept.pop(key, None)
        if isinstance(original, str):
            elements = text_elements(original)
        else:
            elements = None
        if isinstance(original, (list, dict)):
            elements = _elements(original)
        if elements is not None:
            lists[key] = elements
        if isinstance(value, str):
            strings[key] = value
        elif value is not None:
            numbers[key] = as_number(value)
    true = sorted(key for key, value in strings.items() if is_true_text(value))
    parts = {"numbers": numbers, "strings": strings, "lists": lists, "true": true}
    return {name: part for name, part in parts.items() if part}


def field_key(name: str) -> str:
    """Return the key of a field in a payload, which is also a step of Qdrant's paths.

    A path quotes a step that is not a word, and cannot hold a double quote: it becomes ``%22``, and ``%`` ``%25``.
    """
    return fold_name(name).replace("%", "%25").replace('"', "%22")


def as_number(value: int | float) -> int | float:
    """Return a number as payloads hold it: 2.0 as 2, beyond 64 bits as the nearest float, and no infinity."""
    if isinstance(value, int) and value not in INT64:
        if abs(value) < 2**1023:
            value = float(value)
        else:
            value = math.copysign(math.inf, 1 if value > 0 else -1)
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
    def plain(element: Any) -> SqlValue:
        if isinstance(element, (list, dict)):
            return dump_json(element)
        if element is None or isinstance(element, str):
            return element
        return as_number(element)

    return [plain(each) for each in (value.values() if isinstance(value, dict) else value)]


# Words.

_K1 = 1.2
_B = 0.75


def query_vector(text: str, tokenizer: str) -> models.SparseVector | None:
    """Return the sparse vector of a query; None if it has no word."""
    return _sparse_vector({term: float(times) for term, times in query_terms(text, tokenizer).items()})


def _document_vector(counts: Mapping[str, int], average: float) -> models.SparseVector | None:
    norm = _K1 * (1 - _B + _B * sum(counts.values()) / average)
    return _sparse_vector({word: (_K1 + 1) * count / (count + norm) for word, count in counts.items()})


def _sparse_vector(weights: dict[str, float]) -> models.SparseVector | None:
    """Return the weights of words by dimension; those of two words with the same hash are added."""
    from qdrant_client import models

    values: dict[int, float] = {}
    for word, weight in weights.items():
        dimension = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little")
        values[dimension] = values.get(dimension, 0.0) + weight
    if values:
        return models.SparseVector(indices=list(values), values=list(values.values()))
    return None
