"""Late passages: a text is encoded in overlapping windows, and the vectors of its passages are taken from them.

So the vectors of a passage have seen what stands around it: Günther et al., Late Chunking (2024), arXiv:2409.04701.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.retrieve.query_model import QueryModel

# A window shares this fraction of its length with the next one; to share more ranks no better.
_SHARED = 8
# White space is looked for so many characters back.
_LONGEST_WORD = 100


class Taken(NamedTuple):
    """Rows of the vectors of an input, in order; None: all."""

    input: int
    rows: np.ndarray | None


class LateText(NamedTuple):
    """What the model reads of a text, and for each of its passages, the rows that are taken of it."""

    inputs: list[str]
    passages: list[list[Taken]]

    def after(self, inputs: int) -> list[list[Taken]]:
        """Return what is taken for each passage if the inputs stand after others, so many."""
        return [[Taken(inputs + taken.input, taken.rows) for taken in own] for own in self.passages]


def late_text(
    text: str,
    begin: int,
    heading: str,
    passages: Sequence[tuple[int, int]],
    titled: Sequence[str],
    room: int,
    model: QueryModel,
) -> LateText:
    """Return the windows of a text from `begin` on, each of at most `room` tokens after `heading`, and what is taken.

    `titled` are the passages as they are stored: each gets as many rows as it has tokens. One whose tokens are others
    within a window, such as a part of a word, is encoded by itself.
    """
    windows = [
        (begin + start, begin + end)
        for start, end in _windows(text[begin:], model.token_starts([text[begin:]])[0], room)
    ]
    inputs = [heading + text[start:end] for start, end in windows]
    ranges = [model.token_ranges(each, is_query=False) for each in inputs]
    borders = [0, *((end + start) // 2 for (_, end), (start, _) in pairwise(windows))]
    borders.append(len(text) + 1)
    starts = [_starts(own, len(heading), start) for own, (start, _) in zip(ranges, windows, strict=True)]
    found = []
    for (start, end), stored in zip(passages, titled, strict=True):
        (first, middle, last) = np.searchsorted(borders, [start, (start + end) // 2, end], side="right") - 1
        around = starts[middle] == _SPECIAL
        if stored.startswith(heading):
            around |= starts[middle] == _HEADING
        text_rows = np.flatnonzero(starts[middle] >= 0)
        before = np.flatnonzero(around[: text_rows[0] if len(text_rows) else None])
        after = np.flatnonzero(around)[len(before) :]
        taken = [Taken(middle, before)]
        for number in range(first, min(last, len(windows) - 1) + 1):
            own = starts[number]
            inside = (own >= max(start, borders[number])) & (own < min(end, borders[number + 1]))
            taken.append(Taken(number, np.flatnonzero(inside)))
        taken.append(Taken(middle, after))
        count = sum(len(rows) for _, rows in taken if rows is not None)
        if count != len(model.tokens(stored, is_query=False)):
            inputs.append(stored)
            found.append([Taken(len(inputs) - 1, None)])
        else:
            found.append(taken)
    return LateText(inputs, found)


# Where rows of special tokens, and of the heading, begin in the text.
_SPECIAL = -2
_HEADING = -1


def _starts(ranges: Sequence[tuple[int, int] | None], heading: int, begin: int) -> np.ndarray:
    """Return the first character in the text of each row of a window that begins at `begin`, after its heading."""
    starts = np.empty(len(ranges), dtype="int64")
    for row, place in enumerate(ranges):
        if place is None:
            starts[row] = _SPECIAL
        elif place[0] < heading:
            starts[row] = _HEADING
        else:
            starts[row] = place[0] - heading + begin
    return starts


def _windows(text: str, starts: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Cut a text into overlapping windows of at most `room` tokens, at white space where there is some."""

    def place(token: int) -> int:
        if token >= len(starts):
            return len(text)
        at = int(starts[token])
        space = max(text.rfind(each, at - _LONGEST_WORD, at) for each in " \n\t")
        if space < 0:
            return at
        return space + 1

    windows = []
    first = 0
    while True:
        windows.append((place(first) if first else 0, place(first + room)))
        if first + room >= len(starts):
            return windows
        # The last window is as long as the others.
        first = min(first + room - room // _SHARED, len(starts) - room)


def taken_rows(encoded: Iterable[TokenEmbeddings], passages: Sequence[Sequence[Taken]]) -> Iterator[TokenEmbeddings]:
    """Yield the vectors of passages as soon as what they are taken of is encoded; `encoded` are parts of the inputs."""
    vectors: dict[int, Any] = {}
    count = 0
    done = 0
    for part in encoded:
        for each in part.to("numpy"):
            vectors[count] = each
            count += 1
        ready = done
        while ready < len(passages) and all(taken.input < count for taken in passages[ready]):
            ready += 1
        if ready > done:
            yield TokenEmbeddings.from_list([_joined(vectors, passages[i]) for i in range(done, ready)])
            done = ready
        needed = min((taken.input for own in passages[done:] for taken in own), default=count)
        vectors = {number: each for number, each in vectors.items() if number >= needed}


def _joined(vectors: dict[int, Any], passage: Sequence[Taken]) -> np.ndarray:
    parts = []
    for taken in passage:
        if taken.rows is None:
            parts.append(vectors[taken.input])
        else:
            parts.append(vectors[taken.input][taken.rows])
    return np.concatenate(parts)
