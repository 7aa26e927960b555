"""Qdrant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError, LatelierError
from latelier.indexes.base import Index, Parameters, PathLike, SearchOptions, Tokenizer
from latelier.indexes.filters.sql import read_filter
from latelier.indexes.hybrid import check_queries
from latelier.indexes.qdrant.collection import (
    KEYWORDS,
    TOKENS,
    CollectionConfiguration,
    CollectionSettings,
    QdrantCollection,
    QdrantConnection,
    check_place,
)
from latelier.indexes.qdrant.fields import field_path
from latelier.indexes.qdrant.points import (
    Points,
    as_record,
    average_length,
    check_payload,
    checksum,
    count_words,
    point_id,
    write_documents,
)
from latelier.indexes.qdrant.search import CollectionSearch, choose_candidates, lost_candidate
from latelier.indexes.results import Damage, Hit, Id, IndexStatistics, Record, StageLoss, VerifyReport
from latelier.indexes.single_vectors import MeanVectors, SingleVectors
from latelier.indexes.store.connections import as_folder
from latelier.indexes.store.keywords import check_compaction, check_expected, check_options
from latelier.indexes.values import as_id, as_ids, as_prefixes, check_known, is_single_id
from latelier.utils.checks import check_choice, check_count, describe
from latelier.utils.misc import progress_bar

if TYPE_CHECKING:
    from qdrant_client import models

__all__ = ["Qdrant", "drop_sparse_vectors", "index_fields", "make_sparse_vectors", "statistics", "verify_points"]

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


_DTYPES = ("float32", "float16")


class Qdrant(Index):
    """An index in a collection of Qdrant (extra ``qdrant``).

    Qdrant finds candidates by one vector per document and scores their token vectors by MaxSim, in one request. What
    it cannot promise, such as writes of several requests that others see at once, is listed in docs/qdrant.md.

    Parameters
    ----------
    path
        Folder of Qdrant's local mode, or ``":memory:"``; without `path` and `url`, the local mode in memory. It is a
        simulation of the server in Python, for tests and small collections. It stores pickles: open only folders that
        you trust.
    url
        URL of a server (1.19 or later; 1.20 for some filters), such as ``"http://localhost:6333"``.
    api_key
        Key of the server.
    collection
        Name of the collection, made by the first write.
    dtype
        ``"float32"`` (the default) or ``"float16"``: how the token vectors are stored.
    first_stage
        What makes the one vector of a document that finds candidates; by default `MeanVectors`.
    keywords, tokenizer
        Whether texts get sparse vectors, and how they are cut into words; see `Flat`.
    prefer_grpc
        Send requests by gRPC, which is faster than HTTP for vectors; the server's port 6334 must be open.
    timeout
        Seconds that a request may take.

    Raises
    ------
    IndexFormatError
        If the collection is not an index of latelier, or the folder holds something else; it is left as it is.
    InvalidArgumentError
        If the collection has another dtype, first stage or tokenizer than given.
    MissingExtraError
        If qdrant-client is not installed.
    StorageError
        If no server answers, it refuses the key, or another process uses the folder.

    Examples
    --------
    >>> import numpy as np
    >>> from latelier import indexes
    >>> index = indexes.Qdrant()
    >>> index.add(
    ...     ["a", "b"],
    ...     [np.eye(2), np.ones((1, 2))],
    ...     metadata=[{"year": 2019}, {"year": 2024}],
    ... )
    >>> index.search(np.array([[1.0, 0.0], [1.0, 1.0]]), k=1)
    [[Hit(id='b', score=3.0)]]
    >>> index.search(np.array([[1.0, 0.0]]), filter="year < 2020")
    [[Hit(id='a', score=1.0)]]
    """

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        collection: str = "latelier",
        dtype: Literal["float32", "float16"] | None = None,
        first_stage: SingleVectors | None = None,
        keywords: bool | None = None,
        tokenizer: Tokenizer | None = None,
        prefer_grpc: bool = False,
        timeout: int = 60,
    ) -> None:
        self.path = None if path is None or path == ":memory:" else as_folder(path)
        check_place(path, url, api_key, collection)
        check_choice("dtype", dtype, _DTYPES, optional=True)
        if first_stage is not None and not isinstance(first_stage, SingleVectors):
            raise InvalidArgumentError(
                f"received first_stage={describe(first_stage)}; give indexes.MeanVectors() or another SingleVectors."
            )
        given = check_options(keywords, tokenizer)
        seconds = check_count("timeout", timeout)
        self._connection = QdrantConnection(
            self.path, url=url, api_key=api_key, prefer_grpc=prefer_grpc, timeout=seconds
        )
        try:
            defaults = CollectionConfiguration(dtype or "float32", first_stage or MeanVectors(), given)
            self._collection = QdrantCollection(self._connection, collection, defaults)
            self._check_configuration(dtype, first_stage, keywords, tokenizer)
        except BaseException:
            self._connection.close()
            raise
        self._points = Points(self._collection)

    @property
    def dtype(self) -> str:
        """Floating type of the stored token vectors."""
        return self._collection.configuration.dtype

    @property
    def first_stage(self) -> SingleVectors:
        """What makes the one vector of a document that finds candidates."""
        return self._collection.configuration.first_stage

    @property
    def tokenizer(self) -> str | None:
        """How texts are cut into words; None if they have no sparse vectors."""
        return self._collection.configuration.tokenizer

    @property
    def exists(self) -> bool:
        """Whether the collection existed when the index last looked; the first write or setting makes it."""
        return self._collection.exists

    @property
    def dim(self) -> int | None:
        """See `Index.dim`."""
        return self._collection.dim if self._points.count() else None

    @property
    def fields(self) -> list[str]:
        """See `Index.fields`."""
        return sorted(self._collection.fields().values())

    @property
    def settings(self) -> CollectionSettings:
        """See `Index.settings`."""
        return CollectionSettings(self._collection)

    def remove(self, ids: Id | Iterable[Id] = (), *, prefixes: Iterable[str] = ()) -> None:
        """See `Index.remove`."""
        known, begins = as_ids(ids), as_prefixes(prefixes)
        check_known(known, self._points.find(known))
        prefixed = [id for prefix in begins for id in self._points.ids(prefix)]
        self._points.delete(dict.fromkeys([*known, *prefixed]))

    search_options = ("effort", "candidates")

    def find(self, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[Hit]]:
        """See `Index.find`.

        BM25 differs from that of other indexes in its idf: see docs/qdrant.md. Filters: see
        `latelier.indexes.qdrant.filters`; a timeout holds for each request, and not for the local mode.
        """
        wanted = choose_candidates(k, options.effort, options.candidates)
        vectors = self._check_queries(queries, texts, options.mode)
        if options.mode != "vectors":
            self._check_keywords()
        nothing: list[list[Hit]] = [[] for _ in (texts if vectors is None else vectors)]
        filter = options.filter
        if not nothing or self._collection.dim is None:
            if filter is not None:
                read_filter(filter, options.parameters)
            return nothing
        condition = True if filter is None else self._condition(filter, options.parameters)
        if condition is False:
            return nothing
        seconds = options.filter_timeout
        search = CollectionSearch(
            self._collection,
            None if condition is True else condition,
            wanted,
            None if filter is None or seconds is None else math.ceil(seconds),
            None if filter is None else str(filter),
        )
        found = search.hits(vectors, k, texts, options)
        if options.mode != "vectors" and not any(found):
            self._check_texts()
        return found

    def find_loss(self, query: Any, id: Id, k: int, options: SearchOptions) -> StageLoss | None:
        """See `Index.find_loss`."""
        return lost_candidate(len(self), choose_candidates(k, options.effort, options.candidates))

    def get(self, ids: Id | Iterable[Id]) -> Record | list[Record]:
        """See `Index.get`."""
        known = as_ids(ids)
        found = self._points.find(known, ["id", "text", "metadata"])
        check_known(known, found)
        records = [as_record(found[id]) for id in known]
        return records[0] if is_single_id(ids) else records

    def get_embeddings(self, ids: Id | Iterable[Id]) -> TokenEmbeddings:
        """See `Index.get_embeddings`."""
        known = as_ids(ids)
        if not known:
            self._points.count()  # raises if the index is closed
            return TokenEmbeddings.from_list([], dim=self._collection.dim).to(self.dtype)
        found = self._points.vectors(known)
        check_known(known, found)
        return TokenEmbeddings.from_list([found[id] for id in known]).to(self.dtype)

    def ids(self, prefix: str | None = None) -> list[Id]:
        """See `Index.ids`."""
        return self._points.ids(None if prefix is None else as_prefixes([prefix])[0])

    def index_fields(self, names: Iterable[str]) -> None:
        """Make payload indexes of metadata keys, so that the server evaluates filters of them without reading payloads.

        Servers in strict mode reject filters of keys without one. The local mode has none.

        Parameters
        ----------
        names
            Keys of the metadata.
        """
        index_fields(self._collection, names)

    def compact(
        self, *, keywords: bool | None = None, tokenizer: Tokenizer | None = None, show_progress: bool = False
    ) -> None:
        """Make or drop the sparse vectors of all texts; see `Index.compact`. Qdrant frees space by itself.

        ``keywords=True`` also takes the average length of the texts again, which BM25 needs.
        """
        check_compaction(keywords, tokenizer)
        chosen = check_options(keywords, tokenizer or self.tokenizer if keywords else None)
        total = self._points.count()
        with progress_bar(shown=show_progress, total=total, unit=" documents") as progress:
            if keywords and chosen is not None:
                make_sparse_vectors(self._points, self._collection, chosen, progress.update)
            elif keywords is False:
                drop_sparse_vectors(self._collection)

    def verify(self) -> VerifyReport:
        """Read every point and compare its id, text, metadata and token vectors with the checksum in its payload.

        Returns
        -------
        VerifyReport
            The damaged points, each counted as a file, and the ids of their documents.
        """
        return verify_points(self._points)

    def statistics(self) -> IndexStatistics:
        """Return how much the index holds; the number of tokens of every point is read.

        Returns
        -------
        IndexStatistics
            Its ``bytes`` are those of the collection in the folder of the local mode; None for a server, which does
            not tell.
        """
        return statistics(self._points, self._collection)

    def close(self) -> None:
        """See `Index.close`."""
        self._connection.close()

    def __len__(self) -> int:
        return self._points.count()

    def __contains__(self, id: object) -> bool:
        try:
            known = as_id(id)
        except InvalidArgumentError:
            return False
        return known in self._points.find([known])

    def __repr__(self) -> str:
        where = f"{self._collection.name!r} in {self._connection.place}"
        if self._connection.closed:
            return f"Qdrant(closed, {where})"
        try:
            documents = self._points.count()
        except LatelierError:
            return f"Qdrant(not reachable, {where})"
        dim = f"dim={self._collection.dim}, {self.dtype}, " if documents else ""
        return f"Qdrant({documents:,} documents, {dim}{self.first_stage}, {where})"

    # Implementation.

    def _write(
        self, given: tuple[Any, Any, Any, Any], *, replace: bool, prefixes: Sequence[str], show_progress: bool
    ) -> None:
        write_documents(
            self._points, self._collection, given, replace=replace, prefixes=prefixes, show_progress=show_progress
        )

    def _check_queries(self, queries: Any, texts: list[str], mode: str) -> TokenEmbeddings | None:
        try:
            return check_queries(queries, self._collection.dim, texts, mode)
        except EmbeddingsError:
            self._collection.read()  # others may have changed the dim
            return check_queries(queries, self.dim, texts, mode)  # None if it is empty: any dim is allowed

    def _condition(self, filter: str | Sequence[str], parameters: Parameters) -> models.Filter | bool:
        """Return the condition of a filter, as a Qdrant filter, or True or False."""
        from latelier.indexes.filters.parse import RESERVED
        from latelier.indexes.qdrant.filters import translate

        parsed, values = read_filter(filter, parameters)
        names = set(parsed.fields).difference(RESERVED)
        fields = self._collection.fields(names)
        if not names <= fields.keys() and not self._points.count():
            return False
        return translate(parsed, values, fields)

    def _check_keywords(self) -> None:
        if self.tokenizer is None:
            raise LatelierError(
                "this index has no sparse vectors of its texts: compact(keywords=True) makes them, or search with "
                "mode='vectors'."
            )

    def _check_texts(self) -> None:
        """Raise an error if no document has a text."""
        from qdrant_client import models

        no_text = models.IsEmptyCondition(is_empty=models.PayloadField(key="text"))
        if self._points.count() and not self._points.count(models.Filter(must_not=[no_text])):
            raise LatelierError(
                "no document of this index has a text to search for words in; add documents with texts=..., or search "
                "with mode='vectors'."
            )

    def _check_configuration(
        self, dtype: str | None, first_stage: SingleVectors | None, keywords: bool | None, tokenizer: str | None
    ) -> None:
        """Raise an error if an existing collection is not what a user expects."""
        stored = self._collection.configuration
        for name, given, found in (("dtype", dtype, stored.dtype), ("first_stage", first_stage, stored.first_stage)):
            if given not in (None, found):
                raise InvalidArgumentError(
                    f"received {name}={given!r}, but the collection {self._collection.name!r} has {found!r}, which "
                    f"cannot be changed; leave {name} out, or choose another collection."
                )
        if keywords is not None or tokenizer is not None:
            check_expected(f"the collection {self._collection.name!r}", stored.tokenizer, keywords, tokenizer)
