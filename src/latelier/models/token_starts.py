"""Where the tokens of texts begin, by the tokenizer's offset mapping: for cutting texts by their number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.models.tokenizer_lock import tokenizer_lock

__all__ = ["Offsets", "token_starts", "tokenizer_offsets"]

# Returns the offsets (start, end) in characters of the tokens of each text, without special tokens.
Offsets: TypeAlias = Callable[[list[str]], "list[list[tuple[int, int]]]"]

# A tokenizer takes some hundred bytes per token: longer texts are tokenised piece by piece. In characters.
_PIECE = 1 << 17


def token_starts(offsets: Offsets, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the position of the first character of each token, ascending, one array per text.

    Texts of more than 131,072 characters are tokenised in pieces that end at white space, which limits the memory.

    Parameters
    ----------
    offsets
        Tokenises texts, see `tokenizer_offsets`.
    texts
        The texts.

    Examples
    --------
    >>> def words(texts):
    ...     return [[(0, 4), (5, 9)] for _ in texts]
    >>> token_starts(words, ["pear tart"])
    [array([0, 5])]
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
    """Return the function that `token_starts` needs of a tokenizer of transformers.

    Raises
    ------
    InvalidArgumentError
        If it is a tokenizer without offsets, written in Python.
    """
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
