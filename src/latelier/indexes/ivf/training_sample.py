"""`TrainingSample`: the tokens that centroids are trained on, read again for each pass if they do not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from latelier.indexes.ivf.code_layout import byte_width
from latelier.indexes.ivf.document_table import DocumentTable, TokenRows
from latelier.utils.ranges import lengths_to_offsets, split_by_rows

__all__ = ["TrainingSample"]

# Bytes per token besides its unpacked codes: its scale, its centroid, its dot product with it, and its place.
_EXTRA_BYTES = 20
# A sample that does not fit in memory is unpacked in blocks of 1 / _BLOCKS of the tokens that do.
_BLOCKS = 8


class TrainingSample:
    """All tokens of every n-th document, with n such that there are about `most` tokens.

    Parameters
    ----------
    table
        Documents.
    ordinals
        Ordinals of the documents to sample; at least one.
    most
        Approximate number of tokens.
    memory
        Maximum size of the tokens that `take` returns, in bytes; None: all of them.

    Attributes
    ----------
    at_once
        Maximum number of tokens to `take`.
    """

    def __init__(self, table: DocumentTable, ordinals: np.ndarray, most: int, memory: int | None = None) -> None:
        step = max(1.0, table.count_tokens(ordinals) / most)
        self._table, self._documents = table, ordinals[np.unique(np.arange(0, len(ordinals), step).astype("int64"))]
        self._offsets = lengths_to_offsets(table.documents.lengths[self._documents])
        self.at_once = len(self)
        if memory is not None:
            self.at_once = max(1, min(len(self), memory // (byte_width(table.codec.dim) + _EXTRA_BYTES)))
        self._rows = table.unpack(self._documents) if self.at_once == len(self) else None

    def blocks(self) -> Iterator[tuple[int, TokenRows]]:
        """Yield the tokens in order, as the number of the first one, and some tokens."""
        if self._rows is not None:
            yield 0, self._rows
            return
        for first, last in split_by_rows(self._offsets, max(1, self.at_once // _BLOCKS)):
            yield int(self._offsets[first]), self._table.unpack(self._documents[first:last])

    def take(self, numbers: np.ndarray) -> tuple[TokenRows, np.ndarray]:
        """Return some tokens, by number in any order: rows, and where each of them is in these, ``(tokens,)`` int64."""
        if self._rows is not None:
            return self._rows, numbers
        order = np.argsort(numbers, kind="stable")
        wanted = numbers[order]
        taken = TokenRows(
            np.empty((len(numbers), byte_width(self._table.codec.dim)), dtype="uint8"),
            np.empty(len(numbers), dtype="float32"),
        )
        for first, rows in self.blocks():
            begin, end = np.searchsorted(wanted, [first, first + len(rows.scales)])
            for target, source in zip(taken, rows, strict=True):
                target[order[begin:end]] = source[wanted[begin:end] - first]
            del rows, source  # frees this block before the next one is unpacked
        return taken, np.arange(len(numbers))

    def __len__(self) -> int:
        return int(self._offsets[-1])
