"""Checking what users hand to a model: which side the texts are, that they are texts, and how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latelier.errors import InvalidArgumentError

if TYPE_CHECKING:
    from latelier.models.encoder import Encoder

__all__ = ["check_batch_size", "check_lengths", "check_pairs", "check_texts", "checked_stream", "resolve_task"]


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


def check_texts(texts: Any) -> None:
    """Refuse what is certainly no text, by its position; other modalities are sentence-transformers' to judge."""
    for i, text in enumerate([texts] if isinstance(texts, str) else texts):
        if text is None or isinstance(text, (int, float, bytes)):
            raise InvalidArgumentError(f"texts[{i}] is {text!r}, a {type(text).__name__}; expected str.")


def check_batch_size(batch_size: Any) -> None:
    """Refuse what is not a number of texts."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise InvalidArgumentError(f"received batch_size={batch_size!r}; expected an integer of at least 1.")


def checked_stream(texts: Any) -> Iterator[str]:
    """Yield texts as they come, up to the first that is none, which is refused by its position."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(
            f"received {texts!r:.80} as texts to stream; expected an iterable of str, a list or a generator for one."
        )

    def check() -> Iterator[str]:
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidArgumentError(f"texts[{i}] is {text!r:.80}, a {type(text).__name__}; expected str.")
            yield text

    return check()


def check_pairs(queries: Sequence[str], documents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return both sides as lists of equal length."""
    left = [queries] if isinstance(queries, str) else list(queries)
    right = [documents] if isinstance(documents, str) else list(documents)
    if len(left) != len(right):
        raise InvalidArgumentError(f"received {len(left)} queries and {len(right)} documents; expected pairs.")
    return left, right


def check_lengths(model: Encoder, texts: str | Sequence[str], task: str) -> None:
    """Refuse the first text that would be cut, rather than cut it."""
    cap = model.max_length_query if task == "query" else model.max_length_document
    prompt = model.prompts.get(task) or ""
    for i, text in enumerate([texts] if isinstance(texts, str) else texts):
        length = len(model.tokenizer(prompt + text, truncation=False, verbose=False)["input_ids"])
        if length > cap:
            raise InvalidArgumentError(
                f"texts[{i}] has {length} tokens, but a {task} is cut at {cap}; shorten it, raise max_length_{task}, "
                "or pass truncation=True."
            )
