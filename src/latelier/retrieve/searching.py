"""Searching an index by text: queries checked and encoded, options checked, and hits joined with their documents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.indexes import Hit, Index
from latelier.retrieve.queries import checked_queries
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.results import Result, Results
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.utils.checks import check_count
from latelier.utils.describing import describe, short

__all__ = ["check_index_options", "find_results", "find_run"]


def check_index_options(index: Index, options: Mapping[str, Any]) -> None:
    """Check that the search of an index has some options, which every index names for itself.

    Parameters
    ----------
    index
        The index to search.
    options
        Further options of its `search`, such as ``effort`` of `latelier.indexes.IVF`.

    Raises
    ------
    InvalidArgumentError
        If the index has no option of such a name; the message names those that it has.

    Examples
    --------
    >>> from latelier import indexes
    >>> check_index_options(indexes.IVF(), {"effort": 2.0})
    >>> check_index_options(indexes.Flat(), {"effort": 2.0})
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: a search of Flat has no option 'effort'; it has none of its own.
    """
    known = _parameters(type(index).search) - _parameters(Index.search)
    for name in options:
        if name not in known:
            named = f"its own are {', '.join(sorted(known))}" if known else "it has none of its own"
            raise InvalidArgumentError(f"a search of {type(index).__name__} has no option {short(name)}; {named}.")


def find_run(
    model: QueryModel, index: Index, queries: Mapping[str, str], k: int, **options: Any
) -> dict[str, dict[str, float]]:
    """Encode queries, search an index for them, and return a run: see `Retriever.run`.

    Parameters
    ----------
    model
        Encodes the queries.
    index
        The index to search.
    queries
        Query id to text.
    k
        Maximum number of documents per query.
    **options
        Arguments of the index's `search`, `mode` among them.

    Returns
    -------
    dict
        Query id to document id (as str) to score.

    Raises
    ------
    InvalidArgumentError
        If an argument is not accepted, or a query finds two documents whose ids are the same as str.
    """
    if not isinstance(queries, Mapping):
        raise InvalidArgumentError(f"received {describe(queries)} as queries; expected a dict of id to text.")
    texts = checked_queries(queries.values())
    given = _given_queries(model, index, texts, k, options)
    if not texts:
        return {}
    with index.snapshot():
        stored = StoredDocuments(index)
        hits = stored.search(lambda rows, most: _search(index, given, rows, most, options), len(texts), k)
    return {
        query: _scores_by_id(Hit(stored.document(hit.id), hit.score) for hit in found)
        for query, found in zip(queries, hits, strict=True)
    }


def find_results(
    model: QueryModel | None, index: Index, queries: Sequence[str], k: int, **options: Any
) -> list[list[Result]]:
    """Encode queries, search an index for them, and return the hits with the texts and metadata of their documents.

    Parameters
    ----------
    model
        Encodes the queries; may be None for ``mode="keywords"``.
    index, k, **options
        As of `find_run`.
    queries
        Texts, checked.

    Returns
    -------
    list of list of Result
        One list per query, best first.
    """
    given = _given_queries(model, index, queries, k, options)
    if not queries:
        return []
    with index.snapshot():  # no document is removed between the search and the reading of its text
        stored = StoredDocuments(index)
        hits = stored.search(lambda rows, most: _search(index, given, rows, most, options), len(queries), k)
        ids = list(dict.fromkeys(hit.id for found in hits for hit in found))
        records = {record.id: record for record in index.get(ids)}
    return [Results(stored.result(hit, records[hit.id]) for hit in found) for found in hits]


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


def _given_queries(
    model: QueryModel | None, index: Index, queries: Sequence[str], k: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Check the arguments of a search; return the vectors and texts of its queries that its mode needs."""
    check_count("k", k)
    check_index_options(
        index, {name: value for name, value in options.items() if name not in _parameters(Index.search)}
    )
    mode = options["mode"]
    needs_vectors = bool(queries) and mode != "keywords"
    vectors = {"queries": model.encode_queries(queries)} if needs_vectors and model is not None else {}
    return vectors if mode == "vectors" else {**vectors, "texts": list(queries)}


def _search(
    index: Index, given: Mapping[str, Any], rows: Sequence[int], k: int, options: Mapping[str, Any]
) -> list[list[Hit]]:
    """Search for some of the queries, given by position."""
    texts: dict[str, Any] = {"texts": [given["texts"][row] for row in rows]} if "texts" in given else {}
    vectors: dict[str, Any] = {"queries": given["queries"][rows]} if "queries" in given else {}
    return index.search(k=k, **vectors, **texts, **options)


def _parameters(search: Callable[..., Any]) -> set[str]:
    """Return the names of the keyword-only parameters of an index's `search`."""
    parameters = inspect.signature(search).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
