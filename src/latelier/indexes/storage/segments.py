"""Segments: immutable runs of documents, each a few arrays that are written once and then only read.

A segment knows its documents by itself (their numbers, ids and token ranges), so what a reader has opened keeps
answering the same, whatever the catalog and other processes do meanwhile. The index's own arrays stand beside that,
with one row per token: float vectors, or codes of a quantised index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.catalog.segment_rows import SegmentRow
from latelier.indexes.results import Id
from latelier.utils.ranges import rows_or_slice

__all__ = [
    "Layout",
    "Part",
    "Segment",
    "check_segment",
    "document_arrays",
    "merge_documents",
    "merge_rows",
]

# The index's own arrays for some dim: the dtype of each, and the shape of what it keeps of one token.
Layout: TypeAlias = "Callable[[int], dict[str, tuple[np.dtype, tuple[int, ...]]]]"

_DOCUMENTS, _IDS = "documents", "ids"


@dataclass(frozen=True, eq=False)
class Segment:
    """Some documents in the order of insertion.

    Parameters
    ----------
    arrays
        ``"documents"``: int64 ``(3, n + 1)``, the number of each document in the catalog, where its tokens begin and
        where its id begins, with the ends in the last column. ``"ids"``: the ids as JSON, uint8. All others are the
        index's own, one row per token.
    dim
        Numbers per token, for an index whose arrays do not tell.

    Examples
    --------
    >>> arrays = document_arrays(numbers=[7, 9], ids=["a", 5], lengths=[2, 1])
    >>> segment = Segment({**arrays, "vectors": np.zeros((3, 4))})
    >>> segment.numbers, segment.offsets, segment.ids([1, 0])
    (array([7, 9]), array([0, 2, 3]), [5, 'a'])
    """

    arrays: dict[str, np.ndarray]
    dim: int = 0

    @cached_property
    def numbers(self) -> np.ndarray:
        """The number of each document in the catalog, ascending."""
        return self.arrays[_DOCUMENTS][0, :-1]

    @cached_property
    def offsets(self) -> np.ndarray:
        """``(n + 1,)``: document ``i`` has the tokens ``offsets[i]:offsets[i + 1]``."""
        return self.arrays[_DOCUMENTS][1]

    @cached_property
    def id_offsets(self) -> np.ndarray:
        """``(n + 1,)``: the JSON of each id in the array of ids."""
        return self.arrays[_DOCUMENTS][2]

    def ids(self, positions: Sequence[int] | np.ndarray) -> list[Id]:
        """Return the ids of the documents at `positions`."""
        blob, places = self.arrays[_IDS], np.asarray(positions, dtype="int64")
        ranges = zip(self.id_offsets[places].tolist(), self.id_offsets[places + 1].tolist(), strict=True)
        try:
            ids = json.loads(b"[" + b",".join(blob[first:last].tobytes() for first, last in ranges) + b"]")
            "".join(map(str, ids)).encode()  # not of half a pair, which JSON can name
        except (ValueError, RecursionError):
            ids = []
        if len(ids) != len(places) or not {*map(type, ids)} <= {int, str}:
            raise CorruptedIndexError("the ids of a segment are damaged; verify() names the file")
        return list(ids)

    def __len__(self) -> int:
        return self.arrays[_DOCUMENTS].shape[1] - 1


class Part(NamedTuple):
    """Some documents of one segment, by ascending position."""

    segment: Segment
    positions: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document."""
        return self.segment.offsets[self.positions + 1] - self.segment.offsets[self.positions]

    def rows(self, name: str) -> np.ndarray:
        """Return the rows of one array that belong to these documents' tokens; a view where they are contiguous."""
        return self.segment.arrays[name][rows_or_slice(self.segment.offsets, self.positions)]


def check_segment(segment: Segment, row: SegmentRow, layout: Layout) -> None:
    """Refuse arrays that do not fit together or to the catalog.

    What passes may be trusted as far as memory is concerned: numbers and offsets ascend and stay inside the arrays,
    each document has a token, and each array has a row of the right width for each token. What the rows say can be
    anything.

    Parameters
    ----------
    segment
        As it was opened.
    row
        What the catalog says of it.
    layout
        The index's own arrays.

    Raises
    ------
    CorruptedIndexError
        If something does not fit; the message says what.
    """
    expected = {
        _DOCUMENTS: (np.dtype("int64"), (3, row.documents + 1)),
        _IDS: (np.dtype("uint8"), segment.arrays[_IDS].shape[:1] if _IDS in segment.arrays else ()),
        **{name: (dtype, (row.tokens, *shape)) for name, (dtype, shape) in layout(segment.dim).items()},
    }
    if segment.arrays.keys() != expected.keys():
        raise CorruptedIndexError(f"it has the arrays {sorted(segment.arrays)}, not {sorted(expected)}")
    for name, (dtype, shape) in expected.items():
        array = segment.arrays[name]
        if (array.dtype, array.shape) != (dtype, shape):
            raise CorruptedIndexError(f"its {name} are {array.dtype} {array.shape}, not {dtype} {shape}")
    numbers, offsets, id_offsets = segment.numbers, segment.offsets, segment.id_offsets
    # Neighbours are compared, as differences could overflow.
    if (numbers[0], numbers[-1]) != (row.first, row.last) or (numbers[1:] <= numbers[:-1]).any():
        raise CorruptedIndexError("the numbers of its documents do not ascend from the first to the last")
    if offsets[0] != 0 or offsets[-1] != row.tokens or (offsets[1:] <= offsets[:-1]).any():
        raise CorruptedIndexError(f"its documents do not share out its {row.tokens} tokens")
    if id_offsets[0] != 0 or id_offsets[-1] != len(segment.arrays[_IDS]) or (id_offsets[1:] <= id_offsets[:-1]).any():
        raise CorruptedIndexError("its documents do not share out the text of its ids")


def document_arrays(
    numbers: Sequence[int] | np.ndarray, ids: Sequence[Id], lengths: Sequence[int] | np.ndarray
) -> dict[str, np.ndarray]:
    """Return the two arrays of a segment that say which documents it holds."""
    blobs = [json.dumps(id, ensure_ascii=False).encode() for id in ids]
    return _document_arrays(np.asarray(numbers), b"".join(blobs), [len(blob) for blob in blobs], np.asarray(lengths))


def merge_documents(parts: Sequence[Part]) -> dict[str, np.ndarray]:
    """Return the same two arrays for the documents of several parts, in order."""
    numbers = np.concatenate([part.segment.numbers[part.positions] for part in parts])
    lengths = np.concatenate([part.lengths for part in parts])
    sizes = np.concatenate([np.diff(part.segment.id_offsets)[part.positions] for part in parts])
    blobs = [part.segment.arrays[_IDS][rows_or_slice(part.segment.id_offsets, part.positions)] for part in parts]
    return _document_arrays(numbers, np.concatenate(blobs).tobytes(), sizes, lengths)


def merge_rows(parts: Sequence[Part]) -> dict[str, np.ndarray]:
    """Return the index's own arrays for the documents of several parts, in order."""
    names = [name for name in parts[0].segment.arrays if name not in (_DOCUMENTS, _IDS)]
    return {name: np.concatenate([part.rows(name) for part in parts]) for name in names}


def _document_arrays(
    numbers: np.ndarray, ids: bytes, id_sizes: Sequence[int] | np.ndarray, lengths: np.ndarray
) -> dict[str, np.ndarray]:
    documents = np.zeros((3, len(numbers) + 1), dtype="int64")
    documents[0] = [*numbers, numbers[-1] + 1]
    documents[1, 1:] = np.cumsum(lengths)
    documents[2, 1:] = np.cumsum(id_sizes)
    return {_DOCUMENTS: documents, _IDS: np.frombuffer(ids, dtype="uint8")}
