"""How texts are cut into passages, and how an index says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import IndexFormatError, InvalidArgumentError
from latelier.indexes import Index
from latelier.utils.checks import check_count, describe

# Fewer tokens than these hold no sentence.
LEAST_TOKENS = 16
# By default, passages overlap by this fraction of their length.
_OVERLAP = 8
# Late passages have this fraction of the tokens that the model reads.
_LATE = 3
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
    late
        Encode texts in overlapping windows as long as the model reads, and take the vectors of passages from them: late
        chunking, see `docs/indexing.md`. The headings above a passage are not put before it then, only its title;
        `max_tokens` by default: a third of what the model reads.

    Examples
    --------
    >>> Passages(200)
    Passages(max_tokens=200, overlap=None, late=False)
    >>> Passages(200).resolved(max_length=256)
    Passages(max_tokens=200, overlap=25, late=False)
    """

    max_tokens: int | None = None
    overlap: int | None = None
    late: bool = False

    def __post_init__(self) -> None:
        tokens = check_count("max_tokens", self.max_tokens, LEAST_TOKENS, optional=True)
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
        tokens = self.max_tokens
        if tokens is None:
            tokens = max_length
            if self.late and max_length is not None:
                tokens = max(max_length // _LATE, LEAST_TOKENS)
        if tokens is None:
            raise InvalidArgumentError("this model reads documents of any length, so passages need a number of tokens.")
        if max_length is not None and tokens > max_length:
            raise InvalidArgumentError(
                f"received passages of {tokens} tokens, but the model reads at most {max_length} of a document; give "
                "fewer, or raise max_length_document."
            )
        return Passages(tokens, tokens // _OVERLAP if self.overlap is None else self.overlap, self.late)

    def agrees_with(self, resolved: Passages) -> bool:
        """Whether the numbers that are given are those of other passages."""
        is_cut_alike = self.max_tokens in (None, resolved.max_tokens) and self.overlap in (None, resolved.overlap)
        return is_cut_alike and self.late == resolved.late


def as_passages(value: Any) -> Passages | None:
    """Return what a user gives as passages: a `Passages`, a number of tokens, True, or False for None."""
    if isinstance(value, bool):
        if value:
            return Passages()
        return None
    if isinstance(value, Passages):
        return value
    return Passages(value)


def cut_texts(
    texts: Sequence[str], rooms: Sequence[int], overlap: int, starts: Callable[[Sequence[str]], list[np.ndarray]]
) -> list[list[tuple[int, int]]]:
    """Return the ranges of passages of at most `rooms` tokens; `starts` returns the first character of each token."""
    cut = [_cut(text, tokens, room, overlap) for text, tokens, room in zip(texts, starts(texts), rooms, strict=True)]
    # A word that was cut has other tokens than before, and may have more of them.
    broken = [(i, place) for i, places in enumerate(cut) for place in places if _breaks_a_word(texts[i], *place)]
    pieces = [texts[i][start:end] for i, (start, end) in broken]
    for (i, place), piece, tokens in zip(broken, pieces, starts(pieces) if pieces else [], strict=True):
        if len(tokens) > rooms[i]:
            smaller = [(place[0] + a, place[0] + b) for a, b in _cut(piece, tokens, rooms[i] // 2, 0)]
            at = cut[i].index(place)
            cut[i][at : at + 1] = smaller
    return cut


def _cut(text: str, starts: np.ndarray, room: int, overlap: int) -> list[tuple[int, int]]:
    """Cut one text, given the positions of its tokens, into passages of at most `room` tokens."""
    overlap = min(overlap, (room - 1) // 2)
    begin = _after_space(text, 0)
    stop = len(text.rstrip())
    if begin >= stop:  # a document may have a title alone
        return [(0, 0)]
    passages: list[tuple[int, int]] = []
    while True:
        first = int(np.searchsorted(starts, begin))
        if len(starts) - first <= room:
            return [*passages, (begin, stop)]
        limit = int(starts[first + room])
        end = max(_last_break(text, int(starts[first + room // 2]), limit), begin + 1)
        passages.append((begin, begin + len(text[begin:end].rstrip())))
        following = int(np.searchsorted(starts, end))
        if following == len(starts):  # characters after the last token, such as control characters, have none
            return [*passages[:-1], (begin, stop)]
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
    if found:
        return found.end()
    return at


def _breaks_a_word(text: str, start: int, end: int) -> bool:
    before = text[start - 1 : start]
    after = text[end : end + 1]
    return bool((before and not before.isspace()) or (after and not after.isspace()))


# The key among the settings of the index.
_SETTING = "documents"


class DocumentSettings(NamedTuple):
    """How all documents of an index are prepared, so that scores are comparable; None: whole documents."""

    passages: Passages | None = None
    pool_factor: int = 1

    @classmethod
    def stored_in(cls, index: Index) -> DocumentSettings:
        """Return the settings of an index; whole documents without pooling, if it stores none."""
        stored = index.settings.get(_SETTING)
        if stored is None:
            return cls()
        try:
            passages = stored["passages"]
            factor = check_count("pool_factor", stored["pool_factor"])
            return cls(None if passages is None else Passages(**passages).resolved(None), factor)
        except (InvalidArgumentError, KeyError, TypeError) as error:
            raise IndexFormatError(
                f"the index describes its documents in a form that this library does not write: {describe(stored)}."
            ) from error

    @classmethod
    def chosen(
        cls, index: Index, passages: Any, pool_factor: int | None, max_length: Callable[[], int | None]
    ) -> DocumentSettings:
        """Return the settings of the index, or for an empty index those that are given."""
        given = None if passages is None else as_passages(passages)
        factor = check_count("pool_factor", pool_factor, optional=True)
        stored = cls.stored_in(index)
        if index.dim is None:
            wanted = stored.passages if passages is None else given
            return cls(wanted and wanted.resolved(max_length()), factor or stored.pool_factor)
        agrees = given == stored.passages or (given and stored.passages and given.agrees_with(stored.passages))
        if passages is not None and not agrees:
            raise InvalidArgumentError(
                f"received passages={passages!r}, but the index holds {stored.describe_passages()}; leave passages "
                "out, or make a new index."
            )
        if factor not in (None, stored.pool_factor):
            raise InvalidArgumentError(
                f"received pool_factor={factor}, but the documents of the index have {stored.pool_factor}; leave it "
                "out, or make a new index."
            )
        if stored.passages is not None:
            stored.passages.resolved(max_length())
        return stored

    def store_in(self, index: Index) -> None:
        """Store the settings in an index, unless it has them already or they are those of whole documents."""
        if self == DocumentSettings.stored_in(index):
            return
        passages = self.passages and asdict(self.passages)
        index.settings[_SETTING] = {"passages": passages, "pool_factor": self.pool_factor}

    def describe_passages(self) -> str:
        """Return what an index holds, for messages."""
        if self.passages is None:
            return "whole documents"
        kind = "late passages" if self.passages.late else "passages"
        return f"{kind} of {self.passages.max_tokens} tokens that overlap by {self.passages.overlap}"
