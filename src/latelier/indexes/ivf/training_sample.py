"""`TrainingSample`: the tokens that centroids are trained on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from latelier.indexes.ivf.code_layout import byte_width
from latelier.indexes.ivf.document_table import DocumentTable, TokenRows
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

__all__ = ["TrainingSample"]

# Bytes per token besides its unpacked codes: its scale, its centroid, its dot product with it, and its place.
_EXTRA_BYTES = 20
# Tokens that are read from files are unpacked in blocks of 1 / _BLOCKS of those that fit in memory.
_BLOCKS = 8


class TrainingSample:
    """All tokens of every n-th document, with n such that there are about `most` tokens.

    Tokens are read where they are stored, as often as they are needed. Where they must be read from files, `at_once`
    limits how many are in memory.

    Parameters
    ----------
    table
        Documents.
    ordinals
        Ordinals of the documents to sample; at least one.
    most
        Approximate number of tokens.
    memory
        Maximum size of the tokens that are read from files and in memory at once, in bytes; None: all of them.

    Attributes
    ----------
    offsets
        ``(documents + 1,)`` int64: the number of the first token of each document of the sample.
    at_once
        Maximum number of tokens to `load`.
    """

    def __init__(self, table: DocumentTable, ordinals: np.ndarray, most: int, memory: int | None = None) -> None:
        step = max(1.0, table.count_tokens(ordinals) / most)
        self._table, self._documents = table, ordinals[np.unique(np.arange(0, len(ordinals), step).astype("int64"))]
        self.offsets = lengths_to_offsets(table.documents.lengths[self._documents])
        self.at_once = len(self)
        if memory is not None and not table.is_addressable:
            self.at_once = max(1, min(len(self), memory // (byte_width(table.codec.dim) + _EXTRA_BYTES)))

    def unpack(self, first: int, last: int) -> TokenRows:
        """Return the tokens of the documents `first` to ``last - 1`` of the sample."""
        return self._table.unpack(self._documents[first:last])

    def take(self, numbers: np.ndarray) -> TokenRows:
        """Return some tokens, by number: ascending, or in a few ascending runs."""
        if self._table.is_addressable:
            return self._table.unpack_tokens(self._documents, self.offsets, numbers)
        order = np.argsort(numbers, kind="stable")
        wanted = numbers[order]
        taken = TokenRows(
            np.empty((len(numbers), byte_width(self._table.codec.dim)), dtype="uint8"),
            np.empty(len(numbers), dtype="float32"),
        )
        for first, last in split_by_rows(self.offsets, max(1, self.at_once // _BLOCKS)):
            rows = self.unpack(first, last)
            begin, end = np.searchsorted(wanted, self.offsets[[first, last]])
            for target, source in zip(taken, rows, strict=True):
                target[order[begin:end]] = source[wanted[begin:end] - self.offsets[first]]
            del rows, source  # frees this block before the next one is unpacked
        return taken

    def load(self, numbers: np.ndarray) -> Callable[[slice], TokenRows]:
        """Return a function that returns a slice of these tokens."""
        if self._table.is_addressable:
            return lambda some: self.take(numbers[some])
        rows = self.take(numbers)
        return lambda some: TokenRows(rows.codes[some], rows.scales[some])

    def __len__(self) -> int:
        return int(self.offsets[-1])
