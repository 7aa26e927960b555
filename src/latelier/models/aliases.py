"""Argument names of other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from sentence_transformers.multi_vector_encoder.modules.token_pooling import BaseTokenPooling

from latelier.errors import InvalidArgumentError
from latelier.utils import check_choice, check_count, check_flag
from latelier.utils.checks import describe, short

# Arguments of other libraries, or of other methods, and what to give here instead.
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

# Options of sentence-transformers' `encode`, and the values with which they change nothing.
_ENCODE_DEFAULTS: dict[str, Any] = {
    "show_progress_bar": None,
    "output_value": "token_embeddings",
    "convert_to_numpy": False,
    "device": None,
    "normalize_embeddings": False,
    "pool": None,
    "chunk_size": None,
    "token_pooling": None,
}
# Those that our encoding loop supports; with any other, sentence-transformers encodes.
_LOOP_OPTIONS = {"show_progress_bar", "convert_to_numpy", "device", "pool", "chunk_size"}


def one_name(spellings: Mapping[str, Any], what: str) -> Any:
    """Return the value of an argument that has several names and must be given under exactly one; None: not given."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if not given:
        raise InvalidArgumentError(f"received no {what}.")
    if len(given) > 1:
        raise InvalidArgumentError(f"{' and '.join(given)} are names of one argument; give it once.")
    return next(iter(given.values()))


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's or a class's parameters."""
    return set(inspect.signature(function).parameters)


def check(method: str, given: Iterable[str], known: Iterable[str], function: Callable[..., Any] | None = None) -> None:
    """Raise an error for names in a method's ``**kwargs`` that it does not have.

    `function`: the method itself, so that the message suggests names from its signature too.
    """
    known = set(known)
    for name in given:
        if name in known:
            continue
        accepted = (known if function is None else known | parameters_of(function)) - {"kwargs"}
        if elsewhere := get_close_matches(name, _INSTEAD, 1, cutoff=0.9):
            hint = _INSTEAD[elsewhere[0]]
        elif close := get_close_matches(name, accepted, 1):
            hint = f"did you mean {close[0]!r}?"
        else:
            hint = f"it takes {', '.join(sorted(accepted))}."
        raise InvalidArgumentError(f"{method} has no argument {name!r}; {hint}")


def resolve_task(query_mode: bool | None, is_query: bool | None, task: str | None, default: Any = "query") -> Any:
    """Return ``"query"`` or ``"document"`` from its three spellings, or a default if none is given."""
    for name, flag in (("query_mode", query_mode), ("is_query", is_query)):
        if flag is not None:
            check_flag(name, flag)
    check_choice("task", task, ["query", "document"], optional=True)
    spelled = {flag for flag in (query_mode, is_query, None if task is None else task == "query") if flag is not None}
    if len(spelled) > 1:
        raise InvalidArgumentError(
            f"query_mode={query_mode}, is_query={is_query} and task={task!r} contradict each other; give one of them."
        )
    return default if not spelled else "query" if spelled.pop() else "document"


def resolve_truncation(truncate_dim: Any, default: int | None, embedding_size: int, raw: bool = False) -> int | None:
    """Return how many of the first numbers of each vector to keep, None for all; `raw` features are not truncated."""
    if truncate_dim is None:
        return default
    if raw:
        raise InvalidArgumentError(
            f"received truncate_dim={short(truncate_dim)} with output_value=None; features are returned unchanged."
        )
    return check_count("truncate_dim", truncate_dim, most=embedding_size)


def wants_arrays(convert_to_numpy: Any, convert_to_tensor: Any) -> bool:
    """Whether arrays are to be returned: tensors take precedence."""
    check_flag("convert_to_numpy", convert_to_numpy)
    check_flag("convert_to_tensor", convert_to_tensor)
    return bool(convert_to_numpy and not convert_to_tensor)


def check_prompt(prompt: Any) -> None:
    """Raise an error for a prompt that is neither a text nor None."""
    if prompt is not None and not isinstance(prompt, str):
        raise InvalidArgumentError(
            f"received {describe(prompt)} as prompt; give a str, '' for none, or None for the model's own."
        )


@contextmanager
def prompt_errors(prompt_name: Any, prompts: Mapping[str, Any]) -> Iterator[None]:
    """Turn the error for an unknown prompt name into one that lists the model's prompts."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"received prompt_name={short(prompt_name)}; this model has {', '.join(map(repr, prompts))}."
        ) from error


def changed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sentence-transformers' `encode` that change something."""
    for name in ("show_progress_bar", "normalize_embeddings"):
        if options[name] is not None:
            check_flag(name, options[name])
    check_count("chunk_size", options["chunk_size"], optional=True)
    pooling = options["token_pooling"]
    if pooling is not None and not isinstance(pooling, BaseTokenPooling):
        raise InvalidArgumentError(
            f"received {describe(pooling)} as token_pooling; give a module of sentence-transformers, such as "
            "HierarchicalTokenPooling(pool_factor=2), or pool_factor=2 instead."
        )
    unset = object()
    return {name: value for name, value in options.items() if value != _ENCODE_DEFAULTS.get(name, unset)}


def has_loop_options(options: Iterable[str]) -> bool:
    """Whether our encoding loop supports all these options."""
    return _LOOP_OPTIONS.issuperset(options)


def check_delegated_dtype(compute_dtype: str, options: Iterable[str], task: str) -> None:
    """Raise an error for half precision and int8 if sentence-transformers encodes: it takes the dtype of the weights.

    `options`: the chosen options, which the message names; `task`: ``"query"`` or ``"document"``.
    """
    if compute_dtype in ("bfloat16", "float16", "int8"):
        reason = ", ".join(sorted(set(options) - _LOOP_OPTIONS)) or f"a {task} of this model"
        raise InvalidArgumentError(
            f"received compute_dtype={compute_dtype!r} with {reason}: "
            "that is encoded by sentence-transformers, in the dtype of the model's weights."
        )
