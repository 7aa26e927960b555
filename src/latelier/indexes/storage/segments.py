"""`Segment`: an immutable run of documents in memory, as arrays; `Part`: some documents of one segment.

A segment holds the numbers, ids and token offsets of its documents, so a search of an open segment does not need the
catalog, whatever other processes commit meanwhile. It also holds the token arrays of the index, with one row per token:
float vectors, or the codes of a quantised index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.catalog.segment_rows import SegmentRow
from latelier.indexes.results import Id
from latelier.indexes.storage.files import release_memory
from latelier.indexes.storage.scratch import Scratch
from latelier.utils.ragged import lengths_to_offsets, rows_or_slice, split_by_rows

__all__ = ["Arrays", "Layout", "Part", "Segment", "TokenArray"]

Arrays: TypeAlias = "dict[str, np.ndarray]"

# Names of the two arrays that describe the documents; all others are the token arrays of the index.
_DOCUMENTS, _IDS = "documents", "ids"
# Rows of the array "documents".
_NUMBERS, _OFFSETS, _ID_OFFSETS = range(3)
# Tokens of a block that `Part.blocks` yields.
_BLOCK_TOKENS = 1 << 14

_JSON = json.JSONEncoder(ensure_ascii=False)


class TokenArray(NamedTuple):
    """A token array of an index: its dtype, and the shape of its entry for one token."""

    dtype: np.dtype
    shape: tuple[int, ...]


# Returns the token arrays of an index by name, for vectors of a given dim.
Layout: TypeAlias = "Callable[[int], dict[str, TokenArray]]"


@dataclass(frozen=True, eq=False)
class Segment:
    """Some documents in the order of insertion.

    Parameters
    ----------
    arrays
        The stored arrays: ``"documents"``, int64 ``(3, n + 1)``, with the rows `numbers`, `offsets` and `id_offsets`;
        ``"ids"``, uint8, the ids as JSON; and the token arrays of the index, one row per token.
    dim
        Dimension of the token vectors.

    Examples
    --------
    >>> arrays = {"vectors": np.zeros((3, 4))}
    >>> segment = Segment.build([7, 9], ["a", 5], lengths=[2, 1], arrays=arrays)
    >>> segment.numbers, segment.offsets, segment.ids([1, 0])
    (array([7, 9]), array([0, 2, 3]), [5, 'a'])
    """

    arrays: Arrays
    dim: int = 0

    @classmethod
    def build(
        cls,
        numbers: Sequence[int] | np.ndarray,
        ids: Sequence[Id],
        lengths: Sequence[int] | np.ndarray,
        arrays: Arrays,
    ) -> Segment:
        """Return a segment of new documents.

        Parameters
        ----------
        numbers
            Number of each document in the catalog, ascending.
        ids
            Id of each document.
        lengths
            Number of tokens of each document.
        arrays
            The token arrays of the index.
        """
        encoded = [(str(id) if isinstance(id, int) else _JSON.encode(id)).encode() for id in ids]
        sizes = list(map(len, encoded))
        return cls({**_document_arrays(numbers, lengths, b"".join(encoded), sizes), **arrays})

    @classmethod
    def merge(cls, parts: Sequence[Part], scratch: Scratch | None = None) -> Segment:
        """Return one segment with the documents of all parts (at least one), in order.

        Parameters
        ----------
        parts
            Documents of segments with the same token arrays.
        scratch
            Where the arrays are made; None: in memory.
        """
        scratch = scratch or Scratch()
        numbers = np.concatenate([part.segment.numbers[part.positions] for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        sizes = np.concatenate([np.diff(part.segment.id_offsets)[part.positions] for part in parts])
        ids = [part.segment.arrays[_IDS][rows_or_slice(part.segment.id_offsets, part.positions)] for part in parts]
        names = [name for name in parts[0].segment.arrays if name not in (_DOCUMENTS, _IDS)]
        arrays = _document_arrays(numbers, lengths, np.concatenate(ids).tobytes(), sizes)
        for name in names:
            rows = (block for part in parts for block in part.blocks(name))
            arrays[name] = scratch.concatenate(rows, int(lengths.sum()), like=parts[0].segment.arrays[name])
        return cls(arrays)

    @cached_property
    def numbers(self) -> np.ndarray:
        """``(n,)``: the number of each document in the catalog, ascending."""
        return self.arrays[_DOCUMENTS][_NUMBERS, :-1]

    @cached_property
    def offsets(self) -> np.ndarray:
        """``(n + 1,)``: document ``i`` has the tokens ``offsets[i]:offsets[i + 1]``."""
        return self.arrays[_DOCUMENTS][_OFFSETS]

    @cached_property
    def id_offsets(self) -> np.ndarray:
        """``(n + 1,)``: document ``i`` has the bytes ``id_offsets[i]:id_offsets[i + 1]`` of the array of ids."""
        return self.arrays[_DOCUMENTS][_ID_OFFSETS]

    @property
    def token_names(self) -> list[str]:
        """Names of the token arrays."""
        return [name for name in self.arrays if name not in (_DOCUMENTS, _IDS)]

    @property
    def tokens(self) -> int:
        """Number of tokens of all documents."""
        return int(self.offsets[-1])

    def release(self) -> None:
        """Give the memory of its mapped arrays back to the system; they are read again when they are needed."""
        for array in self.arrays.values():
            release_memory(array)

    def living(self, removed: Sequence[int]) -> Part:
        """Return the documents that are not removed, given the numbers of the removed ones."""
        if not removed:
            return Part(self, np.arange(len(self)))
        is_removed = np.isin(self.numbers, np.array(removed, dtype="int64"), assume_unique=True)
        return Part(self, np.flatnonzero(~is_removed))

    def ids(self, positions: Sequence[int] | np.ndarray) -> list[Id]:
        """Return the ids of the documents at `positions`.

        Raises
        ------
        CorruptedIndexError
            If the ids are damaged.
        """
        # Views of memory take less time to slice than arrays.
        encoded, places = self.arrays[_IDS].data, np.asarray(positions, dtype="int64")
        ranges = zip(self.id_offsets[places].tolist(), self.id_offsets[places + 1].tolist(), strict=True)
        array = b"[" + b",".join([encoded[first:last] for first, last in ranges]) + b"]"
        try:
            ids = json.loads(array.decode())
            if b"\\" in array:
                "".join(map(str, ids)).encode()  # fails for a lone surrogate, which an escape of JSON can express
        except (ValueError, RecursionError):
            ids = []
        if len(ids) != len(places) or not {*map(type, ids)} <= {int, str}:
            raise CorruptedIndexError("the ids of a segment are damaged; verify() names the file")
        return list(ids)

    def check(self, row: SegmentRow, layout: Layout) -> None:
        """Raise an error unless the arrays fit together and fit the catalog.

        Afterwards memory accesses that rely on them are safe: numbers and offsets ascend and stay inside the arrays,
        each document has a token, and each token array has a row of the right shape for each token. The values in
        these rows are not checked.

        Parameters
        ----------
        row
            The segment in the catalog.
        layout
            The token arrays of the index.

        Raises
        ------
        CorruptedIndexError
            If the arrays do not fit; the message says where.
        """
        arrays = self.arrays
        expected: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            _DOCUMENTS: (np.dtype("int64"), (3, row.documents + 1)),
            _IDS: (np.dtype("uint8"), arrays[_IDS].shape[:1] if _IDS in arrays else ()),
            **{name: (array.dtype, (row.tokens, *array.shape)) for name, array in layout(self.dim).items()},
        }
        if arrays.keys() != expected.keys():
            raise CorruptedIndexError(f"it has the arrays {sorted(arrays)}, not {sorted(expected)}")
        for name, (dtype, shape) in expected.items():
            array = arrays[name]
            if (array.dtype, array.shape) != (dtype, shape):
                raise CorruptedIndexError(f"its {name} are {array.dtype} {array.shape}, not {dtype} {shape}")
        numbers, offsets, id_offsets = self.numbers, self.offsets, self.id_offsets
        # Neighbours are compared, as differences could overflow.
        if (numbers[0], numbers[-1]) != (row.first, row.last) or (numbers[1:] <= numbers[:-1]).any():
            raise CorruptedIndexError("the numbers of its documents do not ascend from the first to the last")
        if offsets[0] != 0 or offsets[-1] != row.tokens or (offsets[1:] <= offsets[:-1]).any():
            raise CorruptedIndexError(f"the token offsets of its documents do not divide its {row.tokens} tokens")
        if id_offsets[0] != 0 or id_offsets[-1] != len(arrays[_IDS]) or (id_offsets[1:] <= id_offsets[:-1]).any():
            raise CorruptedIndexError("the offsets of its ids do not divide the bytes of its ids")

    def __len__(self) -> int:
        return self.arrays[_DOCUMENTS].shape[1] - 1


class Part(NamedTuple):
    """Some documents of one segment, by ascending position."""

    segment: Segment
    positions: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each document."""
        return self.segment.offsets[self.positions + 1] - self.segment.offsets[self.positions]

    @property
    def tokens(self) -> int:
        """Number of tokens of all these documents."""
        return self.segment.tokens if len(self.positions) == len(self.segment) else int(self.lengths.sum())

    def rows(self, name: str) -> np.ndarray:
        """Return the rows of a token array that belong to these documents; a view if they are contiguous."""
        return self.segment.arrays[name][rows_or_slice(self.segment.offsets, self.positions)]

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """Yield the same rows, in blocks of bounded size; the memory of mapped ones is given back after each."""
        for first, last in split_by_rows(lengths_to_offsets(self.lengths), _BLOCK_TOKENS):
            yield Part(self.segment, self.positions[first:last]).rows(name)
            release_memory(self.segment.arrays[name])  # not that of the block, which may be a copy


def _document_arrays(
    numbers: Sequence[int] | np.ndarray,
    lengths: Sequence[int] | np.ndarray,
    ids: bytes,
    id_sizes: Sequence[int] | np.ndarray,
) -> Arrays:
    """Return the two arrays that describe the documents of a segment."""
    documents = np.empty((3, len(numbers) + 1), dtype="int64")
    documents[_NUMBERS, :-1], documents[_NUMBERS, -1] = numbers, numbers[-1] + 1
    documents[_OFFSETS] = lengths_to_offsets(lengths)
    documents[_ID_OFFSETS] = lengths_to_offsets(id_sizes)
    return {_DOCUMENTS: documents, _IDS: np.frombuffer(ids, dtype="uint8")}
