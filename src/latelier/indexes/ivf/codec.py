"""How an index stores tokens: a sign code, and a code of 8, 4, 2 or 1 bits per number with a scale.

The numbers themselves are described with the kernels, in `latelier.indexes.ivf.kernels.codes`. Every token is coded by
itself, with no trained codebook: documents are stored before any centroids exist, and merging segments copies rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError
from latelier.indexes.ivf.kernels.codes import (
    CodedDocuments,
    CodeShape,
    decode_documents,
    encode_tokens,
    sign_words,
)
from latelier.indexes.storage.segments import Part, Segment, TokenArray
from latelier.utils.ranges import lengths_to_offsets

__all__ = ["Codec"]

# Names of the stored arrays.
_SIGNS, _CODES, _SCALES = "signs", "codes", "scales"


class Codec(NamedTuple):
    """How tokens of one dim are coded.

    Parameters
    ----------
    bits
        8, 4, 2 or 1.
    dim
        Numbers per token.

    Examples
    --------
    >>> codec = Codec(bits=8, dim=2)
    >>> arrays = codec.encode(TokenEmbeddings.from_list([[[1.0, -0.5]]]))
    >>> for name, array in arrays.items():
    ...     print(name, array.dtype, array.shape)
    signs uint32 (1, 1)
    scales uint16 (1,)
    codes uint8 (1, 2)
    """

    bits: int
    dim: int

    @property
    def shape(self) -> CodeShape:
        """The numbers that kernels need."""
        words = sign_words(self.dim)
        return CodeShape(self.bits, self.dim, words, self.dim if self.bits == 8 else (self.bits - 1) * words * 4)

    @property
    def layout(self) -> dict[str, TokenArray]:
        """Dtype, and shape per token, of each array that `encode` returns.

        Examples
        --------
        >>> Codec(bits=4, dim=128).layout["codes"]
        TokenArray(dtype=dtype('uint32'), shape=(3, 4))
        """
        words = sign_words(self.dim)
        layout: dict[str, TokenArray] = {
            _SIGNS: TokenArray(np.dtype("uint32"), (words,)),
            _SCALES: TokenArray(np.dtype("uint16"), ()),
        }
        if self.bits == 8:
            layout[_CODES] = TokenArray(np.dtype("uint8"), (self.dim,))
        elif self.bits > 1:
            layout[_CODES] = TokenArray(np.dtype("uint32"), (self.bits - 1, words))
        return layout

    def encode(self, embeddings: TokenEmbeddings) -> dict[str, np.ndarray]:
        """Return the arrays to store, one row per token.

        Parameters
        ----------
        embeddings
            float32.
        """
        vectors = np.ascontiguousarray(embeddings.vectors)
        tokens, words = len(vectors), sign_words(self.dim)
        signs, scales = np.empty((tokens, words), dtype="uint32"), np.empty(tokens, dtype="uint16")
        codes = np.empty((tokens if self.bits == 8 else 0, self.dim), dtype="uint8")
        planes = np.empty((tokens if self.bits < 8 else 0, self.bits - 1, words), dtype="uint32")
        encode_tokens(vectors, self.bits, signs, codes, planes, scales)
        stored = {_SIGNS: signs, _SCALES: scales}
        if self.bits > 1:
            stored[_CODES] = codes if self.bits == 8 else planes
        return stored

    def locate(self, segment: Segment) -> CodedDocuments:
        """Return where the documents of a segment are in memory.

        Kernels read from these addresses without knowing the size of the arrays. They rely on what is checked here,
        that each array has a row per token in the layout of this codec, and on the segment's offsets, which were
        checked when it was opened. The caller keeps the segment alive.

        Raises
        ------
        CorruptedIndexError
            If an array is missing, or has another dtype or shape.
        """
        arrays, tokens = segment.arrays, int(segment.offsets[-1])
        for name, (dtype, shape) in self.layout.items():
            array = arrays.get(name, np.zeros(0))
            if array.dtype != dtype or array.shape != (tokens, *shape) or not array.flags.c_contiguous:
                raise CorruptedIndexError(
                    f"a segment's {name} are {array.dtype} {array.shape}, but {tokens} tokens of dim {self.dim} in "
                    f"{self.bits} bits take {dtype} {(tokens, *shape)}; verify() says which files are damaged."
                )
        codes = arrays[_CODES].ctypes.data if self.bits > 1 else 0
        first = segment.offsets[:-1]
        return CodedDocuments(
            signs=arrays[_SIGNS].ctypes.data + first * (4 * self.shape.sign_words),
            codes=codes + first * self.shape.code_bytes,
            scales=arrays[_SCALES].ctypes.data + first * 2,
            lengths=np.diff(segment.offsets),
        )

    def decode(self, part: Part) -> TokenEmbeddings:
        """Return the vectors of stored documents.

        Raises
        ------
        CorruptedIndexError
            If the segment was not written with this codec, or has no such documents.
        """
        if len(part.positions) and not 0 <= part.positions.min() <= part.positions.max() < len(part.segment):
            raise CorruptedIndexError(
                f"documents at {part.positions.min()} to {part.positions.max()} of a segment were asked for, which has "
                f"{len(part.segment)}; verify() says which files are damaged."
            )
        documents = self.locate(part.segment)
        vectors = np.empty((int(part.lengths.sum()), self.dim), dtype="float32")
        decode_documents(tuple(documents), part.positions, tuple(self.shape), vectors)
        return TokenEmbeddings(vectors, lengths_to_offsets(part.lengths))
