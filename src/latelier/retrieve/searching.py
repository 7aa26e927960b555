"""Searching an index by text, with the options of `Retriever.search`: results, and runs for an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Hit, Index
from latelier.retrieve.queries import checked_queries
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.results import Result
from latelier.retrieve.search_batch import EncodedSearches, Search, find_batch
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.utils.checks import describe

__all__ = ["find_results", "find_run"]


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
