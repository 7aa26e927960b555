"""`Passages`: into how long passages documents are cut, and the cutting itself.

A passage ends at the last paragraph in its second half; if there is none, at the last sentence; else at the last word.
The next one begins some tokens earlier, at a sentence or a word, so that what stands at a cut is in one of the two as a
whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count, describe

__all__ = ["PassageRange", "Passages", "as_passages", "cut_texts"]

# Fewer tokens than these hold no sentence.
_LEAST_TOKENS = 16
# By default, passages overlap by this fraction of their length.
_OVERLAP = 8
# Quotation marks and brackets may follow the end of a sentence; in Chinese and Japanese, no space does.
_CLOSING = "[\"')\\]\u2019\u201d\u00bb\u300d\u300f]*"
_SENTENCE = re.compile(rf"[.!?\u2026]{_CLOSING}\s+|[\u3002\uff01\uff1f]{_CLOSING}\s*|\n\s*")
_BREAKS = (re.compile(r"\n[^\S\n]*\n\s*"), _SENTENCE, re.compile(r"\s+"))
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Passages:
    """How long documents are cut into passages.

    Parameters
    ----------
    max_tokens
        Maximum number of tokens of a passage, including its title and the model's special tokens; None: as many as
        the model reads of a document.
    overlap
        Maximum number of tokens that a passage shares with the one before it, less than half of `max_tokens`; None: an
        eighth of `max_tokens`.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range.

    Examples
    --------
    >>> Passages(200)
    Passages(max_tokens=200, overlap=None)
    >>> Passages(200).resolved(max_length=256)
    Passages(max_tokens=200, overlap=25)
    """

    max_tokens: int | None = None
    overlap: int | None = None

    def __post_init__(self) -> None:
        tokens = check_count("max_tokens", self.max_tokens, _LEAST_TOKENS, optional=True)
        overlap = check_count("overlap", self.overlap, 0, optional=True)
        if tokens is not None and overlap is not None and 2 * overlap >= tokens:
            raise InvalidArgumentError(
                f"received overlap={overlap} with max_tokens={tokens}; expected less than half of the tokens."
            )

    def resolved(self, max_length: int | None) -> Passages:
        """Return the passages with both numbers, for a model that reads `max_length` tokens of a document.

        Raises
        ------
        InvalidArgumentError
            If the model reads fewer tokens, or has no limit and `max_tokens` is None.
        """
        tokens = max_length if self.max_tokens is None else self.max_tokens
        if tokens is None:
            raise InvalidArgumentError("this model reads documents of any length, so passages need a number of tokens.")
        if max_length is not None and tokens > max_length:
            raise InvalidArgumentError(
                f"received passages of {tokens} tokens, but the model reads at most {max_length} of a document; give "
                "fewer, or raise max_length_document."
            )
        return Passages(tokens, tokens // _OVERLAP if self.overlap is None else self.overlap)

    def agrees_with(self, resolved: Passages) -> bool:
        """Whether the numbers that are given are those of other passages."""
        return self.max_tokens in (None, resolved.max_tokens) and self.overlap in (None, resolved.overlap)


class PassageRange(NamedTuple):
    """A part of a text, ``text[start:end]``."""

    start: int
    end: int


def as_passages(value: Any) -> Passages | None:
    """Return what a user gives as passages: a `Passages`, a number of tokens, True, or False for None.

    Examples
    --------
    >>> as_passages(200), as_passages(True), as_passages(False)
    (Passages(max_tokens=200, overlap=None), Passages(max_tokens=None, overlap=None), None)
    """
    if isinstance(value, Passages):
        return value
    if isinstance(value, bool):
        return Passages() if value else None
    if isinstance(value, (int, np.integer)):
        return Passages(int(value))
    raise InvalidArgumentError(
        f"received {describe(value)} as passages; expected a number of tokens, Passages(max_tokens, overlap), True for "
        "as many tokens as the model reads, or False for whole documents."
    )


def cut_texts(
    texts: Sequence[str], rooms: Sequence[int], overlap: int, starts: Callable[[Sequence[str]], list[np.ndarray]]
) -> list[list[PassageRange]]:
    r"""Cut texts into passages.

    Parameters
    ----------
    texts
        The texts.
    rooms
        Maximum number of tokens of a passage of each text.
    overlap
        Maximum number of tokens that a passage shares with the one before it.
    starts
        Returns the positions of the tokens of texts, see `latelier.models.token_starts`.

    Returns
    -------
    list of list of PassageRange
        At least one per text, in order. They begin and end with a character that is not white space, and between them
        there is nothing but white space.

    Examples
    --------
    >>> def starts(text):
    ...     return np.array([found.start() for found in re.finditer(r"\w+", text)])
    >>> def words(texts):
    ...     return [starts(text) for text in texts]
    >>> text = "One two. Three four five. Six seven."
    >>> [text[a:b] for a, b in cut_texts([text], [5], 0, words)[0]]
    ['One two. Three four five.', 'Six seven.']
    """
    cut = [_cut(text, tokens, room, overlap) for text, tokens, room in zip(texts, starts(texts), rooms, strict=True)]
    # A word that was cut has other tokens than before, and may have more of them.
    broken = [(i, part) for i, parts in enumerate(cut) for part in parts if _breaks_a_word(texts[i], part)]
    pieces = [texts[i][part.start : part.end] for i, part in broken]
    for (i, part), piece, tokens in zip(broken, pieces, starts(pieces) if pieces else [], strict=True):
        if len(tokens) > rooms[i]:
            smaller = [PassageRange(part.start + a, part.start + b) for a, b in _cut(piece, tokens, rooms[i] // 2, 0)]
            at = cut[i].index(part)
            cut[i][at : at + 1] = smaller
    return cut


def _cut(text: str, starts: np.ndarray, room: int, overlap: int) -> list[PassageRange]:
    """Cut one text, given the positions of its tokens, into passages of at most `room` tokens."""
    overlap = min(overlap, (room - 1) // 2)
    begin, stop = _after_space(text, 0), len(text.rstrip())
    if begin >= stop:  # a document may have a title alone
        return [PassageRange(0, 0)]
    passages: list[PassageRange] = []
    while True:
        first = int(np.searchsorted(starts, begin))
        if len(starts) - first <= room:
            return [*passages, PassageRange(begin, stop)]
        limit = int(starts[first + room])
        end = max(_last_break(text, int(starts[first + room // 2]), limit), begin + 1)
        passages.append(PassageRange(begin, begin + len(text[begin:end].rstrip())))
        following = int(np.searchsorted(starts, end))
        if following == len(starts):  # characters after the last token, such as control characters, have none
            return [*passages[:-1], PassageRange(begin, stop)]
        after = _after_space(text, end)
        earliest = max(following - overlap, first + 1)
        begin = max(min(_first_break(text, starts, earliest, end), after) if overlap else after, begin + 1)


def _last_break(text: str, lower: int, limit: int) -> int:
    """Return where the last paragraph, sentence or word between two positions ends, or else the second position."""
    for kind in _BREAKS:
        ends = [found.end() for found in kind.finditer(text, lower, limit)]
        if ends:
            return ends[-1]
    return limit


def _first_break(text: str, starts: np.ndarray, earliest: int, end: int) -> int:
    """Return where the first sentence begins after the token `earliest` and before `end`, or else a word or a token."""
    lower = int(starts[earliest])
    for kind in (_SENTENCE, _BREAKS[-1]):
        for found in kind.finditer(text, int(starts[earliest - 1]), end):
            if lower <= found.end() < end:
                return found.end()
    return lower


def _after_space(text: str, at: int) -> int:
    """Return the position of the first character from `at` on that is not white space."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _breaks_a_word(text: str, part: PassageRange) -> bool:
    before, after = text[part.start - 1 : part.start], text[part.end : part.end + 1]
    return bool((before and not before.isspace()) or (after and not after.isspace()))
