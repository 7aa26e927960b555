"""Searches that wait together, answered together: each gets what it gets alone, or the error that it raises.

All texts are encoded in one call, and searches with equal options are one call of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latelier.errors import EmbeddingsError, LatelierError
from latelier.indexes import Index
from latelier.indexes.options import SearchOptions, check_texts
from latelier.indexes.packing import prepare_queries
from latelier.retrieve import Results, Retriever
from latelier.retrieve.queries import EncodedQueries, Found, Query, find
from latelier.retrieve.results import read_results
from latelier.utils.checks import check_count

Stage: TypeAlias = Callable[[str], AbstractContextManager[None]]


class Search(NamedTuple):
    """One of several searches: texts, checked, or matrices ``(tokens, dim)``, and the options of `Retriever.search`."""

    queries: Sequence[str] | Sequence[np.ndarray]
    k: int
    options: Mapping[str, Any]

    @property
    def texts(self) -> list[str]:
        """The texts; empty for matrices."""
        return [query for query in self.queries if isinstance(query, str)]


@dataclass
class _Asked:
    """A search with its options checked, and its queries as they were read and its hits, once they are found."""

    place: int  # among the searches
    search: Search
    options: SearchOptions
    asked: list[Query] | None = None
    hits: list[list[Found]] | None = None

    @property
    def needs_encoding(self) -> bool:
        """Whether the model encodes its queries."""
        return bool(self.search.texts) and self.options.mode != "keywords"

    @property
    def needs_means(self) -> bool:
        """Whether its hits have mean scores."""
        return self.options.min_mean_score is not None

    @property
    def likeness(self) -> str:
        """Equal for searches that are one call of the index; a text, as 1, 1.0 and True may select other documents."""
        return repr((bool(self.search.texts), self.search.k, self.options))


def search_batch(
    retriever: Retriever, searches: Sequence[Search], stage: Stage = lambda name: nullcontext()
) -> list[list[Results] | LatelierError]:
    """Return the results of searches with different options.

    `stage` is called with ``"encode"``, ``"search"`` and ``"read"``, for a context that measures that stage.
    """
    answers: list[list[Results] | LatelierError] = [[] for _ in searches]
    groups: dict[str, list[_Asked]] = {}
    for place, search in enumerate(searches):
        try:
            options = _checked(retriever, search)
            asked = _Asked(place, search, options)
        except LatelierError as error:
            answers[place] = error
            continue
        if search.queries:
            groups.setdefault(asked.likeness, []).append(asked)
    encoded = _encode(retriever, [asked for group in groups.values() for asked in group], stage)
    with retriever.index.snapshot():
        with stage("search"):
            for group in groups.values():
                for asked, failed in zip(group, _find(retriever.index, group, encoded), strict=True):
                    if failed is not None:
                        answers[asked.place] = failed
        found = [asked for group in groups.values() for asked in group if asked.hits is not None]
        with stage("read"):
            asked_queries = [query for asked in found for query in asked.asked or ()]
            rows = [row for asked in found for row in asked.hits or ()]
            source = retriever.source(with_model=any(query.vectors is not None for query in asked_queries))
            results = iter(read_results(source, asked_queries, rows))
    for asked in found:
        own = list(islice(results, len(asked.search.queries)))
        answers[asked.place] = own
        for each in own:
            each.mode = asked.options.mode
        if asked.needs_encoding and not asked.options.whole_query:
            unread = retriever.query_model.unread(asked.search.texts, "query")
            for each, tokens in zip(own, unread, strict=True):
                each.unread = tokens
    return answers


def _checked(retriever: Retriever, search: Search) -> SearchOptions:
    check_count("k", search.k)
    options = retriever.index.checked_options(search.options, is_text=bool(search.texts))
    check_texts(search.texts or None, options.mode)
    if options.whole_query and options.mode != "keywords":
        for text in search.texts:
            retriever.query_model.reading(text, whole=True)
    return options


class _Encoded(NamedTuple):
    """Texts that are encoded, and the row of each, and of whether it is read whole."""

    rows: dict[tuple[bool, str], int]
    queries: EncodedQueries


def _encode(retriever: Retriever, searches: Sequence[_Asked], stage: Stage) -> _Encoded:
    texts: dict[bool, set[str]] = {}  # by whether they are read whole
    with_own = False
    for asked in searches:
        if asked.needs_encoding:
            texts.setdefault(asked.options.whole_query, set()).update(asked.search.texts)
            with_own |= asked.needs_means
    rows: dict[tuple[bool, str], int] = {}
    parts: list[EncodedQueries] = []
    if texts:
        with stage("encode"):
            for whole in sorted(texts):
                part = retriever.query_model.encode_for_search(sorted(texts[whole]), whole=whole, with_own=with_own)
                rows |= {(whole, text): len(rows) + i for i, text in enumerate(part.texts)}
                parts.append(part)
    return _Encoded(rows, EncodedQueries.concatenate(parts))


def _find(index: Index, group: Sequence[_Asked], encoded: _Encoded) -> list[LatelierError | None]:
    """Find the hits of searches with equal options; a fault in the vectors of one is not that of another."""
    options = group[0].options
    try:
        queries = _queries(index, group, encoded)
        hits = iter(find(index, queries, group[0].search.k, options))
        known = iter([queries.query(row, is_whole=options.whole_query) for row in range(len(queries))])
        for asked in group:
            asked.asked = list(islice(known, len(asked.search.queries)))
            asked.hits = list(islice(hits, len(asked.search.queries)))
    except EmbeddingsError as error:
        if len(group) == 1:
            return [error]
        return [_find(index, [asked], encoded)[0] for asked in group]
    except LatelierError as error:
        return [error for _ in group]
    return [None for _ in group]


def _queries(index: Index, group: Sequence[_Asked], encoded: _Encoded) -> EncodedQueries:
    options = group[0].options
    texts = [text for asked in group for text in asked.search.texts]
    if options.mode == "keywords":
        return EncodedQueries(texts)
    if texts:
        whole = options.whole_query
        queries = encoded.queries.rows([encoded.rows[whole, text] for text in texts])
        own = queries.own
    else:
        matrices = [matrix for asked in group for matrix in asked.search.queries]
        queries = EncodedQueries([], prepare_queries(matrices, index.dim))
        own = queries.vectors
    return EncodedQueries(texts, queries.vectors, own if group[0].needs_means else None)
