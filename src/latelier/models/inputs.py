"""Checking the texts that users hand to a model: that they are texts, as many as needed, and how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import describe
from latelier.utils.reading import check_unicode

if TYPE_CHECKING:
    from latelier.models.checkpoint import Checkpoint

__all__ = ["check_lengths", "check_pairs", "check_texts", "checked_stream"]


def check_texts(texts: Any, name: str = "texts") -> None:
    """Refuse what is certainly no text, by its position; other modalities are sentence-transformers' to judge."""
    for i, text in enumerate([texts] if isinstance(texts, str) else texts):
        if text is None or isinstance(text, (int, float, bytes)):
            raise InvalidArgumentError(f"{name}[{i}] is {describe(text)}; expected str.")
        if isinstance(text, str):
            check_unicode(text, f"{name}[{i}]")


def checked_stream(texts: Any) -> Iterator[str]:
    """Yield texts as they come, up to the first that is none, which is refused by its position."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(
            f"received {describe(texts)} as texts to stream; expected an iterable of str, a list or a generator."
        )

    def check() -> Iterator[str]:
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidArgumentError(f"texts[{i}] is {describe(text)}; expected str.")
            check_unicode(text, f"texts[{i}]")
            yield text

    return check()


def check_pairs(queries: Sequence[str], documents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return both sides as lists of equal length."""
    left = [queries] if isinstance(queries, str) else list(queries)
    right = [documents] if isinstance(documents, str) else list(documents)
    if len(left) != len(right):
        raise InvalidArgumentError(f"received {len(left)} queries and {len(right)} documents; expected pairs.")
    return left, right


def check_lengths(model: Checkpoint, texts: str | Sequence[str], task: str) -> None:
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
