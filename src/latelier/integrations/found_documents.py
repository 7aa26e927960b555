"""Searching for other packages, and what their documents carry of a `latelier.retrieve.Result`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.retrieve import Result, Retriever
from latelier.utils.checks import describe

__all__ = [
    "END_KEY",
    "ID_KEY",
    "SCORE_KEY",
    "START_KEY",
    "check_ids",
    "find_documents",
    "place_metadata",
    "result_text",
]

# Keys of their own, so that metadata such as {"id": ..., "score": ...} stays as it is stored.
ID_KEY, SCORE_KEY, START_KEY, END_KEY = "latelier_id", "latelier_score", "latelier_start", "latelier_end"
_KEYS = (ID_KEY, SCORE_KEY, START_KEY, END_KEY)


def find_documents(retriever: Retriever, query: str, **options: Any) -> Sequence[Result]:
    """Search for one query, whose documents are to have ids that differ as str.

    Parameters
    ----------
    retriever
        Searches.
    query
        One query: frameworks do not check that it is a text.
    **options
        Arguments of `latelier.retrieve.Retriever.search`.

    Raises
    ------
    InvalidArgumentError
        If the query is not a text, or as `check_ids` and `Retriever.search` do.

    Examples
    --------
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas."), ("b", "The moon.")])
    >>> [found] = find_documents(retriever, "fruit", k=1)
    >>> found.id
    'a'
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} as the query; expected one text.")
    results = retriever.search(query, **options)
    check_ids(results)
    return results


def place_metadata(result: Result) -> dict[str, Any]:
    """Return a document's metadata, with its exact id and the place of its passage.

    Parameters
    ----------
    result
        A hit.

    Returns
    -------
    dict
        The stored metadata; ``latelier_id``, an int or a str, while ids of other packages are str; and of a passage
        ``latelier_start`` and ``latelier_end``, in characters. Stored values of these keys and of ``latelier_score``
        are left out: they are of an earlier search, whose documents were indexed with all their metadata.

    Examples
    --------
    >>> place_metadata(Result(7, 1.5, "Bananas.", {"id": "x"}, 10, 18))
    {'id': 'x', 'latelier_id': 7, 'latelier_start': 10, 'latelier_end': 18}
    """
    place = {} if result.start is None else {START_KEY: result.start, END_KEY: result.end}
    stored = {key: value for key, value in result.metadata.items() if key not in _KEYS}
    return {**stored, ID_KEY: result.id, **place}


def result_text(result: Result) -> str:
    """Return the text of a document.

    Parameters
    ----------
    result
        A hit.

    Raises
    ------
    LatelierError
        If the index has no text of it.

    Examples
    --------
    >>> result_text(Result("a", 1.5, None, {}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.LatelierError: the document 'a' was stored without its text; ...
    """
    if result.text is None:
        raise LatelierError(
            f"the document {result.id!r} was stored without its text; store it with its text, as Retriever.update does."
        )
    return result.text


def check_ids(results: Sequence[Result]) -> None:
    """Check that the ids of documents differ as str, which is what other packages compare.

    Parameters
    ----------
    results
        The hits of one query.

    Raises
    ------
    InvalidArgumentError
        If there are, say, documents 7 and ``"7"``.

    Examples
    --------
    >>> results = [Result(id, 1.5, "Pears.", {}) for id in (7, "7")]
    >>> check_ids(results)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: the query finds documents with the ids 7 and '7', ...
    """
    seen: dict[str, Any] = {}
    for result in results:
        other = seen.setdefault(str(result.id), result.id)
        if other != result.id:
            raise InvalidArgumentError(
                f"the query finds documents with the ids {other!r} and {result.id!r}, which are one id here, where ids "
                "are str; use other ids."
            )
