"""Where the tokens of a text are in it: from a tokenizer's offsets to ranges of the characters that a user gave."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

__all__ = ["text_ranges"]


def text_ranges(offsets: Iterable[tuple[int, int]], prompt: str, text: str) -> list[tuple[int, int] | None]:
    r"""Return the range of characters of a text that each token stands for.

    Parameters
    ----------
    offsets
        First character of each token and the one after its last, in ``prompt + text``, as tokenizers count them.
    prompt
        What stands before the text.
    text
        The text.

    Returns
    -------
    list of (int, int) or None
        First character and the one after the last, in `text`, without white space at the ends and with the combining
        marks that follow. None for tokens that stand for no character of the text: special tokens and those of the
        prompt.

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
