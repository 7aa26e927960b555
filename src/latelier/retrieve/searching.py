"""Batches of searches and their options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError, LatelierError
from latelier.indexes import Hit, Index
from latelier.indexes.base import SearchOptions, check_texts
from latelier.retrieve.model import QueryModel, checked_queries
from latelier.retrieve.passages import StoredDocuments
from latelier.retrieve.results import Result, Results
from latelier.utils.checks import check_count, describe

__all__ = [
    "EncodedSearches",
    "Found",
    "Search",
    "Stage",
    "find_batch",
    "find_results",
    "find_run",
]


# Hits of each query of one search, or the error of this search.
Found: TypeAlias = "list[list[Hit]] | LatelierError"
# Called with the name of a stage; its context lasts as long as the stage.
Stage: TypeAlias = "Callable[[str], AbstractContextManager[Any]]"


class Search(NamedTuple):
    """Queries with the same options.

    `queries`: texts, checked; or matrices of token vectors, ``(tokens, dim)``. `k`: maximum number of documents per
    query. `options`: the keywords of `SearchOptions`.
    """

    queries: Sequence[Any]
    k: int
    options: Mapping[str, Any]

    @property
    def has_texts(self) -> bool:
        """Whether the queries are texts."""
        return isinstance(self.queries[0], str)

    @property
    def needs_encoding(self) -> bool:
        """Whether its texts are compared as vectors."""
        return self.has_texts and self.options.get("mode") != "keywords"


class EncodedSearches:
    """Some searches, checked, and the vectors of their texts; each text is encoded once.

    `model`: encodes the queries; may be None if no query is a text that is compared as vectors. `stage`: called with
    ``"encode"``, and by `find` with ``"search"``, for a context that measures this stage.
    """

    def __init__(
        self, model: QueryModel | None, index: Index, searches: Sequence[Search], stage: Stage = nullcontext
    ) -> None:
        self._searches = searches
        self._options = [_checked(index, search) for search in searches]
        texts = [text for i in self._sound() if searches[i].needs_encoding for text in searches[i].queries]
        self._rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        self._vectors: TokenEmbeddings | None = None
        if texts and model is not None:
            with stage("encode"):
                self._vectors = model.encode_queries(list(self._rows))

    def find(self, stored: StoredDocuments, stage: Stage = nullcontext) -> list[Found]:
        """Search an index; return for each search the hits of each query, or the error that the search raises alone.

        `stored`: the documents of the index. Of those stored as passages, a hit has the id of the best passage.
        `stage`: see above.
        """
        found: list[Found] = [each if isinstance(each, LatelierError) else [] for each in self._options]
        with stage("search"):
            for members in self._with_equal_options():
                options: Any = self._options[members[0]]
                hits = self._find_together(stored, [self._searches[i] for i in members], options)
                for i, each in zip(members, hits, strict=True):
                    found[i] = each
        return found

    def _sound(self) -> list[int]:
        """Return the positions of searches that have queries and no problem."""
        searches = enumerate(zip(self._searches, self._options, strict=True))
        return [i for i, (search, options) in searches if search.queries and isinstance(options, SearchOptions)]

    def _with_equal_options(self) -> Iterator[list[int]]:
        """Yield the positions of searches that one call of the index can answer."""
        groups: dict[Any, list[int]] = {}
        sound = self._sound()
        for i in sound:
            search = self._searches[i]
            # 1, 1.0 and True are equal, but may select other documents.
            key = repr((search.has_texts, search.k, self._options[i])) if len(sound) > 1 else ""
            groups.setdefault(key, []).append(i)
        yield from groups.values()

    def _find_together(
        self, stored: StoredDocuments, searches: Sequence[Search], options: SearchOptions
    ) -> list[Found]:
        """Return the hits of searches with equal options; a fault in the vectors of one is not that of another."""
        queries = [query for search in searches for query in search.queries]
        try:
            rows = iter(self._find(stored, searches[0]._replace(queries=queries), options))
        except EmbeddingsError as error:
            if len(searches) == 1:
                return [error]
            return [self._find_together(stored, [search], options)[0] for search in searches]
        except LatelierError as error:
            return [error] * len(searches)
        return [[next(rows) for _ in search.queries] for search in searches]

    def _find(self, stored: StoredDocuments, search: Search, options: SearchOptions) -> list[list[Hit]]:
        encoded = None
        if search.needs_encoding and self._vectors is not None:
            encoded = self._vectors[[self._rows[text] for text in search.queries]]

        def find(rows: Sequence[int], k: int) -> list[list[Hit]]:
            texts = search.queries if search.has_texts and options.mode != "vectors" else None
            queries: Any = None if encoded is None else encoded[rows]
            if not search.has_texts:
                queries = [search.queries[row] for row in rows]
            return stored.index.find(
                queries, k, check_texts(texts and [texts[row] for row in rows], options.mode), options
            )

        return stored.search(find, len(search.queries), search.k)


def find_batch(
    model: QueryModel | None, index: Index, searches: Sequence[Search], stage: Stage = nullcontext
) -> list[list[list[Result]] | LatelierError]:
    """Return the results of some searches, each with the texts and the metadata of its documents.

    All texts are encoded in one call, searches with equal options are one call of the index, and each document is read
    once, however many queries find it. `model`: encodes the queries; may be None if no query is a text that is compared
    as vectors. `stage`: called with ``"encode"``, ``"search"`` and ``"read"`` for a context that measures that stage.
    Returns: for each search, the results of each of its queries, best first; or the error that it raises alone.
    """
    encoded = EncodedSearches(model, index, searches, stage)
    with index.snapshot():  # no document is removed between the search and the reading of its text
        stored = StoredDocuments(index)
        found = encoded.find(stored, stage)
        with stage("read"):
            ids = dict.fromkeys(hit.id for hits in _each_query(found) for hit in hits)
            records = {record.id: record for record in index.get(list(ids))} if ids else {}
    return [
        hits
        if isinstance(hits, LatelierError)
        else [Results(stored.result(hit, records[hit.id]) for hit in row) for row in hits]
        for hits in found
    ]


def _each_query(found: Sequence[Found]) -> Iterator[list[Hit]]:
    for hits in found:
        if not isinstance(hits, LatelierError):
            yield from hits


def _checked(index: Index, search: Search) -> SearchOptions | LatelierError:
    """Return the options of a search, or what is wrong with it, before anything is encoded."""
    try:
        check_count("k", search.k)
        return index.checked_options(search.options)
    except LatelierError as error:
        return error


def find_run(
    model: QueryModel, index: Index, queries: Mapping[str, str], k: int, **options: Any
) -> dict[str, dict[str, float]]:
    """Encode queries, search an index for them, and return a run: see `Retriever.run`.

    `index`: the index to search; `queries`: query id to text; `k`: maximum number of documents per query; `**options`:
    arguments of the index's `search`, `mode` among them; returns: query id to document id (as str) to score.
    """
    if not isinstance(queries, Mapping):
        raise InvalidArgumentError(f"received {describe(queries)} as queries; expected a dict of id to text.")
    texts = checked_queries(queries.values())
    encoded = EncodedSearches(model, index, [Search(texts, k, options)])
    with index.snapshot():
        stored = StoredDocuments(index)
        (hits,) = encoded.find(stored)
    if isinstance(hits, LatelierError):
        raise hits
    return {
        query: _scores_by_id(Hit(stored.document(hit.id), hit.score) for hit in found)
        for query, found in zip(queries, hits, strict=True)
    }


def find_results(
    model: QueryModel | None, index: Index, queries: Sequence[str], k: int, **options: Any
) -> list[list[Result]]:
    """Encode queries, search an index for them, and return the hits with the texts and metadata of their documents.

    `model`: encodes the queries; may be None for ``mode="keywords"``. `index`, `k`, `**options`: as of `find_run`.
    Returns: one list per query, best first.
    """
    (found,) = find_batch(model, index, [Search(queries, k, options)])
    if isinstance(found, LatelierError):
        raise found
    return found


def _scores_by_id(hits: Iterable[Hit]) -> dict[str, float]:
    """Return the scores of documents by their ids as str."""
    scores: dict[str, float] = {}
    for hit in hits:
        if str(hit.id) in scores:
            raise InvalidArgumentError(
                f"a query finds a document with the id {str(hit.id)!r} and another with the same id as int; a run has "
                "ids that are str, so it cannot tell them apart. Use search, or other ids."
            )
        scores[str(hit.id)] = hit.score
    return scores
