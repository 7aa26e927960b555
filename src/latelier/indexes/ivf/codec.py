"""How IVF stores documents: token vectors as codes, and a table of where each document begins.

`latelier.indexes.ivf.kernels.codes` describes the codes. Every token is coded separately, given the axis that the first
write chooses, so documents can be stored before there are centroids, and merging segments only copies rows.

The *ordinal* of a document is its position in the table. The documents in the inverted lists come first, in the order
of `InvertedLists.numbers`, so the entries of the lists are ordinals. Of these, removed documents keep their ordinals,
but are not live, and no search finds them. The documents that are in no list yet come last.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, EmbeddingsError
from latelier.indexes.ivf.kernels import codes as code_kernels
from latelier.indexes.ivf.kernels.centroids import (
    CentroidLevels,
    PackedCentroids,
    group_rows,
    nearest_centroids,
    nearest_in_two_levels,
    pack_centroids,
    spherical_kmeans,
)
from latelier.indexes.ivf.layout import CELLS as CELL_COUNT
from latelier.indexes.ivf.layout import (
    COARSE_CELLS,
    DECIDING,
    FINE_CELLS,
    GROUP,
    PLAIN_BITS,
    START_BITS,
    CodedDocuments,
    CodeShape,
    byte_width,
    sign_words,
)
from latelier.indexes.single_vectors import RandomBits
from latelier.indexes.store.segments import AROUND, Part, Segment, TokenArray, release_memory
from latelier.kernels.threads import for_ranges
from latelier.utils.batching import lengths_to_offsets, split_by_rows

# Names of the stored arrays.
SIGNS = "signs"
CODES = "codes"
SCALES = "scales"
LEADS = "leads"
CELLS = "cells"
# Scales and leads below these, 2**40 and 2**50, are those of vectors that are far from too long: the integers of 8,192
# dims are at most 2**14 long. The last byte of a lead is its sign and the exponent without its lowest bit.
_LARGE_SCALE = int(np.float32(2**40).view("uint32")) >> 15
_LARGE_LEAD = (50 + 127) // 2
# Of more dims, the sums of the kernels, up to 255 * 127 * dim, could exceed 32 bits.
MOST_DIMS = 65_536
_AXIS_TOKENS = 8192
_AXIS_STEPS = 20
# A codebook is chosen from so many tokens, at the first write with which an index has them.
CODEBOOK_TOKENS = 1 << 15


def choose_axis(vectors: np.ndarray) -> np.ndarray:
    """Return the leading singular direction of some tokens, ``(tokens, dim)``, not centred, by power iteration.

    Any unit vector gives correct scores; this one leaves the least to the codes. All zeros if all tokens are.
    """
    rows = vectors[:: -(-len(vectors) // _AXIS_TOKENS)].astype("float64")
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        usable = np.isfinite(lengths[:, 0]) & (lengths[:, 0] > 0)
    rows = rows[usable] / lengths[usable]
    axis = rows.sum(axis=0)
    if not np.linalg.norm(axis) > 1e-6 and len(rows):  # opposite tokens
        axis = rows[0]
    for _ in range(_AXIS_STEPS):
        axis = rows.T @ (rows @ (axis / max(np.linalg.norm(axis), 1e-300)))
    return np.float32(axis / max(np.linalg.norm(axis), 1e-300))


def read_axis(stored: Any, dim: int) -> np.ndarray:
    """Return a stored axis, the bytes of its float32 in hexadecimal; raise `CorruptedIndexError` if it is none."""
    try:
        axis = np.frombuffer(bytes.fromhex(stored), "<f4").astype("float32")
    except (TypeError, ValueError):
        axis = np.zeros(0, "float32")
    if len(axis) != dim or not np.linalg.norm(axis) < 1.001:
        raise CorruptedIndexError(f"the stored axis of dim {dim} is damaged; restore a copy of the index.")
    return axis


def write_axis(axis: np.ndarray) -> str:
    """Return an axis as it is stored."""
    return axis.astype("<f4").tobytes().hex()


# The integers of a codebook are multiples of this, -7 to 7 times, which are stored in 4 bits each.
_LEVEL = 10
_LEVELS = 7


def write_codebook(codebook: np.ndarray) -> str:
    """Return a codebook as it is stored."""
    pairs = (codebook // _LEVEL + _LEVELS).astype("uint8").reshape(-1, 2)
    return base64.b64encode((pairs[:, 0] | pairs[:, 1] << 4).tobytes()).decode()


def read_codebook(stored: Any, dim: int) -> np.ndarray:
    """Return a stored codebook; raise `CorruptedIndexError` if it is none."""
    try:
        pairs = np.frombuffer(base64.b64decode(stored, validate=True), "uint8").reshape(-1, 1) >> [0, 4] & 15
        codebook = (pairs.reshape(CELL_COUNT, dim).astype("int8") - _LEVELS) * np.int8(_LEVEL)
    except (TypeError, ValueError) as error:
        damage = f"the stored codebook of dim {dim} is damaged; restore a copy of the index."
        raise CorruptedIndexError(damage) from error
    return codebook


# Iterations of each level; the root mean square of the integers of a cell; words of binary codes read together.
_COARSE_ITERATIONS = 8
_FINE_ITERATIONS = 12
_CELL_SIZE = 28
_WORDS = 4


class Cells:
    """A codebook in the forms that kernels take: the cells, directions near which many rests lie, in two levels.

    `integers`: ``(4096, byte_width(dim))`` int8, all zeros without a codebook. `masks`: for each four words of binary
    codes and each cell, the bits on which it decides, and those that it sets.
    """

    def __init__(self, codebook: np.ndarray | None, dim: int) -> None:
        parts = -(-sign_words(dim) // _WORDS)
        self.integers = np.zeros((CELL_COUNT, byte_width(dim)), dtype="int8")  # take no memory while they are zeros
        self.masks = np.zeros((parts, CELL_COUNT, 2, _WORDS), dtype="uint32")
        if codebook is not None:
            self.integers[:, :dim] = codebook
            decided = np.abs(self.integers.astype("int16")) >= DECIDING
            words = np.zeros((CELL_COUNT, _WORDS * parts), dtype="<u4")
            for i, bits in enumerate((decided, decided & (self.integers > 0))):
                words[:, : sign_words(dim)] = np.packbits(bits, axis=1, bitorder="little").view("<u4")
                self.masks[:, :, i] = words.reshape(CELL_COUNT, parts, _WORDS).swapaxes(0, 1)

    @cached_property
    def _packed(self) -> CentroidLevels:
        fine = self.integers.astype("float32")
        coarse = fine.reshape(COARSE_CELLS, FINE_CELLS, -1).sum(axis=1)
        coarse /= np.maximum(np.linalg.norm(coarse, axis=1, keepdims=True), 1e-30)
        return CentroidLevels(_pack(coarse), _pack(fine), np.arange(COARSE_CELLS + 1) * (FINE_CELLS // GROUP))

    def nearest(self, rows: np.ndarray) -> np.ndarray:
        """Return the cell of each token, uint16, given as ``(tokens, byte_width(dim))`` uint8, shifted by 128."""
        return nearest_in_two_levels(rows, self._packed)[0].astype("uint16")


def _pack(centroids: np.ndarray) -> PackedCentroids:
    return pack_centroids(centroids, byte_width(centroids.shape[1]), np.abs(centroids).max() / 127)


def _train_cells(rows: np.ndarray, dim: int) -> np.ndarray:
    """Return a codebook, given tokens as for `Cells.nearest`; the cells under one coarse cell follow each other."""
    lengths = np.linalg.norm(rows.astype("float32") - 128, axis=1)
    rows = rows[lengths > 0]
    scales = 1 / lengths[lengths > 0]
    cells = np.zeros((COARSE_CELLS, FINE_CELLS, dim), dtype="float32")
    if len(rows):
        coarse = np.empty((min(len(rows), COARSE_CELLS), dim), dtype="float32")
        spherical_kmeans(rows, scales, _COARSE_ITERATIONS, coarse)
        offsets, order = group_rows(nearest_centroids(rows, _pack(coarse))[0], COARSE_CELLS)
        for own, (first, last) in zip(cells, pairwise(offsets.tolist()), strict=True):
            if first < last:
                some = order[first:last]
                spherical_kmeans(rows[some], scales[some], _FINE_ITERATIONS, own[: last - first])
    levels = np.rint(_CELL_SIZE / _LEVEL * np.sqrt(dim) * cells.reshape(CELL_COUNT, dim)).clip(-_LEVELS, _LEVELS)
    levels[0] = 0
    return (_LEVEL * levels).astype("int8")


@lru_cache(8)
def _flips(dim: int, seed: int) -> np.ndarray:
    """Return the factors before each Hadamard transform, ``(transforms, size)`` float32: random signs over sqrt(size).

    If the dim is no power of two, a transform of its first numbers is followed by one of its last; these overlap.
    """
    size = 1 << max(0, dim.bit_length() - 1)
    signs = RandomBits(seed).signs((1 if size == dim else 2, size))
    return np.float32(signs / np.sqrt(size))


@dataclass(frozen=True, eq=False)
class Codec:
    """Converts tokens of one dim to codes of 8, 4, 2 or 1 bits per number, and back.

    `axis`: ``(dim,)`` float32, see `choose_axis`; None is all zeros, with which all leads are 0. `codebook`: the
    integers of the cells of 2 and 1 bits, see `Cells`; None is all zeros. `seed`: of the rotation; that of all indexes
    is 0.
    """

    bits: int
    dim: int
    axis: np.ndarray | None = None
    codebook: np.ndarray | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dim > MOST_DIMS:
            raise EmbeddingsError(f"received vectors of {self.dim:,} dims; an IVF index takes up to {MOST_DIMS:,}.")

    @cached_property
    def rotation(self) -> code_kernels.Rotation:
        """The axis and the flips."""
        axis = np.zeros(self.dim, "float32") if self.axis is None else self.axis
        return code_kernels.Rotation(axis, _flips(self.dim, self.seed))

    @property
    def has_cells(self) -> bool:
        """Whether tokens are coded as what a cell leaves of them."""
        return self.bits not in PLAIN_BITS

    @property
    def cells(self) -> Cells:
        """The cells, for kernels, which read them by address: all threads get the same."""
        found: Cells | None = self.__dict__.get("_cells")
        return found or self.__dict__.setdefault("_cells", Cells(self.codebook, self.dim))

    def choose_codebook(self, vectors: np.ndarray) -> np.ndarray:
        """Return a codebook for some tokens, and others of their kind."""
        with np.errstate(invalid="ignore", over="ignore"):
            lengths = np.linalg.norm(vectors, axis=1)
        usable = np.isfinite(lengths) & (lengths > 0)
        return _train_cells(self.byte_rows(vectors[usable] / lengths[usable, None]), self.dim)

    def turned(self) -> Codec:
        """Return a codec with another rotation, and the same cells."""
        other = replace(self, seed=1)
        if self.codebook is None:
            return other
        cells = self.codebook.astype("float32")
        cells = code_kernels.restore(cells, np.zeros(len(cells), dtype="float32"), self.rotation)
        return replace(other, codebook=np.rint(other.rotate(cells)[0]).clip(-127, 127).astype("int8"))

    def rotate(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rotated rests of tokens, ``(tokens, dim)`` float32, and their leads, ``(tokens,)`` float32."""
        return code_kernels.rotate(vectors, self.rotation)

    @cached_property
    def shape(self) -> CodeShape:
        """The sizes of a token's codes, for kernels."""
        if not self.has_cells:
            return CodeShape(self.bits, self.dim)
        return CodeShape(self.bits, self.dim, self.cells.integers.ctypes.data, self.cells.masks.ctypes.data)

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that a token's numbers are read from; below 8 bits, the binary code is a part of them."""
        return tuple(name for name in self.layout if name != SIGNS or self.bits < 8)

    @cached_property
    def sign_arrays(self) -> tuple[str, ...]:
        """Names of the arrays that the binary codes are read from."""
        if self.has_cells:
            return (SIGNS, CELLS)
        return (SIGNS,)

    @cached_property
    def layout(self) -> dict[str, TokenArray]:
        """Dtype and shape per token of each array that `encode` returns."""
        words = sign_words(self.dim)
        layout: dict[str, TokenArray] = {
            SIGNS: TokenArray(np.dtype("uint32"), (words,)),
            SCALES: TokenArray(np.dtype("uint16"), ()),
            LEADS: TokenArray(np.dtype("uint8"), (3,)),
        }
        if self.has_cells:
            layout[CELLS] = TokenArray(np.dtype("uint16"), ())
        if self.bits == 8:
            layout[CODES] = TokenArray(np.dtype("uint8"), (self.dim,))
        elif self.bits > 1:
            layout[CODES] = TokenArray(np.dtype("uint32"), (self.bits - 1, words))
        return layout

    def encode(self, embeddings: TokenEmbeddings, into: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Return the arrays to store, one row per token, in the memory of `into` if it is given.

        What is not in range is left to `are_in_range`.
        """
        vectors = embeddings.vectors
        stored = into or {name: np.empty((len(vectors), *shape), dtype) for name, (dtype, shape) in self.layout.items()}
        codes = code_kernels.Codes(stored[SIGNS], stored.get(CODES), stored[SCALES], stored[LEADS], stored.get(CELLS))
        if codes.cells is not None:
            codes.cells[:] = 0 if self.codebook is None else self.cells.nearest(self.byte_rows(vectors))
        code_kernels.encode(vectors, self.rotation, self.shape, codes)
        return stored

    def byte_rows(self, vectors: np.ndarray) -> np.ndarray:
        """Return the rotated rests of tokens in 8 bits, ``(tokens, byte_width(dim))`` uint8, shifted by 128."""
        rows = np.full((len(vectors), byte_width(self.dim)), 128, dtype="uint8")
        plain = Codec(8, self.dim, self.axis, seed=self.seed)
        rows[:, : self.dim] = plain.encode(TokenEmbeddings(vectors, [0, len(vectors)]))[CODES]
        return rows

    def locate(self, segment: Segment) -> CodedDocuments:
        """Return where the documents of a segment are in memory, which the caller must keep alive.

        Kernels read from these addresses without checking bounds. They rely on the check here that each array has one
        row per token, and on the offsets of the segment, which were checked when it was opened.
        """
        arrays = segment.arrays
        tokens = int(segment.offsets[-1])
        for name, (dtype, shape) in self.layout.items():
            array = arrays.get(name, np.zeros(0))
            if array.dtype != dtype or array.shape != (tokens, *shape) or not array.flags.c_contiguous:
                raise CorruptedIndexError(
                    f"a segment's {name} are {array.dtype} {array.shape}, but {tokens} tokens of dim {self.dim} in "
                    f"{self.bits} bits take {dtype} {(tokens, *shape)}; verify() lists the damaged files."
                )
        if self.bits > 1:
            codes = arrays[CODES].ctypes.data
        else:
            codes = 0
        first = segment.offsets[:-1]
        return CodedDocuments(
            signs=arrays[SIGNS].ctypes.data + first * (4 * self.shape.sign_words),
            codes=codes + first * self.shape.code_bytes,
            scales=arrays[SCALES].ctypes.data + first * 2,
            leads=arrays[LEADS].ctypes.data + first * 3,
            cells=(arrays[CELLS].ctypes.data if self.has_cells else 0) + first * 2,
            lengths=np.diff(segment.offsets),
        )

    def decode(self, part: Part) -> TokenEmbeddings:
        """Return the vectors of stored documents."""
        if len(part.positions) and not 0 <= part.positions.min() <= part.positions.max() < len(part.segment):
            raise CorruptedIndexError(
                f"the positions {part.positions.min()} to {part.positions.max()} are outside of a segment with "
                f"{len(part.segment)} documents; verify() lists the damaged files."
            )
        rests, leads = code_kernels.decode_documents(self.locate(part.segment), part.positions, self.shape)
        vectors = code_kernels.restore(rests, leads, self.rotation)
        return TokenEmbeddings(vectors, lengths_to_offsets(part.lengths))


class CodecChoice(NamedTuple):
    """What the codes of a dim depend on, as it is stored; None where it is not chosen yet."""

    axis: str | None
    codebook: str | None

    def is_final(self, bits: int) -> bool:
        """Whether all is chosen for codes of so many bits."""
        return self.axis is not None and (bits in PLAIN_BITS or self.codebook is not None)


def choice_names(dim: int, since: int) -> tuple[str, str]:
    """Return the names of the settings that hold what is chosen for documents of a dim from a row id on."""
    return f"axis_{dim}_{since}", f"codebook_{dim}_{since}"


def read_choice(setting: Callable[[str], Any], dim: int, since: int) -> CodecChoice:
    """Return what is chosen for documents of a dim from a row id on; `setting` returns a setting by its name."""
    return CodecChoice(*map(setting, choice_names(dim, since)))


def choose_codec(
    before: CodecChoice,
    bits: int,
    first: TokenEmbeddings,
    tokens: int,
    stored: Callable[[], Sequence[TokenEmbeddings]],
) -> CodecChoice:
    """Choose what is missing, and can be chosen once there are enough tokens.

    `first`: some of the documents that are being added; `tokens`: of those in the index, which `stored` returns.
    """
    axis = before.axis or write_axis(choose_axis(first.vectors))
    codebook = before.codebook
    if bits not in PLAIN_BITS and codebook is None and tokens + first.num_tokens >= CODEBOOK_TOKENS:
        codec = Codec(START_BITS, first.dim, read_axis(axis, first.dim))
        sample = TokenEmbeddings.concatenate([*stored(), first])
        codebook = write_codebook(codec.choose_codebook(sample.vectors))
    return CodecChoice(axis, codebook)


def are_in_range(arrays: dict[str, np.ndarray]) -> bool:
    """Whether arrays from `Codec.encode` show that all vectors were finite, and far from too long."""
    leads = arrays[LEADS][:, 2] & 0x7F
    return bool((arrays[SCALES] < _LARGE_SCALE).all() and (leads < _LARGE_LEAD).all())


class TokenRows(NamedTuple):
    """Tokens in the form that kernels multiply.

    `codes`: ``(tokens, byte_width(dim))`` uint8: integers + 128; `scales`: ``(tokens,)`` float32.
    """

    codes: np.ndarray
    scales: np.ndarray


class DocumentTable:
    """The documents of a snapshot, by ordinal.

    `numbers`: row ids, ``(documents,)`` int64; passages are documents here, and `owners` are the numbers of the
    documents that they are of, None if all are whole. `documents`: where each is in memory, with its tokens (0:
    removed and in no segment). `alive`: uint8; `live`: ordinals of live documents. `listed`: how many are in the
    inverted lists, with the ordinals below it; `unlisted`: live ones that are not. `read`: token arrays whose mapped
    memory is given back after use, `window` bytes at a time.
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
        self.segments = [part.segment for part in parts]  # keeps them alive: kernels read their memory by address
        size = self.listed
        for segment in self.segments:
            ordinals = _places(listed_numbers, segment.row_ids)
            new = np.flatnonzero(ordinals < 0)
            ordinals[new] = np.arange(size, size + len(new))
            size += len(new)
            self._ordinals[id(segment)] = ordinals
        self.numbers = np.zeros(size, dtype="int64")
        self.numbers[: self.listed] = listed_numbers
        self.owners = self.numbers.copy() if any(each.ranges is not None for each in self.segments) else None
        self.documents = CodedDocuments(*(np.zeros(size, dtype="int64") for _ in CodedDocuments._fields))
        for segment in self.segments:
            ordinals = self._ordinals[id(segment)]
            self.numbers[ordinals] = segment.row_ids
            if self.owners is not None:
                self.owners[ordinals] = segment.numbers
            for column, values in zip(self.documents, codec.locate(segment), strict=True):
                column[ordinals] = values
        self.alive = self.mask(parts)
        self.live = np.flatnonzero(self.alive)
        self.unlisted = self.live[np.searchsorted(self.live, self.listed) :]
        self.tokens = int(self.documents.lengths.sum())
        self._window = window
        self._read = frozenset(read)

    @property
    def places(self) -> list[tuple[Segment, np.ndarray]]:
        """The segments, and the ordinals of the documents of each."""
        return [(segment, self._ordinals[id(segment)]) for segment in self.segments]

    def find(self, row_ids: np.ndarray) -> np.ndarray:
        """Return the ordinals of documents by their row ids, which the table must have."""
        places = _places(self.numbers[: self.listed], row_ids)
        others = self.listed + np.searchsorted(self.numbers[self.listed :], row_ids)
        return np.where(places < 0, others, places)

    def count_tokens(self, ordinals: np.ndarray) -> int:
        """Return the number of tokens of some documents."""
        return int(self.documents.lengths[ordinals].sum())

    def unpack(self, ordinals: np.ndarray) -> TokenRows:
        """Return the tokens of some documents, one document after the other."""
        offsets = lengths_to_offsets(self.documents.lengths[ordinals])
        width = byte_width(self.codec.dim)
        rows = TokenRows(np.empty((offsets[-1], width), dtype="uint8"), np.empty(offsets[-1], "float32"))

        def unpack(documents: CodedDocuments, places: np.ndarray, ends: np.ndarray, first: int, last: int) -> None:
            some = slice(ends[first], ends[last])
            own = rows.codes[some], rows.scales[some]
            code_kernels.unpack_documents(documents, places[first:last], self.codec.shape, *own)

        for some, documents, places in self.windows(ordinals, *self.codec.arrays):
            ends = offsets[some.start : some.stop + 1]
            for_ranges(partial(unpack, documents, places, ends), ends, width)
        return rows

    @property
    def is_addressable(self) -> bool:
        """Whether any tokens can be read at once; if not, the memory of some of their codes is given back after use."""
        return self._read.isdisjoint(self.codec.arrays)

    def unpack_tokens(self, ordinals: np.ndarray, offsets: np.ndarray, numbers: np.ndarray) -> TokenRows:
        """Return the tokens `numbers` of some documents, if `is_addressable`.

        `offsets`: the number of the first token of each document, ``(documents + 1,)`` int64.
        """
        owners = np.searchsorted(offsets, numbers, side="right") - 1
        rows = TokenRows(
            np.empty((len(numbers), byte_width(self.codec.dim)), dtype="uint8"), np.empty(len(numbers), "float32")
        )
        code_kernels.unpack_tokens(self.documents, ordinals[owners], numbers - offsets[owners], self.codec.shape, *rows)
        return rows

    def windows(self, ordinals: np.ndarray, *names: str) -> Iterator[tuple[slice, CodedDocuments, np.ndarray]]:
        """Yield documents whose codes kernels can read: all at once, or in blocks that take a bounded memory.

        Yields which of `ordinals` these are; where codes are, until the next ones are asked for; and the ordinals.
        """
        read = [name for name in names if name in self._read]
        if not read:
            yield slice(0, len(ordinals)), self.documents, ordinals
            return
        layout = self.codec.layout
        lengths = self.documents.lengths[ordinals]
        resident = np.zeros(len(ordinals), dtype="int64")
        for name in read:
            begins = getattr(self.documents, name)[ordinals]
            sizes = lengths * (layout[name].dtype.itemsize * math.prod(layout[name].shape))
            gaps = np.abs(begins - np.concatenate([[0], (begins + sizes)[:-1]]))
            resident += sizes + np.minimum(gaps, AROUND)
        for first, last in split_by_rows(lengths_to_offsets(resident), max(1, self._window)):
            yield slice(first, last), self.documents, ordinals[first:last]
            for segment in self.segments:
                for name in read:
                    release_memory(segment.arrays[name])

    def mask(self, parts: Sequence[Part]) -> np.ndarray:
        """Return ``(documents,)`` uint8: 1 for the documents of these parts. Their segments must be in the table."""
        mask = np.zeros(len(self.numbers), dtype="uint8")
        for part in parts:
            mask[self._ordinals[id(part.segment)][part.positions]] = 1
        return mask


def _check_disjoint(parts: Sequence[Part]) -> None:
    ends = [(int(part.segment.row_ids[0]), int(part.segment.row_ids[-1])) for part in parts if len(part.segment)]
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
