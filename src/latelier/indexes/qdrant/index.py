"""`Qdrant`: an index whose documents are in a collection of Qdrant, which finds and scores them.

A search by vectors is one request: Qdrant prefetches candidates by their single vectors and scores their token vectors.
Fusion is done here, by the same functions as in other indexes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.base import NO_CHANGES, Index, PathLike, Ranges, check_ranges
from latelier.indexes.fields import RESERVED
from latelier.indexes.filters import read_filter
from latelier.indexes.options import VECTORS_PER_WORD, SearchOptions, Tokenizer, effort_factor
from latelier.indexes.packing import DocumentBatches, GivenDocuments, check_queries
from latelier.indexes.qdrant.collection import (
    DOCUMENT,
    FIRST_STAGE,
    KEYWORDS,
    PLACE,
    RANGE,
    TOKENS,
    CollectionConfiguration,
    CollectionSettings,
    PointPlace,
    Points,
    QdrantCollection,
    QdrantConnection,
    as_passages,
    check_payload,
    check_place,
    point_id,
    query_vector,
)
from latelier.indexes.qdrant.origins import QdrantOrigins
from latelier.indexes.ranking import Ranking, combine_sides
from latelier.indexes.results import (
    Cause,
    Damage,
    Hit,
    IndexStatistics,
    Record,
    StageLoss,
    VerifyReport,
    check_known,
    duplicate_ids,
    stored_cut,
)
from latelier.indexes.single_vectors import MeanVectors, SingleVectors
from latelier.indexes.store.folder import as_folder
from latelier.indexes.store.keywords import check_compaction, check_expected, check_options
from latelier.indexes.store.rows import DocumentBatch
from latelier.indexes.store.sources import Changes, unseen, unsettled
from latelier.indexes.words import document_terms
from latelier.utils.batching import lengths_to_offsets
from latelier.utils.checks import check_choice, check_count
from latelier.utils.misc import progress_bar
from latelier.utils.values import Id, as_ids, is_single_id

if TYPE_CHECKING:
    from qdrant_client import models


# Queries of one request.
_QUERIES = 32
# A request asks for one document more than k, to see whether the k-th score is tied; then for this many times as many.
_MORE = 4


class _Found(NamedTuple):
    """A document that a request has found, by the point of its best passage."""

    score: float
    sequence: int
    document: str
    id: Id
    start: int | None
    end: int | None
    vector_score: float | None = None

    @property
    def hit(self) -> Hit:
        """The document as searches return it."""
        hit = Hit(self.id, self.score, self.start, self.end)
        hit.vector_score = self.vector_score
        return hit


@dataclass
class CollectionSearch:
    """One search of a collection; MaxSim scores `candidates` documents for each query, None: all."""

    collection: QdrantCollection
    condition: models.Filter | None
    candidates: int | None
    timeout: int | None
    filter: str | None

    def hits(
        self, queries: TokenEmbeddings | None, k: int, texts: list[str], options: SearchOptions
    ) -> list[list[Hit]]:
        """Return the `k` best documents of each query; `queries` is None for the mode ``"keywords"``."""
        if queries is None:
            found = self._by_keywords(texts, k)
        elif options.mode == "vectors":
            found = self._by_vectors(queries, k)
        elif options.mode == "rerank":
            by_keywords = self._by_keywords(texts, options.depth_for(k))
            pairs = zip(queries, by_keywords, strict=True)
            found = self._run([self._maxsim_among(query, {each.document for each in own}) for query, own in pairs], k)
        else:
            found = self._fused(queries, k, texts, options)
        return [[each.hit for each in best] for best in found]

    def _by_vectors(self, queries: TokenEmbeddings, k: int) -> list[list[_Found]]:
        if self.candidates is None:
            return self._run([self._maxsim(query) for query in queries], k)
        singles = self.collection.configuration.first_stage.encode_queries(queries)
        candidates = [self._prefetch(single.tolist(), FIRST_STAGE, self.candidates) for single in singles]
        return self._run([self._maxsim(*pair) for pair in zip(queries, candidates, strict=True)], k)

    def _by_keywords(self, texts: list[str], k: int) -> list[list[_Found]]:
        vectors = self._words(texts)
        return self._run([None if words is None else self._request(words, KEYWORDS) for words in vectors], k)

    def _words(self, texts: list[str]) -> list[models.SparseVector | None]:
        tokenizer = self.collection.configuration.tokenizer or ""
        return [query_vector(text, tokenizer) for text in texts]

    def _fused(self, queries: TokenEmbeddings, k: int, texts: list[str], options: SearchOptions) -> list[list[_Found]]:
        depth = options.depth_for(k)
        by_keywords = self._by_keywords(texts, depth)
        most = VECTORS_PER_WORD * depth
        if self.candidates is not None:
            self.candidates = max(self.candidates, most)
        by_vectors = self._by_vectors(queries, most)
        self._add_missing(queries, by_vectors, by_keywords)
        fused = []
        for sides in zip(by_vectors, by_keywords, strict=True):
            # Of a document that both sides find, the passage is that of the vectors.
            every = {each.document: each for side in reversed(sides) for each in side}
            order = sorted(every.values(), key=lambda each: each[1:3])
            rows = {each.document: row for row, each in enumerate(order)}
            rankings = []
            for side in sides:
                own = np.array([rows[each.document] for each in side], dtype="int64")
                rankings.append(Ranking(own, np.array([each.score for each in side], dtype="float64"), own))
            best = combine_sides(options, rankings[0], rankings[1], k)
            pairs = zip(best.numbers.tolist(), best.scores.tolist(), strict=True)
            fused.append([order[row]._replace(score=score, vector_score=order[row].score) for row, score in pairs])
        return fused

    def _add_missing(
        self, queries: TokenEmbeddings, by_vectors: list[list[_Found]], by_keywords: list[list[_Found]]
    ) -> None:
        """Add the MaxSim scores of the documents that only keywords have found."""
        requests = []
        most = 1
        for query, vectors, words in zip(queries, by_vectors, by_keywords, strict=True):
            missing = {each.document for each in words} - {each.document for each in vectors}
            requests.append(self._maxsim_among(query, missing))
            most = max(most, len(missing))
        for vectors, scored in zip(by_vectors, self._run(requests, most), strict=True):
            vectors += scored

    # Requests.

    def _maxsim(self, query: Any, prefetch: models.Prefetch | None = None) -> models.QueryRequest:
        return self._request(query.tolist(), TOKENS, prefetch=prefetch)

    def _maxsim_among(self, query: Any, documents: set[str]) -> models.QueryRequest | None:
        """Return the request that scores some documents; None if there are none."""
        from qdrant_client import models

        if not documents:
            return None
        if self.collection.has_passages:
            own: Any = models.FieldCondition(key=DOCUMENT, match=models.MatchAny(any=sorted(documents)))
        else:
            own = models.HasIdCondition(has_id=list(sorted(documents)))
        return self._request(query.tolist(), TOKENS, condition=models.Filter(must=[own]))

    def _prefetch(self, query: Any, using: str, limit: int) -> models.Prefetch:
        from qdrant_client import models

        return models.Prefetch(query=query, using=using, limit=limit, filter=self.condition)

    def _request(self, query: Any, using: str, *, prefetch: Any = None, condition: Any = None) -> models.QueryRequest:
        from qdrant_client import models

        # The local mode is always exact, and warns of parameters.
        is_exact = using == TOKENS and prefetch is None and not self.collection.connection.is_local
        return models.QueryRequest(
            query=query,
            using=using,
            prefetch=prefetch,
            filter=condition or self.condition,
            params=models.SearchParams(exact=True) if is_exact else None,
            with_payload=[*PLACE, *RANGE],
        )

    def _run(self, requests: Sequence[models.QueryRequest | None], k: int) -> list[list[_Found]]:
        """Return the `k` best documents of each request, none of None; equal scores in the order of insertion."""
        found: list[list[_Found]] = [[] for _ in requests]
        waiting = [i for i, request in enumerate(requests) if request is not None]
        limit = k + 1
        while waiting:
            tied = []
            for first in range(0, len(waiting), _QUERIES):
                some = waiting[first : first + _QUERIES]
                batch = [requests[i].model_copy(update={"limit": limit}) for i in some]  # type: ignore[union-attr]
                for i, points in zip(some, self._answers(batch), strict=True):
                    # Which of several documents with the k-th score come back is up to Qdrant: ask for all of them.
                    if len(points) == limit and points[-1].score == points[k - 1].score:
                        tied.append(i)
                    else:
                        found[i] = sorted(map(_as_found, points), key=lambda each: (-each.score, each.sequence))[:k]
            waiting = tied
            limit = limit * _MORE
        return found

    def _answers(self, batch: list[models.QueryRequest]) -> list[list[Any]]:
        """Return the points of each request, of which each document has one, with its best passage."""
        name = self.collection.name
        with self.collection.connection.use(filter=self.filter) as client:
            if not self.collection.has_passages:
                return [answer.points for answer in client.query_batch_points(name, batch, timeout=self.timeout)]
            answers = []
            for request in batch:
                answer = client.query_points_groups(
                    name,
                    group_by=DOCUMENT,
                    group_size=1,
                    query=request.query,
                    using=request.using,
                    prefetch=request.prefetch,
                    query_filter=request.filter,
                    search_params=request.params,
                    limit=request.limit or 1,
                    with_payload=[*PLACE, *RANGE],
                    timeout=self.timeout,
                )
                answers.append([group.hits[0] for group in answer.groups])
            return answers


def _as_found(point: Any) -> _Found:
    payload = check_payload(point, PLACE)
    place = payload.get("start"), payload.get("end")
    return _Found(point.score, payload["sequence"], payload[DOCUMENT], payload["id"], *place)


_DTYPES = ("float32", "float16")
# A batch of documents in memory, in bytes, and the texts that are cut into words at a time.
_BATCH_BYTES = 64 << 20
_TEXTS = 1000
# Qdrant stores multi-vectors of fewer numbers only (MAX_MULTIVECTOR_FLATTENED_LEN).
_MOST_NUMBERS = 1 << 20
# Candidates of effort 1.0 for a search of k hits; benchmarks/first_stage.py measures the recall they give.
_CANDIDATES = 200
_CANDIDATES_PER_HIT = 10


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
        URL of a server (1.19 or later; 1.20 for some filters), such as ``"http://localhost:6333"``; default: no server.
    api_key
        Key of the server; default: none.
    collection
        Name of the collection, made by the first write.
    dtype
        ``"float32"`` (the default) or ``"float16"``: how the token vectors are stored.
    first_stage
        What makes the one vector of a document that finds candidates; by default `MeanVectors`.
    keywords, tokenizer
        Whether texts get sparse vectors, and how they are cut into words; see `Flat`, which has the same defaults.
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

    search_options = ("effort", "candidates")

    kind = "qdrant"

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
        if path is None or path == ":memory:":
            self.path = None
        else:
            self.path = as_folder(path)
        check_place(path, url, api_key, collection)
        check_choice("dtype", dtype, _DTYPES, optional=True)
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
        """See `Index.tokenizer`."""
        return self._collection.configuration.tokenizer

    def _holds_words(self) -> bool:
        """Whether a document has, or has had, a word: Qdrant would have to count the texts at each search."""
        if self.tokenizer is not None and self._collection.configuration.average_length is None:
            self._collection.read()  # others may have written the first word
        return self.tokenizer is not None and self._collection.configuration.average_length is not None

    @property
    def exists(self) -> bool:
        """Whether the collection existed when the index last looked; the first write or setting makes it."""
        return self._collection.exists

    @property
    def dim(self) -> int | None:
        """See `Index.dim`."""
        if self._points.count():
            return self._collection.dim
        return None

    @property
    def fields(self) -> list[str]:
        """See `Index.fields`."""
        return sorted(self._collection.fields().values())

    @property
    def settings(self) -> CollectionSettings:
        """See `Index.settings`."""
        return CollectionSettings(self._collection)

    def remove(self, ids: Id | Iterable[Id]) -> None:
        """See `Index.remove`."""
        known = as_ids(ids)
        check_known(known, self._points.find(known))
        self._points.delete(dict.fromkeys(known))

    def _find(self, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[Hit]]:
        """See `Index.find`; docs/qdrant.md says what differs: words, filters and timeouts."""
        vectors = self._check_queries(queries, texts, options.mode)
        if options.mode != "vectors" and self.tokenizer is None:
            raise LatelierError(
                "this index has no sparse vectors of its texts: compact(keywords=True) makes them, or search with "
                "mode='vectors'."
            )
        nothing: list[list[Hit]] = [[] for _ in (texts if vectors is None else vectors)]
        condition = None
        seconds = None
        if options.filter is not None:
            condition = self._condition(options)
            seconds = options.filter_timeout
        if not nothing or self._collection.dim is None or condition is False:
            return nothing
        search = CollectionSearch(
            self._collection,
            condition=None if condition is True else condition,
            candidates=_candidates(k, options),
            timeout=None if seconds is None else math.ceil(seconds),
            filter=None if options.filter is None else str(options.filter),
        )
        found = search.hits(vectors, k, texts, options)
        may_lack_texts = options.mode != "vectors" and not (any(found) and self._holds_words())
        if may_lack_texts and self._points.count() and not self._points.count_texts():
            raise LatelierError(
                "no document of this index has a text to search for words in; add documents with texts=..., or search "
                "with mode='vectors'."
            )
        return found

    def find_loss(self, query: Any, id: Id, k: int, options: SearchOptions) -> StageLoss | None:
        """See `Index.find_loss`."""
        wanted = _candidates(k, options)
        if wanted is None:
            return None
        text = f"{wanted:,} candidates were chosen by their single vectors, and this document is not among them"
        return StageLoss(Cause("not_candidate", text, {"candidates": wanted}), "candidates", wanted, len(self))

    def get(self, ids: Id | Iterable[Id]) -> Record | list[Record]:
        """See `Index.get`."""
        known = as_ids(ids)
        found = self._points.find(known, ["id", "text", "metadata", "passages"])
        check_known(known, found)
        records = []
        for each in (found[id] for id in known):
            records.append(Record(each["id"], each.get("text"), json.loads(each["metadata"]), as_passages(each)))
        if is_single_id(ids):
            return records[0]
        return records

    def get_embeddings(self, ids: Id | Iterable[Id], ranges: Ranges | None = None) -> TokenEmbeddings:
        """See `Index.get_embeddings`."""
        known = as_ids(ids)
        if not known:
            self._points.count()  # raises if the index is closed
            return TokenEmbeddings.from_list([], dim=self._collection.dim).to(self.dtype)
        passages = self._points.passages(known)
        check_known(known, passages)
        places = []
        for id, chosen in zip(known, check_ranges(ranges, len(known)) or [None] * len(known), strict=True):
            own = [passage[:2] for passage in passages[id]]
            if chosen is None:
                places += [PointPlace(id, position) for position in range(len(own) or 1)]
            elif chosen in own:
                places.append(PointPlace(id, own.index(chosen)))
            else:
                raise InvalidArgumentError(f"document {id!r} has no passage with the range {chosen}.")
        return TokenEmbeddings.from_list(self._points.vectors(places)).to(self.dtype)

    def existing(self, ids: Sequence[Id]) -> dict[Id, int]:
        """See `Index.existing`."""
        return {id: payload["sequence"] for id, payload in self._points.find(ids, ["sequence"]).items()}

    def ids(self) -> list[Id]:
        """See `Index.ids`."""
        return self._points.ids()

    def compact(
        self, *, keywords: bool | None = None, tokenizer: Tokenizer | None = None, show_progress: bool = False
    ) -> None:
        """Make or drop the sparse vectors of all texts; see `Index.compact`. Qdrant frees space by itself.

        ``keywords=True`` also takes the average length of the texts again, which BM25 needs.
        """
        check_compaction(keywords, tokenizer)
        self._points.count()  # raises if the index is closed
        if keywords is False:
            self._collection.write_configuration(tokenizer=None, average_length=None)
            self._points.drop_keywords()
        elif keywords:
            chosen = check_options(keywords, tokenizer or self.tokenizer) or ""
            words = texts = 0
            for some in self._points.texts(_TEXTS):
                words += _count([text for _, text in some], chosen)
                texts += len(some)
            average = max(1.0, words / texts) if words else None
            # Searches by keywords meanwhile compare old vectors with new ones.
            self._collection.write_configuration(tokenizer=chosen, average_length=average)
            self._points.drop_keywords()
            with progress_bar(shown=show_progress, total=texts, unit=" documents") as progress:
                for some in self._points.texts(_TEXTS):
                    self._points.write_keywords(some)
                    progress.update(len(some))

    def verify(self) -> VerifyReport:
        """Read every point, and report those that are not whole documents of this index.

        Returns
        -------
        VerifyReport
            The points that other programs have added or changed, each counted as a file.
        """
        damages = []
        count = 0
        for count, record in enumerate(self._points.scroll(True, vectors=True), start=1):  # noqa: B007 (the last one)
            payload = record.payload or {}
            is_whole = {"id", "metadata", "sequence", "tokens"} <= payload.keys()
            is_whole = is_whole and point_id(payload["id"], payload.get("position", 0)) == str(record.id)
            if not is_whole or len((record.vector or {}).get(TOKENS, ())) != payload["tokens"]:
                ids = (payload["id"],) if "id" in payload else ()
                damages.append(Damage(f"point {record.id}", "it is not a whole document of this index", ids))
        return VerifyReport(count, tuple(damages))

    def statistics(self) -> IndexStatistics:
        """See `Index.statistics`; the number of tokens of every point is read, and a server does not tell its bytes."""
        from qdrant_client import models

        payloads = [check_payload(record, ["tokens"]) for record in self._points.scroll(["tokens", "start"])]
        tokens = [payload["tokens"] for payload in payloads]
        no_metadata = models.FieldCondition(key="metadata", match=models.MatchValue(value="{}"))
        size = None
        if self._connection.is_local:
            # The folder of the local mode may hold other collections too.
            folder = self.path and self.path / "collection" / self._collection.name
            if folder:
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            else:
                size = 0
        return IndexStatistics(
            documents=self._points.count_documents(),
            tokens=sum(tokens),
            removed=0,
            bytes=size,
            has_texts=self._points.count_texts() > 0,
            has_metadata=self._points.count(models.Filter(must_not=[no_metadata])) > 0,
            cut=stored_cut(self.settings),
            passages=sum("start" in payload for payload in payloads),
        )

    def close(self) -> None:
        """See `Index.close`."""
        self._connection.close()

    def __len__(self) -> int:
        return self._points.count_documents()

    def __repr__(self) -> str:
        where = f"{self._collection.name!r} in {self._connection.place}"
        if self._connection.closed:
            return f"Qdrant(closed, {where})"
        try:
            documents = self._points.count_documents()
        except LatelierError:
            return f"Qdrant(not reachable, {where})"
        if documents:
            dim = f"dim={self._collection.dim}, {self.dtype}, "
        else:
            dim = ""
        return f"Qdrant({documents:,} documents, {dim}{self.first_stage}, {where})"

    # Implementation.

    @property
    def origins(self) -> QdrantOrigins:
        """See `Index.origins`."""
        return QdrantOrigins(self._collection, self._points)

    def _write(
        self, given: GivenDocuments, *, replace: bool | None, show_progress: bool, changes: Changes = NO_CHANGES
    ) -> list[int]:
        self._collection.read()  # others may have changed its dim or its tokenizer, or deleted it
        self.origins.write(unsettled(changes))
        left = self._store(given, replace=replace, show_progress=show_progress)
        if changes != NO_CHANGES:
            self._collection.create(None)
            self.origins.write(changes)
        return left

    def _store(self, given: GivenDocuments, *, replace: bool | None, show_progress: bool) -> list[int]:
        """Store documents; return the positions of those that were left out, see `Index.write`."""
        batches = DocumentBatches(given, dtype=self.dtype, batch_bytes=_BATCH_BYTES, show_progress=show_progress)
        seen: set[Id] = set()
        stored = sequence = count = 0
        left: list[int] = []
        try:
            for batch in batches.read(self.dim, lambda part, _: {"vectors": part.vectors}):
                if not stored:
                    self._collection.create(batch.dim)
                    self._set_average_length(batch)
                    # Numbers are never used again, not even those of removed documents, so the clock counts too.
                    sequence = max(self._points.last("sequence") + 1, time.time_ns() // 1000)
                if None in batch.documents.ids:
                    batch.documents.number(self._points.last("integer") + 1)
                if replace is None:
                    numbers = self.existing(batch.documents.ids)
                    own = unseen(batch.documents.ids, batch.documents.seen, numbers)
                    left += [count + i for i in own]
                    kept = [i for i in range(len(batch.documents)) if i not in {*own}]
                    count += len(batch.documents)
                    if not kept:
                        continue
                    batch = batch.select(kept)
                self._check_batch(batch, seen, replace)
                self._collection.add_fields(key for document in batch.documents for key in document.fields)
                if any(batch.documents.passages):
                    self._collection.add_passages()
                before = self._points.passages(batch.documents.ids) if self._collection.has_passages else {}
                for more in self._points.upsert(batch, sequence):
                    stored = stored + more
                sequence += len(batch.lengths)
                rows = dict(zip(batch.documents.ids, batch.documents.rows.tolist(), strict=True))
                self._points.delete_after({id: (rows[id], len(passages)) for id, passages in before.items()})
        except LatelierError as error:
            if not stored:
                raise
            raise StorageError(
                f"{error} The write has stored {stored:,} documents; repeat it with update(), which replaces them."
            ) from error
        return left

    def _check_batch(self, batch: DocumentBatch, seen: set[Id], replace: bool | None) -> None:
        longest = np.maximum.reduceat(batch.lengths, lengths_to_offsets(batch.documents.rows)[:-1])
        for document, length in zip(batch.documents, longest.tolist(), strict=True):
            if document.id in seen:
                raise duplicate_ids([document.id], "given twice in this call; give every document a different id")
            seen.add(document.id)
            if length * batch.dim >= _MOST_NUMBERS:
                raise EmbeddingsError(
                    f"document {document.id!r} has {length:,} tokens of dim {batch.dim}; Qdrant stores fewer than "
                    f"{_MOST_NUMBERS:,} numbers per document. Cut it into passages, or pool its tokens."
                )
        if replace is not False:
            present = {}
        else:
            present = self._points.find(document.id for document in batch.documents)
        if present:
            raise duplicate_ids(present, "in the index already", advice="update")

    def _set_average_length(self, batch: DocumentBatch) -> None:
        """Set the average length of texts that BM25 divides by, if it is not set yet and there are texts."""
        configuration = self._collection.configuration
        texts = [document.text for document in batch.documents if document.text is not None][: 10 * _TEXTS]
        if configuration.tokenizer is not None and configuration.average_length is None and texts:
            words = _count(texts, configuration.tokenizer)
            if words:
                self._collection.write_configuration(average_length=max(1.0, words / len(texts)))

    def _check_queries(self, queries: Any, texts: list[str], mode: str) -> TokenEmbeddings | None:
        try:
            return check_queries(queries, self._collection.dim, texts, mode)
        except EmbeddingsError:
            self._collection.read()  # others may have changed the dim
            return check_queries(queries, self.dim, texts, mode)  # None if it is empty: any dim is allowed

    def _condition(self, options: SearchOptions) -> Any:
        """Return the condition of a filter; True or False for all documents or none."""
        from latelier.indexes.qdrant.filters import translate  # needs the extra

        filter, values = read_filter(options.filter or "", options.parameters)
        names = set(filter.fields).difference(RESERVED)
        fields = self._collection.fields(names)
        is_empty = not names <= fields.keys() and not self._points.count()  # an empty index has no fields to name
        if is_empty:
            return False
        return translate(filter, values, fields)

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


def _candidates(k: int, options: SearchOptions) -> int | None:
    """Return the number of documents of which MaxSim finds the best `k`; None for all."""
    if options.candidates is None and options.effort == "exact":
        return None
    by_effort = int(max(_CANDIDATES, _CANDIDATES_PER_HIT * k) * effort_factor(options.effort))
    return max(k, options.candidates or by_effort)


def _count(texts: Sequence[str], tokenizer: str) -> int:
    """Return the number of words of some texts."""
    return sum(len(document_terms(text, tokenizer)) for text in texts)
