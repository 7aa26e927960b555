"""Arguments under the names that people know from other libraries; a name that nobody knows is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from latelier.errors import InvalidArgumentError

__all__ = ["check_options", "one_name", "resolve_task"]

# Arguments of other libraries, or of other methods, that have no place here: what to do instead.
_INSTEAD = {
    "attend_to_expansion_tokens": "give recipe=Recipe(attend_to_expansion=...).",
    "bias": "heads are linear maps without one.",
    "do_query_expansion": "give recipe=Recipe(query_expansion=...).",
    "document_length": "give max_length_document=...",
    "document_prefix": "give recipe=Recipe(document_marker=...).",
    "is_query": 'say task="query" or task="document".',
    "pad": "features are padded to the longest text, and model(texts=...) pads to the length cap.",
    "padding": "encode(..., packed=True).pad() gives padded vectors and their mask.",
    "query_length": "give max_length_query=...",
    "query_mode": 'say task="query" or task="document".',
    "query_prefix": "give recipe=Recipe(query_marker=...).",
    "skiplist_words": "give recipe=Recipe(skiplist=...).",
    "tokenizer_kwargs": "give processor_kwargs=...",
    "use_auth_token": "give token=...",
}


def one_name(spellings: Mapping[str, Any], what: str) -> Any:
    """Return the value of an argument that has several names, given under at most one of them.

    Examples
    --------
    >>> one_name({"texts": None, "inputs": ["a"]}, "texts to encode, a str or a list of str")
    ['a']
    """
    given = {name: value for name, value in spellings.items() if value is not None}
    if not given:
        raise InvalidArgumentError(f"received no {what}.")
    if len(given) > 1:
        raise InvalidArgumentError(f"{' and '.join(given)} are names of one argument; give it once.")
    return next(iter(given.values()))


def check_options(method: str, given: Iterable[str], known: Iterable[str], named: Iterable[str] = ()) -> None:
    """Refuse keyword arguments that a method does not have, rather than ignore them.

    Parameters
    ----------
    method
        The method's name.
    given
        The further keyword arguments that it received.
    known
        Those of them that it takes.
    named
        The arguments in its signature, for a suggestion.
    """
    known = set(known)
    for name in given:
        if name in known:
            continue
        takes = {*named, *known} - {"kwargs"}
        if elsewhere := get_close_matches(name, _INSTEAD, 1, cutoff=0.9):
            hint = _INSTEAD[elsewhere[0]]
        elif close := get_close_matches(name, takes, 1):
            hint = f"did you mean {close[0]!r}?"
        else:
            hint = f"it takes {', '.join(sorted(takes))}."
        raise InvalidArgumentError(f"{method} has no argument {name!r}; {hint}")


def resolve_task(query_mode: bool | None, is_query: bool | None, task: str | None) -> str:
    """Return ``"query"`` or ``"document"`` from the three ways in which people say it; queries by default.

    Examples
    --------
    >>> resolve_task(None, False, None), resolve_task(None, None, None)
    ('document', 'query')
    """
    if task not in (None, "query", "document"):
        raise InvalidArgumentError(f"unknown task {task!r}; expected 'query' or 'document'.")
    said = {flag for flag in (query_mode, is_query, None if task is None else task == "query") if flag is not None}
    if len(said) > 1:
        raise InvalidArgumentError(
            f"query_mode={query_mode}, is_query={is_query} and task={task!r} contradict each other; give one of them."
        )
    return "document" if said == {False} else "query"
