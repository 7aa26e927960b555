"""`Codec`: stores a token as a sign code, a code of 8, 4, 2 or 1 bits per number, and a scale.

`latelier.indexes.ivf.kernels.codes` describes the codes. Every token is coded separately, without a trained codebook,
so documents can be stored before there are centroids, and merging segments only copies rows.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, EmbeddingsError
from latelier.indexes.ivf.code_layout import CodedDocuments, CodeShape, sign_words
from latelier.indexes.storage.segments import Part, Segment, TokenArray
from latelier.utils.ragged import lengths_to_offsets

__all__ = ["CODES", "SCALES", "SIGNS", "Codec", "are_finite"]

# Names of the stored arrays.
SIGNS, CODES, SCALES = "signs", "codes", "scales"
# Scales from here on are infinity or NaN.
_INFINITE = 0xFF00
# Scales from here on, 2**100, are rejected: the integers of up to 8,192 dims, times such a scale, exceed float32.
_TOO_LARGE = int(np.float32(2**100).view("uint32")) >> 15
# Up to so many numbers, about ten documents, are decoded by numpy in a process that has not loaded the kernels, since
# importing numba takes longer, and 200 MB.
_FEW_NUMBERS = 1 << 20
_KERNELS = "latelier.indexes.ivf.kernels.codes"


class Codec(NamedTuple):
    """Converts tokens of one dim to codes and back.

    Parameters
    ----------
    bits
        8, 4, 2 or 1.
    dim
        Dimension of the token vectors.

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
        """The sizes of a token's codes, for kernels."""
        words = sign_words(self.dim)
        return CodeShape(self.bits, self.dim, words, self.dim if self.bits == 8 else (self.bits - 1) * words * 4)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that a token's numbers are read from; below 8 bits, the sign code is a part of them."""
        return {8: (CODES, SCALES), 1: (SIGNS, SCALES)}.get(self.bits, (SIGNS, CODES, SCALES))

    @property
    def layout(self) -> dict[str, TokenArray]:
        """Dtype and shape per token of each array that `encode` returns.

        Examples
        --------
        >>> Codec(bits=4, dim=128).layout["codes"]
        TokenArray(dtype=dtype('uint32'), shape=(3, 4))
        """
        words = sign_words(self.dim)
        layout: dict[str, TokenArray] = {
            SIGNS: TokenArray(np.dtype("uint32"), (words,)),
            SCALES: TokenArray(np.dtype("uint16"), ()),
        }
        if self.bits == 8:
            layout[CODES] = TokenArray(np.dtype("uint8"), (self.dim,))
        elif self.bits > 1:
            layout[CODES] = TokenArray(np.dtype("uint32"), (self.bits - 1, words))
        return layout

    def encode(self, embeddings: TokenEmbeddings, into: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Return the arrays to store, one row per token.

        Parameters
        ----------
        embeddings
            The vectors, as float32.
        into
            Where to write the arrays, contiguous and with the dtypes and shapes of `layout`; None: to new memory.

        Raises
        ------
        EmbeddingsError
            If numbers are too large; they are accepted up to 1e30. NaN and infinity are left to `are_finite`.
        """
        from latelier.indexes.ivf.kernels.codes import encode_tokens

        vectors = np.ascontiguousarray(embeddings.vectors)
        stored = into or {name: np.empty((len(vectors), *shape), dtype) for name, (dtype, shape) in self.layout.items()}
        no_codes, no_planes = np.empty((0, self.dim), dtype="uint8"), np.empty((0, 0, 0), dtype="uint32")
        codes = stored[CODES] if self.bits == 8 else no_codes
        planes = stored[CODES] if 1 < self.bits < 8 else no_planes
        encode_tokens(vectors, self.bits, stored[SIGNS], codes, planes, stored[SCALES])
        too_large = (stored[SCALES] >= _TOO_LARGE) & (stored[SCALES] < _INFINITE)
        if too_large.any():
            largest = np.abs(vectors[too_large]).max()
            raise EmbeddingsError(
                f"received token vectors with numbers up to {largest:.2g}, whose scores can exceed single precision; "
                "an IVF index takes numbers up to 1e+30: normalise the vectors, or divide all by one number."
            )
        return stored

    def locate(self, segment: Segment) -> CodedDocuments:
        """Return where the documents of a segment are in memory.

        Kernels read from these addresses without checking bounds. They rely on the check here that each array has one
        row per token in the layout of this codec, and on the offsets of the segment, which were checked when it was
        opened. The caller must keep the segment alive.

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
                    f"{self.bits} bits take {dtype} {(tokens, *shape)}; verify() lists the damaged files."
                )
        codes = arrays[CODES].ctypes.data if self.bits > 1 else 0
        first = segment.offsets[:-1]
        return CodedDocuments(
            signs=arrays[SIGNS].ctypes.data + first * (4 * self.shape.sign_words),
            codes=codes + first * self.shape.code_bytes,
            scales=arrays[SCALES].ctypes.data + first * 2,
            lengths=np.diff(segment.offsets),
        )

    def decode(self, part: Part) -> TokenEmbeddings:
        """Return the vectors of stored documents.

        Raises
        ------
        CorruptedIndexError
            If the segment was not written with this codec, or a position is outside of it.
        """
        if len(part.positions) and not 0 <= part.positions.min() <= part.positions.max() < len(part.segment):
            raise CorruptedIndexError(
                f"the positions {part.positions.min()} to {part.positions.max()} are outside of a segment with "
                f"{len(part.segment)} documents; verify() lists the damaged files."
            )
        documents, tokens = self.locate(part.segment), int(part.lengths.sum())
        if tokens * self.dim <= _FEW_NUMBERS and _KERNELS not in sys.modules:
            return self.decode_by_numpy(part)
        from latelier.indexes.ivf.kernels.codes import decode_documents

        vectors = np.empty((tokens, self.dim), dtype="float32")
        decode_documents(tuple(documents), part.positions, tuple(self.shape), vectors)
        return TokenEmbeddings(vectors, lengths_to_offsets(part.lengths))

    def decode_by_numpy(self, part: Part) -> TokenEmbeddings:
        """Return the vectors of stored documents, as `decode` does, without compiled code."""
        bits = part.rows(SCALES).astype("uint32")
        # Infinity and NaN, which only a damaged file holds, are read as zero.
        scales = (np.where(bits < _INFINITE, bits, 0).astype("uint32") << 15).view("float32")
        if self.bits == 8:
            values = part.rows(CODES).astype("float32")
            values -= np.float32(128)
        else:
            planes = [part.rows(SIGNS)]
            if self.bits > 1:
                planes += list(np.moveaxis(part.rows(CODES), 1, 0))  # the highest plane first
            code = np.zeros((len(scales), self.dim), dtype="int32")
            for plane in planes:
                code = 2 * code + _bits_of(plane, self.dim)
            values = (2 * code - (2**self.bits - 1)).astype("float32")
        values *= scales[:, None]
        return TokenEmbeddings(values, lengths_to_offsets(part.lengths))


def are_finite(arrays: dict[str, np.ndarray]) -> bool:
    """Whether arrays from `Codec.encode` show that all vectors were finite.

    Examples
    --------
    >>> vectors = TokenEmbeddings.from_list([[[1.0, -0.5], [0.0, np.inf]]])
    >>> are_finite(Codec(bits=8, dim=2).encode(vectors))
    False
    """
    return bool((arrays[SCALES] < _INFINITE).all())


def _bits_of(words: np.ndarray, dim: int) -> np.ndarray:
    """Return the bits of ``(tokens, words)`` uint32 as ``(tokens, dim)`` uint8, the lowest bit of a word first."""
    octets = np.ascontiguousarray(words).astype("<u4").view("uint8")
    return np.unpackbits(octets, axis=1, bitorder="little", count=dim)
