"""All documents of a snapshot, in whichever segment they lie: where their codes are in memory, and who is alive.

Documents of the cells come first, in the order in which the cells know them, so what the cells say needs no
translation; those that were removed since keep their place and are never looked at. Then come all that were added
since.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.kernels.codes import byte_width, unpack_documents
from latelier.indexes.storage.segments import Part

__all__ = ["Rows", "Table"]


class Rows(NamedTuple):
    """Tokens as kernels multiply them: bytes ``(tokens, byte_width(dim))`` shifted by 128, and a scale for each."""

    codes: np.ndarray
    scales: np.ndarray


class Table:
    """The documents of a snapshot.

    Parameters
    ----------
    parts
        Its segments and living documents.
    codec
        How tokens are coded.
    known
        Numbers of the documents in the cells, ascending; empty where there are no cells.

    Attributes
    ----------
    numbers
        ``(documents,)`` int64 numbers in the catalog, as are the next: one row per document.
    signs, codes, scales
        Address of each document's first token in the three arrays.
    lengths
        Tokens; 0 for documents of the cells that are gone.
    alive
        ``(documents,)`` uint8.
    known
        How many documents, from the first, the cells know.
    tokens
        Of all documents.

    Raises
    ------
    CorruptedIndexError
        If a segment's arrays are not those of the codec, or two segments hold the same documents.
    """

    def __init__(self, parts: Sequence[Part], codec: Codec, known: np.ndarray) -> None:
        _refuse_overlaps(parts)
        self.codec = codec
        self.known = len(known)
        self._ordinals: dict[int, np.ndarray] = {}
        self._segments = [part.segment for part in parts]  # their memory is read by address
        size = len(known)
        for part in parts:
            ordinals = _places(known, part.segment.numbers)
            new = np.flatnonzero(ordinals < 0)
            ordinals[new] = np.arange(size, size + len(new))
            size += len(new)
            self._ordinals[id(part.segment)] = ordinals
        self.numbers, self.lengths = np.zeros(size, dtype="int64"), np.zeros(size, dtype="int64")
        self.signs, self.codes, self.scales = (np.zeros(size, dtype="int64") for _ in range(3))
        self.numbers[: len(known)] = known
        for part in parts:
            segment, ordinals = part.segment, self._ordinals[id(part.segment)]
            self.numbers[ordinals], self.lengths[ordinals] = segment.numbers, np.diff(segment.offsets)
            places = zip((self.signs, self.codes, self.scales), codec.addresses(segment), codec.strides, strict=True)
            for column, base, stride in places:
                column[ordinals] = base + segment.offsets[:-1] * stride
        self.alive = self.mask(parts)
        self.all_alive = bool(self.alive.all())
        self.tokens = int(self.lengths.sum())
        self.living = np.flatnonzero(self.alive)
        self.fresh = len(known) + np.flatnonzero(self.alive[len(known) :])

    @property
    def documents(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Addresses and lengths, as kernels take them."""
        return self.signs, self.codes, self.scales, self.lengths

    def rows(self, chosen: np.ndarray) -> Rows:
        """Return the tokens of some documents, one document after the other."""
        codes = np.empty((int(self.lengths[chosen].sum()), byte_width(self.codec.dim)), dtype="uint8")
        scales = np.empty(len(codes), dtype="float32")
        unpack_documents(self.documents, chosen, self.codec.shape, codes, scales)
        return Rows(codes, scales)

    def mask(self, parts: Sequence[Part]) -> np.ndarray:
        """Return ``(documents,)`` uint8: 1 for the documents of these parts, whose segments are all in the table."""
        mask = np.zeros(len(self.numbers), dtype="uint8")
        for part in parts:
            mask[self._ordinals[id(part.segment)][part.positions]] = 1
        return mask

    def holds(self, parts: Sequence[Part]) -> bool:
        """Whether the segments of all parts are in the table."""
        return all(id(part.segment) in self._ordinals for part in parts)


def _refuse_overlaps(parts: Sequence[Part]) -> None:
    ends = [(int(part.segment.numbers[0]), int(part.segment.numbers[-1])) for part in parts if len(part.segment)]
    for (_, last), (first, _) in pairwise(ends):
        if first <= last:
            raise CorruptedIndexError(
                f"two segments of the index hold the documents {first} to {last}; verify() says what is damaged."
            )


def _places(known: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return where each number stands in `known`, -1 if nowhere; both ascend."""
    places = np.searchsorted(known, numbers)
    within = places < len(known)
    found = np.zeros(len(numbers), dtype=bool)
    found[within] = known[places[within]] == numbers[within]
    return np.where(found, places, -1)
