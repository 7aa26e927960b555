"""`TokenizedText`: a text, its tokens that have a vector, and the words that they form."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

__all__ = ["TokenizedText", "Word", "group_words", "marks_beginnings"]

# Letters of scripts that are written without spaces between words: Thai, Lao, Burmese, Khmer, kana and Han. Their
# tokens are shown one by one, as a sentence of them would be one word.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
# GPT's and SentencePiece's tokenizers mark the first token of a word, BERT's mark the others.
_BEGINS = ("Ġ", "▁")


class TokenizedText(NamedTuple):
    """A text and its tokens that have a vector.

    Parameters
    ----------
    text
        The text, as it was given.
    tokens
        Its tokens, one per row of the embedding.
    ranges
        For each token the first character that it stands for and the one after the last; None for tokens that stand
        for none, such as special tokens.
    """

    text: str
    tokens: Sequence[str]
    ranges: Sequence[tuple[int, int] | None]


class Word(NamedTuple):
    """A word: its text, the positions of its tokens, and the range of its characters in the text, or None."""

    text: str
    positions: tuple[int, ...]
    range: tuple[int, int] | None


def group_words(
    text: TokenizedText, special: Collection[str], marks_begin: bool, join: Callable[[list[str]], str]
) -> tuple[Word, ...]:
    """Join the tokens of a text into words.

    Parameters
    ----------
    text
        The text and its tokens.
    special
        The tokenizer's special tokens; each is a word of its own.
    marks_begin
        Whether the tokenizer marks the first token of a word rather than all others.
    join
        Returns the text that a list of tokens forms.

    Returns
    -------
    tuple of Word
        In order; every token belongs to one word.

    Examples
    --------
    >>> text = TokenizedText("figs", ["fig", "##s"], [(0, 3), (3, 4)])
    >>> join = lambda tokens: "".join(tokens).replace("##", "")
    >>> group_words(text, [], False, join)
    (Word(text='figs', positions=(0, 1), range=(0, 4)),)
    """
    groups: list[list[int]] = []
    for position, token in enumerate(text.tokens):
        continues = not token.startswith(_BEGINS) if marks_begin else token.startswith("##")
        follows_word = bool(groups) and token not in special and text.tokens[position - 1] not in special
        if continues and follows_word and not _is_unspaced(text, position):
            groups[-1].append(position)
        else:
            groups.append([position])
    return tuple(_word(text, group, special, join) for group in groups)


def marks_beginnings(*texts: TokenizedText) -> bool:
    """Return whether the tokenizer of these texts marks the first token of a word rather than all others."""
    return any(token.startswith(_BEGINS) for text in texts for token in text.tokens)


def _is_unspaced(text: TokenizedText, position: int) -> bool:
    """Return whether a token and the one before it are separate characters of a script without spaces."""
    before, here = text.ranges[position - 1], text.ranges[position]
    if before is None or here is None or here[0] < before[1]:  # bytes of one character overlap
        return False
    return any(_UNSPACED.match(text.text[start:end]) for start, end in (before, here))


def _word(text: TokenizedText, group: list[int], special: Collection[str], join: Callable[[list[str]], str]) -> Word:
    tokens = [text.tokens[i] for i in group]
    ranges = [each for each in (text.ranges[i] for i in group) if each is not None]
    name = tokens[0] if tokens[0] in special else join(tokens).strip().removeprefix("##")
    return Word(name, tuple(group), (ranges[0][0], ranges[-1][1]) if ranges else None)
