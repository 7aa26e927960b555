"""Connection, collection, settings.

The points have three named vectors: ``tokens``, the token vectors of a document, compared by MaxSim and without an HNSW
graph of their own; ``first_stage``, one vector per document, which finds candidates; and ``keywords``, a sparse vector
of its text. The metadata of the collection holds the rest, each value as JSON text, so that two writers change
different keys: ``latelier``, the configuration; ``field:...``, the spelling of a field; ``setting:...``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier.errors import (
    FilterTimeoutError,
    IndexFormatError,
    InvalidArgumentError,
    LatelierError,
    MissingExtraError,
    StorageError,
)
from latelier.indexes.filters import fold_name, new_fields
from latelier.indexes.results import as_key, encode_json
from latelier.indexes.single_vectors import SingleVectors, single_vectors_from_dict
from latelier.utils.checks import describe

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

TOKENS, FIRST_STAGE, KEYWORDS = "tokens", "first_stage", "keywords"
_FORMAT = 1
_MARK, _FIELD, _SETTING = "latelier", "field:", "setting:"
# Characters that Qdrant does not allow in the name of a collection.
_NOT_IN_NAMES = frozenset('<>:"/\\|?*\0\x1f')


@dataclass(frozen=True)
class CollectionConfiguration:
    """The configuration of an index.

    `tokenizer`: how texts are cut into words; None without sparse vectors. `average_length`: that of a text in words,
    for BM25; None until a text is written.
    """

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
    """The collection of an index, made by the first write.

    Raises `IndexFormatError` if there is a collection of this name that is not an index, or of a newer version. It is
    left as it is.
    """

    def __init__(self, connection: QdrantConnection, name: str, defaults: CollectionConfiguration) -> None:
        self.connection, self.name = connection, name
        self.configuration = defaults
        self.exists = False
        self._dim: int | None = None
        self._metadata: dict[str, Any] = {}
        self.read()

    def read(self) -> Mapping[str, Any]:
        """Read the configuration again; return the metadata."""
        with self.connection.use() as client:
            self.exists = client.collection_exists(self.name)
            info = client.get_collection(self.name) if self.exists else None
        if info is None:
            self._dim, self._metadata = None, {}
            return self._metadata
        self._metadata = dict(info.config.metadata or {})
        vectors = info.config.params.vectors
        self.configuration = self._decode(self._metadata, vectors)
        self._dim = vectors[TOKENS].size if isinstance(vectors, dict) and TOKENS in vectors else None
        return self._metadata

    @property
    def dim(self) -> int | None:
        """Dimension of the token vectors of the collection, as read last; it may be empty."""
        if self._dim is None:
            self.read()
        return self._dim

    def fields(self, known: Iterable[str] | None = None) -> dict[str, str]:
        """Return the spelling of each field by its name as SQL compares names.

        `known`: names that suffice: the metadata is not read again if it has them.
        """
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
        """Make the collection, and its vectors as soon as their dim is known.

        `dim`: dimension of the token vectors; None if it is not known yet. An empty collection can change it.
        """
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
            prefixes = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, prefix=True)
            client.create_payload_index(self.name, "id", prefixes)

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
            found = ", ".join(map(repr, vectors)) if isinstance(vectors, dict) and vectors else "one without a name"
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
    """A client of Qdrant, used within ``with connection.use() as client``.

    `path`: folder of the local mode; None for a server, or for the local mode in memory.
    """

    def __init__(
        self, path: Path | None, *, url: str | None, api_key: str | None, prefer_grpc: bool, timeout: int
    ) -> None:
        try:
            from qdrant_client import QdrantClient
        except ImportError as error:
            raise MissingExtraError("indexes.Qdrant", "qdrant") from error
        self.is_local = url is None
        self.path = path
        self.place = url or ("memory" if path is None else str(path))
        self.closed = False
        if path is not None:
            _check_folder(path)
        # The local mode is Python lists without a lock of their own.
        self._lock = threading.RLock() if self.is_local else nullcontext()
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
        """Return a context with the client, whose errors become those of this library.

        With a `filter`, a request that takes too long raises `FilterTimeoutError`, which names it.
        """
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
        text = content.decode(errors="replace") if isinstance(content, bytes) else str(source)
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
    """Raise an error for a file, and for a folder that neither is empty nor holds what the local mode writes."""
    if path.exists() and not path.is_dir():
        raise IndexFormatError(f"{path} is a file; Qdrant's local mode needs a folder.")
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
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
    if url is not None and not (isinstance(url, str) and url.startswith(("http://", "https://"))):
        raise InvalidArgumentError(f"received url={describe(url)}; expected one such as 'http://localhost:6333'.")
    if api_key is not None and url is None:
        raise InvalidArgumentError(
            "received an api_key without a url; only a server takes a key: give url=... as well."
        )
    if not isinstance(collection, str) or not 0 < len(collection) <= 255 or _NOT_IN_NAMES & set(collection):
        raise InvalidArgumentError(
            f"received collection={describe(collection)}; expected a name of up to 255 characters, without any of "
            '< > : " / \\ | ? *.'
        )
