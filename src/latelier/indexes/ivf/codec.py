"""What an index keeps of a token: its signs, and a code of 8, 4, 2 or 1 bits per number with a scale.

The numbers themselves are described with the kernels, in `latelier.indexes.ivf.kernels.codes`. Every token is coded by
itself, so documents are stored as they come, before anything is known of the others, and merging copies rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError
from latelier.indexes.ivf.kernels.codes import decode_documents, encode_tokens, sign_words
from latelier.indexes.storage.segments import Part, Segment
from latelier.utils.ranges import lengths_to_offsets

__all__ = ["Codec"]

SIGNS, CODES, SCALES = "signs", "codes", "scales"


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
    >>> {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    {'signs': ('uint32', (1, 1)), 'scales': ('uint16', (1,)), 'codes': ('uint8', (1, 2))}
    """

    bits: int
    dim: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Bits, dim and sign words, as kernels take them."""
        return self.bits, self.dim, sign_words(self.dim)

    @property
    def strides(self) -> tuple[int, int, int]:
        """Bytes of a token's signs, code and scale."""
        words = 4 * sign_words(self.dim)
        return words, self.dim if self.bits == 8 else (self.bits - 1) * words, 2

    @property
    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Dtype, and shape per token, of each array that `encode` returns.

        Examples
        --------
        >>> Codec(bits=4, dim=128).layout["codes"]
        (dtype('uint32'), (3, 4))
        """
        words = sign_words(self.dim)
        layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            SIGNS: (np.dtype("uint32"), (words,)),
            SCALES: (np.dtype("uint16"), ()),
        }
        if self.bits == 8:
            layout[CODES] = np.dtype("uint8"), (self.dim,)
        elif self.bits > 1:
            layout[CODES] = np.dtype("uint32"), (self.bits - 1, words)
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
        stored = {SIGNS: signs, SCALES: scales}
        if self.bits > 1:
            stored[CODES] = codes if self.bits == 8 else planes
        return stored

    def addresses(self, segment: Segment) -> tuple[int, int, int]:
        """Return where the signs, codes and scales of a segment begin in memory.

        From here on nothing knows the size of the arrays any more. Kernels rely on what is compared here: that they
        hold as many rows as the segment has tokens, in the layout of this codec. That the segment's offsets do not
        fall is checked when it is opened.

        Raises
        ------
        CorruptedIndexError
            If they do not.
        """
        arrays, tokens = segment.arrays, int(segment.offsets[-1])
        for name, (dtype, shape) in self.layout.items():
            array = arrays.get(name, np.zeros(0))
            if array.dtype != dtype or array.shape != (tokens, *shape) or not array.flags.c_contiguous:
                raise CorruptedIndexError(
                    f"a segment's {name} are {array.dtype} {array.shape}, but {tokens} tokens of dim {self.dim} in "
                    f"{self.bits} bits take {dtype} {(tokens, *shape)}; verify() says which files are damaged."
                )
        codes = arrays[CODES].ctypes.data if self.bits > 1 else 0
        return arrays[SIGNS].ctypes.data, codes, arrays[SCALES].ctypes.data

    def decode(self, part: Part) -> TokenEmbeddings:
        """Return the vectors of stored documents.

        Raises
        ------
        CorruptedIndexError
            If the segment is not one of this codec, or has no such documents.
        """
        if len(part.positions) and not 0 <= part.positions.min() <= part.positions.max() < len(part.segment):
            raise CorruptedIndexError(
                f"documents at {part.positions.min()} to {part.positions.max()} of a segment were asked for, which has "
                f"{len(part.segment)}; verify() says which files are damaged."
            )
        bases, offsets = self.addresses(part.segment), part.segment.offsets
        starts = [base + offsets[:-1] * stride for base, stride in zip(bases, self.strides, strict=True)]
        vectors = np.empty((int(part.lengths.sum()), self.dim), dtype="float32")
        documents = (starts[0], starts[1], starts[2], np.diff(offsets))
        decode_documents(documents, part.positions, self.shape, vectors)
        return TokenEmbeddings(vectors, lengths_to_offsets(part.lengths))
