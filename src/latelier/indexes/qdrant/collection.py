"""The collection of an index: its vectors, its configuration, its fields and settings, and the check that it is ours.

The points have three named vectors: ``tokens``, the token vectors of a document, compared by MaxSim and without an HNSW
graph of their own; ``first_stage``, one vector per document, which finds candidates; and ``keywords``, a sparse vector
of its text. The metadata of the collection holds the rest, each value as JSON text, so that two writers change
different keys: ``latelier``, the configuration; ``field:...``, the spelling of a field; ``setting:...``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from latelier.errors import IndexFormatError
from latelier.indexes.catalog.metadata import fold_name, new_fields
from latelier.indexes.qdrant.connection import QdrantConnection
from latelier.indexes.single_vectors import SingleVectors, single_vectors_from_dict

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

__all__ = ["FIRST_STAGE", "KEYWORDS", "TOKENS", "CollectionConfiguration", "QdrantCollection"]

TOKENS, FIRST_STAGE, KEYWORDS = "tokens", "first_stage", "keywords"
_FORMAT = 1
_MARK, _FIELD, _SETTING = "latelier", "field:", "setting:"


@dataclass(frozen=True)
class CollectionConfiguration:
    """The configuration of an index.

    Parameters
    ----------
    dtype
        Floating type of the token vectors.
    first_stage
        What makes one vector of a document.
    tokenizer
        How texts are cut into words; None without sparse vectors.
    average_length
        The average number of words of a text, for BM25; None until a text is written.
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

    Parameters
    ----------
    connection, name
        Where it is.
    defaults
        The configuration of a new collection.

    Raises
    ------
    IndexFormatError
        If there is a collection of this name that is not an index, or of a newer version. It is left as it is.
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

        Parameters
        ----------
        known
            Names that suffice: the metadata is not read again if it has them.
        """
        if known is None or not set(known) <= self._spellings().keys():
            self.read()
        return self._spellings()

    def settings(self) -> dict[str, str]:
        """Return the settings of users as JSON texts."""
        found = {key[len(_SETTING) :]: value for key, value in self.read().items() if key.startswith(_SETTING)}
        return dict(sorted(found.items()))

    def write_setting(self, name: str, value: str | None) -> None:
        """Write one setting as JSON text; None removes it."""
        self.create(None)
        self._merge({f"{_SETTING}{name}": value})

    def write_configuration(self, **changes: Any) -> None:
        """Change the configuration."""
        self.configuration = replace(self.configuration, **changes)
        self._merge({_MARK: self.configuration.encode()})

    def add_fields(self, names: Iterable[str]) -> None:
        """Make metadata keys known as fields, up to 500 in all."""
        new = {f"{_FIELD}{fold_name(name)}": name for name in new_fields(self._spellings().values(), names)}
        if new:
            self._merge(new)

    def create(self, dim: int | None) -> None:
        """Make the collection, and its vectors as soon as their dim is known.

        Parameters
        ----------
        dim
            Dimension of the token vectors; None if it is not known yet. An empty collection can change it.
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

    def _merge(self, changes: Mapping[str, str | None]) -> None:
        """Change some keys of the metadata; None removes a key."""
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
