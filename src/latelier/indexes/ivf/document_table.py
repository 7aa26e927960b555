"""The documents of a snapshot, across all segments: where their codes are in memory, and which of them are alive.

The *ordinal* of a document is its position in the table. The documents in the inverted lists come first, in the order
of `InvertedLists.numbers`, so the entries of the lists are ordinals. Of these, removed documents keep their ordinals,
but are not alive, and no search finds them. The documents that are in no list yet come last.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.ivf.code_layout import CodedDocuments, byte_width
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.storage.file_reads import FileReads
from latelier.indexes.storage.segments import Part
from latelier.kernels.threads import for_ranges
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

__all__ = ["DocumentTable", "TokenRows"]


class TokenRows(NamedTuple):
    """Tokens in the form that kernels multiply.

    Attributes
    ----------
    codes
        ``(tokens, byte_width(dim))`` uint8: integers + 128.
    scales
        ``(tokens,)`` float32.
    """

    codes: np.ndarray
    scales: np.ndarray


class DocumentTable:
    """The documents of a snapshot.

    Parameters
    ----------
    parts
        The living documents of each segment.
    codec
        The codec of the index.
    listed_numbers
        Catalog numbers of the documents in the inverted lists, ascending; empty if there are no lists.
    read
        Names of the token arrays that are read from their files for each search; all others stay mapped.
    window
        Maximum size of the codes that a thread reads at a time, in bytes; a longer document is read alone.

    Attributes
    ----------
    codec
        The codec of the index.
    numbers
        ``(documents,)`` int64: the catalog number of each document.
    documents
        Where each document is in memory, and its number of tokens; 0 tokens for a removed document that is in no
        segment any more.
    alive
        ``(documents,)`` uint8: 1 for living documents, 0 for removed ones.
    living
        Ordinals of the living documents, ascending.
    listed
        Number of documents in the inverted lists; they have the ordinals below it.
    unlisted
        Ordinals of the living documents that are in no list, ascending.
    tokens
        Number of tokens of all documents.

    Raises
    ------
    CorruptedIndexError
        If a segment's arrays do not fit the codec, or two segments hold the same documents.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        codec: Codec,
        listed_numbers: np.ndarray,
        *,
        read: Collection[str] = (),
        window: int = 1 << 20,
    ) -> None:
        _check_disjoint(parts)
        self.codec = codec
        self.listed = len(listed_numbers)
        self._ordinals: dict[int, np.ndarray] = {}  # by id(segment): the ordinals of its documents
        self._segments = [part.segment for part in parts]  # keeps them alive: kernels read their memory by address
        size = self.listed
        for segment in self._segments:
            ordinals = _places(listed_numbers, segment.numbers)
            new = np.flatnonzero(ordinals < 0)
            ordinals[new] = np.arange(size, size + len(new))
            size += len(new)
            self._ordinals[id(segment)] = ordinals
        self.numbers = np.zeros(size, dtype="int64")
        self.numbers[: self.listed] = listed_numbers
        self.documents = CodedDocuments(*(np.zeros(size, dtype="int64") for _ in CodedDocuments._fields))
        for segment in self._segments:
            ordinals = self._ordinals[id(segment)]
            self.numbers[ordinals] = segment.numbers
            for column, values in zip(self.documents, codec.locate(segment), strict=True):
                column[ordinals] = values
        self.alive = self.mask(parts)
        self.living = np.flatnonzero(self.alive)
        self.unlisted = self.living[np.searchsorted(self.living, self.listed) :]
        self.tokens = int(self.documents.lengths.sum())
        self._window = window
        self._read = frozenset(read)
        arrays = (segment.arrays[name] for segment in self._segments for name in self._read)
        self._files = FileReads(arrays) if self._read else None

    def count_tokens(self, ordinals: np.ndarray) -> int:
        """Return the number of tokens of some documents."""
        return int(self.documents.lengths[ordinals].sum())

    def unpack(self, ordinals: np.ndarray) -> TokenRows:
        """Return the tokens of some documents, one document after the other."""
        from latelier.indexes.ivf.kernels.codes import unpack_documents

        offsets = lengths_to_offsets(self.documents.lengths[ordinals])
        width, shape = byte_width(self.codec.dim), tuple(self.codec.shape)
        rows = TokenRows(np.empty((offsets[-1], width), dtype="uint8"), np.empty(offsets[-1], "float32"))

        def unpack(documents: CodedDocuments, places: np.ndarray, ends: np.ndarray, first: int, last: int) -> None:
            some = slice(ends[first], ends[last])
            unpack_documents(tuple(documents), places[first:last], shape, rows.codes[some], rows.scales[some])

        for some, documents, places in self.windows(ordinals, *self.codec.arrays):
            ends = offsets[some.start : some.stop + 1]
            for_ranges(partial(unpack, documents, places, ends), ends, width)
        return rows

    @property
    def is_addressable(self) -> bool:
        """Whether all tokens can be read by their addresses; if not, some of their codes are read from files."""
        return self._read.isdisjoint(self.codec.arrays)

    def unpack_tokens(self, ordinals: np.ndarray, offsets: np.ndarray, numbers: np.ndarray) -> TokenRows:
        """Return some tokens of documents, if `is_addressable`.

        Parameters
        ----------
        ordinals, offsets
            The documents, and the number of the first token of each, ``(documents + 1,)`` int64.
        numbers
            ``(tokens,)`` int64: the tokens to return, ascending; each step back takes the time of many tokens.
        """
        from latelier.indexes.ivf.kernels.codes import unpack_tokens

        rows = TokenRows(
            np.empty((len(numbers), byte_width(self.codec.dim)), dtype="uint8"), np.empty(len(numbers), "float32")
        )
        unpack_tokens(tuple(self.documents), ordinals, offsets, numbers, tuple(self.codec.shape), *rows)
        return rows

    def windows(self, ordinals: np.ndarray, *names: str) -> Iterator[tuple[slice, CodedDocuments, np.ndarray]]:
        """Yield documents whose codes kernels can read, all at once or in blocks of bounded size.

        Parameters
        ----------
        ordinals
            Documents, in any order.
        names
            The token arrays that are needed.

        Yields
        ------
        tuple
            Which of `ordinals` these are; where their codes are, until the next ones are asked for; and the places of
            these documents in it, ``(documents,)`` int64.
        """
        read = [name for name in names if name in self._read]
        if self._files is None or not read:
            yield slice(0, len(ordinals)), self.documents, ordinals
            return
        sizes = {name: size for name, size in self._row_bytes().items() if name in read}
        offsets = lengths_to_offsets(self.documents.lengths[ordinals])
        for first, last in split_by_rows(offsets, max(1, self._window // sum(sizes.values()))):
            some = CodedDocuments(*(column[ordinals[first:last]] for column in self.documents))
            buffers = []  # kernels read their memory until the next block is asked for
            for name, size in sizes.items():
                buffer, places = self._files.read(getattr(some, name), some.lengths * size)
                some = some._replace(**{name: buffer.ctypes.data + places})
                buffers.append(buffer)
            yield slice(first, last), some, np.arange(last - first)

    def _row_bytes(self) -> dict[str, int]:
        """Return the bytes per token of each token array."""
        return {name: array.dtype.itemsize * math.prod(array.shape) for name, array in self.codec.layout.items()}

    def mask(self, parts: Sequence[Part]) -> np.ndarray:
        """Return ``(documents,)`` uint8: 1 for the documents of these parts. Their segments must be in the table."""
        mask = np.zeros(len(self.numbers), dtype="uint8")
        for part in parts:
            mask[self._ordinals[id(part.segment)][part.positions]] = 1
        return mask


def _check_disjoint(parts: Sequence[Part]) -> None:
    ends = [(int(part.segment.numbers[0]), int(part.segment.numbers[-1])) for part in parts if len(part.segment)]
    for (_, last), (first, _) in pairwise(ends):
        if first <= last:
            raise CorruptedIndexError(
                f"two segments of the index hold the documents {first} to {last}; verify() lists the damage."
            )


def _places(known: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the position of each number in `known`, -1 if it is not there; both arrays ascend."""
    places = np.searchsorted(known, numbers)
    within = places < len(known)
    found = np.zeros(len(numbers), dtype=bool)
    found[within] = known[places[within]] == numbers[within]
    return np.where(found, places, -1)
