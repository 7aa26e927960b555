"""Token offsets, starts, the lock of a tokenizer.

The maximum length and the padding of a call are a state of the tokenizers of Hugging Face. Without a lock, a thread
that encodes a query would truncate another thread's documents to the length of queries.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from latelier.errors import InvalidArgumentError


def text_ranges(offsets: Iterable[tuple[int, int]], prompt: str, text: str) -> list[tuple[int, int] | None]:
    r"""Return the range of characters of a text that each token stands for.

    `offsets`: first character of each token and the one after its last, in ``prompt + text``, as tokenizers count them.
    Returns: first character and the one after the last, in `text`, without white space at the ends and with the
    combining marks that follow. None for tokens that stand for no character of the text: special tokens and those of
    the prompt.

    Examples
    --------
    >>> text_ranges([(0, 0), (0, 4), (3, 8)], "[D] ", " fig.")
    [None, None, (1, 4)]
    >>> text_ranges([(0, 4)], "", "cafe\u0301")
    [(0, 5)]
    """
    first = len(prompt)
    return [_range(max(start - first, 0), end - first, text) for start, end in offsets]


def _range(start: int, end: int, text: str) -> tuple[int, int] | None:
    """Return a range of a text, moved to what a reader sees as whole characters; None if it is empty."""
    if end <= start:
        return None
    words = text[start:end].strip()
    if words:  # a token of white space alone, such as a line end, keeps its range
        start += text[start:end].index(words)
        end = start + len(words)
    while end < len(text) and unicodedata.category(text[end]) in ("Mn", "Mc", "Me"):  # removed with the accents
        end += 1
    return start, end


_locks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

if hasattr(os, "register_at_fork"):
    # The thread that held a lock does not exist in a forked process.
    os.register_at_fork(after_in_child=_locks.clear)


def tokenizer_lock(tokenizer: Any) -> AbstractContextManager[Any]:
    """Return the lock of a tokenizer, to be held during a call.

    `tokenizer`: a tokenizer of transformers; None for a model without one, which needs no lock. Returns: entered by one
    thread at a time.
    """
    if tokenizer is None:
        return nullcontext()
    lock: AbstractContextManager[Any] = _locks.setdefault(tokenizer, RLock())
    return lock


# Returns the offsets (start, end) in characters of the tokens of each text, without special tokens.
Offsets: TypeAlias = Callable[[list[str]], "list[list[tuple[int, int]]]"]

# A tokenizer takes some hundred bytes per token: longer texts are tokenised piece by piece. In characters.
_PIECE = 1 << 17


def token_starts(offsets: Offsets, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the position of the first character of each token, ascending, one array per text.

    Texts of more than 131,072 characters are tokenised in pieces that end at white space, which limits the memory.
    `offsets`: tokenises texts, see `tokenizer_offsets`.
    """
    pieces = [_pieces(text) for text in texts]
    tokenized = iter(offsets([piece for each in pieces for _, piece in each]))
    starts = []
    for each in pieces:
        # Some tokens include the space before a word.
        parts = [
            np.array([a + piece[a : a + 1].isspace() for a, _ in next(tokenized)], dtype="int64") + first
            for first, piece in each
        ]
        # The tokens of one character, such as the bytes of an emoji, begin at the same position.
        starts.append(np.maximum.accumulate(np.concatenate(parts)))
    return starts


def tokenizer_offsets(tokenizer: Any) -> Offsets:
    """Return the function that `token_starts` needs of a tokenizer of transformers."""
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidArgumentError(
            f"the model's tokenizer is a {type(tokenizer).__name__}, which does not say where its tokens are in a "
            "text; a fast tokenizer of transformers does."
        )

    def offsets(texts: list[str]) -> list[list[tuple[int, int]]]:
        options = {"add_special_tokens": False, "truncation": False, "verbose": False, "return_attention_mask": False}
        with tokenizer_lock(tokenizer):
            encoded = tokenizer(texts, return_offsets_mapping=True, **options)
        found: list[list[tuple[int, int]]] = encoded["offset_mapping"]
        return found

    return offsets


def _pieces(text: str) -> list[tuple[int, str]]:
    """Cut a text at white space into pieces of a limited length; return them with their positions."""
    pieces, first = [], 0
    while len(text) - first > _PIECE:
        last = first + _PIECE
        # Up to a thousand characters back for white space; without any, the piece ends within a word.
        space = next((at for at in range(last, last - 1000, -1) if text[at].isspace()), last)
        pieces.append((first, text[first:space]))
        first = space
    return [*pieces, (first, text[first:])]
