"""Token vectors as codes of 8, 4, 2 or 1 bits, and back to the bytes that integer kernels multiply.

The token vectors of many models lie in a narrow cone. So each index has an *axis*, a unit vector u along which its
tokens point, and the component ``d . u`` of a token is stored as a number, its *lead*. The rest, ``d - (d . u) u``, is
rotated and coded; the same rotation of the query gives ``q . d = (q . u) (d . u) + rest(q) . rest(d)``. The rotation
(random signs and Hadamard transforms) makes the numbers of the rest nearly normal and alike, which a few levels fit.

The rest is a vector of small integers times a scale. The signs of the integers are stored separately, as a binary code
of one bit per number, in words of 32 bits, since the binary stage of a search reads only signs. At 4 bits and fewer,
the sign is the highest bit of an integer's code and is not stored again.

=====  ==================================  ===========================================
bits   integers                            stored beside the binary code
=====  ==================================  ===========================================
8      -127 to 127                         a byte each, shifted by 128
4      16 of -127 to 127                   three bit planes
2      cell + (-b, -a, a or b)             one bit plane; the cell
1      cell + (-a or a)                    the cell
=====  ==================================  ===========================================

At 8 bits, ``scale = max(abs(rest)) / 127``. At fewer bits, the levels are those with the least squared error for
normally distributed numbers (Max, 1960), and the scale makes the product of the
code with the rest its square, so that products with other vectors are unbiased (RaBitQ, Gao and Long, 2024,
https://arxiv.org/abs/2405.12497; for several bits https://arxiv.org/abs/2409.09913). A scale is stored in 16 bits: the
exponent of a float32 and 8 bits of its fraction (``bits >> 15``; scales have no sign); a lead in 24, ``bits >> 8``.

At 2 and 1 bits, the integers are those of one of the 4,096 *cells* of the index's codebook, directions near which many
rests lie, and sizes with the signs of what is left, one of 16 sizes per token. So 16 bits per token hold the number of
its cell and, in the lowest four, that of its size. Cell 0 is zero: tokens that were coded before there was a codebook
are in it.

Addresses are not checked: the caller must keep the memory alive and stay within it.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof
from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.layout import (
    CELLS,
    DECIDING,
    DEVIATIONS,
    EDGES,
    ENDS,
    LARGE_2,
    SIZE_BITS,
    SIZE_MASK,
    SIZES,
    SMALL_1,
    SMALL_2,
    CodedDocuments,
    CodeShape,
    byte_width,
    sign_words,
)
from latelier.kernels.library import NUMPY, Kernel, instruction_set

# Stored scales from here on are infinity or NaN, and so are the bits of a float32 from there on.
_INFINITE = 0xFF00
_INFINITY_BITS = 0x7F800000

DOCUMENTS = ["int64*"] * len(CodedDocuments._fields)
_ROTATION = ["float32*", "float32*", "int64", "int64"]
_rotate = Kernel("rotate_rows", "float32*", "int64", "int64", *_ROTATION, "float32*", "float32*")
_restore = Kernel("restore_rows", "float32*", "int64", "int64", *_ROTATION, "float32*")
_CODES = ["uint32*", "uint8*", "uint16*", "uint8*", "uint16*"]
_encode = Kernel("encode_tokens", "int64", *_ROTATION, "float32*", "int64", *_CODES)
_unpack = Kernel("unpack_documents", *DOCUMENTS, "int64*", "int64", "int64", "uint8*", "float32*")
_unpack_tokens = Kernel("unpack_tokens", *DOCUMENTS, "int64*", "int64*", "int64", "int64", "uint8*", "float32*")
_decode = Kernel("decode_documents", *DOCUMENTS, "int64*", "int64", "int64", "float32*", "float32*")


def succeeded(result: int) -> int:
    """Return what a kernel returns, unless it had not enough memory."""
    if result < 0:
        raise MemoryError("not enough memory for a kernel of IVF")
    return result


class Rotation(NamedTuple):
    """How rests are made and rotated.

    `axis`: ``(dim,)`` float32, along which leads are measured; `flips`: ``(transforms, size)`` float32: the factors
    before each Hadamard transform, of the first `size` numbers and then of the last.
    """

    axis: np.ndarray
    flips: np.ndarray

    def arguments(self) -> tuple[np.ndarray, np.ndarray, int, int]:
        """Return what kernels take."""
        return self.axis, self.flips, *self.flips.shape


def rotate(vectors: np.ndarray, rotation: Rotation) -> tuple[np.ndarray, np.ndarray]:
    """Return the rotated rests of tokens, ``(tokens, dim)``, and their leads, ``(tokens,)``, both float32."""
    if instruction_set() == NUMPY:
        return rotate_plainly(vectors, rotation)
    vectors = np.ascontiguousarray(vectors)
    rests = np.empty_like(vectors)
    leads = np.empty(len(vectors), dtype="float32")
    _rotate(vectors, *vectors.shape, *rotation.arguments(), rests, leads)
    return rests, leads


def rotate_plainly(vectors: np.ndarray, rotation: Rotation) -> tuple[np.ndarray, np.ndarray]:
    """`rotate` in numpy."""
    axis, flips = rotation
    with np.errstate(invalid="ignore", over="ignore"):
        leads = vectors @ axis
        rests = vectors - leads[:, None] * axis
        size = flips.shape[1]
        rests[:, :size] = _transform(rests[:, :size] * flips[0])
        if len(flips) > 1:
            rests[:, -size:] = _transform(rests[:, -size:] * flips[1])
    return rests, leads


def restore(rests: np.ndarray, leads: np.ndarray, rotation: Rotation) -> np.ndarray:
    """Return the vectors that rotated rests and leads come from."""
    if instruction_set() == NUMPY:
        return restore_plainly(rests, leads, rotation)
    vectors = rests.copy()
    _restore(vectors, *vectors.shape, *rotation.arguments(), leads)
    return vectors


def restore_plainly(rests: np.ndarray, leads: np.ndarray, rotation: Rotation) -> np.ndarray:
    """`restore` in numpy."""
    axis, flips = rotation
    vectors = rests.copy()
    size = flips.shape[1]
    if len(flips) > 1:
        vectors[:, -size:] = _transform(vectors[:, -size:]) * flips[1]
    vectors[:, :size] = _transform(vectors[:, :size]) * flips[0]
    # The code of a rest has a small component along the axis.
    missing = leads - vectors @ axis
    return vectors + missing[:, None] * axis


def _transform(rows: np.ndarray) -> np.ndarray:
    """Return the Hadamard transform of each row, of a power of two numbers."""
    step = 1
    while step < rows.shape[1]:
        pairs = rows.reshape(len(rows), rows.shape[1] // (2 * step), 2, step)
        lower, upper = pairs[:, :, 0], pairs[:, :, 1]
        rows = np.stack([lower + upper, lower - upper], axis=2).reshape(rows.shape)
        step *= 2
    return rows


class Codes(NamedTuple):
    """The codes of tokens, a row each; see above.

    `signs`: ``(tokens, sign_words(dim))`` uint32; a bit is set where the integer is positive or zero. `codes`:
    ``(tokens, dim)`` uint8 at 8 bits, ``(tokens, bits - 1, sign_words(dim))`` uint32, highest plane first, at 4 and 2,
    None at 1. `scales`: ``(tokens,)`` uint16; 0xFF00 or above for a token that holds NaN or infinity. `leads`:
    ``(tokens, 3)`` uint8, lowest byte first. `cells`: ``(tokens,)`` uint16, None at 8 and 4 bits.
    """

    signs: np.ndarray
    codes: np.ndarray | None
    scales: np.ndarray
    leads: np.ndarray
    cells: np.ndarray | None


def encode(vectors: np.ndarray, rotation: Rotation, shape: CodeShape, codes: Codes) -> None:
    """Write the codes of tokens, ``(tokens, dim)`` float32.

    `codes`: what is written. Its `cells` hold the number of the cell of each token, to which that of its size is added;
    a token to which no cell is near goes to cell 0.
    """
    if instruction_set() == NUMPY:
        encode_plainly(vectors, rotation, shape, codes)
        return
    vectors = np.ascontiguousarray(vectors)
    own = None if codes.codes is None else codes.codes.view("uint8")
    arrays = codes.signs, own, codes.scales, codes.leads, codes.cells
    succeeded(_encode(addressof(shape), *rotation.arguments(), vectors, len(vectors), *arrays))


def encode_plainly(vectors: np.ndarray, rotation: Rotation, shape: CodeShape, codes: Codes) -> None:
    """`encode` in numpy."""
    rests, leads = rotate_plainly(vectors, rotation)
    bits = leads.view("uint32")
    bits = bits + np.where(bits & _INFINITY_BITS < _INFINITY_BITS, 0x80, 0).astype("uint32")
    codes.leads[:] = bits[:, None].astype("<u4").view("uint8")[:, 1:]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if shape.bits == 8:
            peaks = (np.abs(rests).max(axis=1, initial=0) / np.float32(127)).view("uint32")
            stored = (peaks + np.uint32(0x7FFF)) >> np.uint32(15)
            scales = (stored << np.uint32(15)).view("float32").astype("float64")
            inverses = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
            numbers = np.nan_to_num(np.rint(rests * inverses[:, None]), posinf=0, neginf=0).astype("int64") + 128
            codes.codes[:] = numbers  # type: ignore[index]
            codes.scales[:] = np.where(np.isfinite(rests).all(axis=1), stored, _INFINITE)
            codes.signs[:] = _planes(numbers >= 128)
            return
        exact = rests.astype("float64")
        norms = np.linalg.norm(exact, axis=1)
        positive, large, integers = _integers(exact, norms, shape, codes.cells)
        products = (integers * exact).sum(axis=1)
        scales = np.where(products > 0, norms**2 / products, 0).astype("float32")
    stored = np.minimum((scales.view("uint32") + np.uint32(0x4000)) >> np.uint32(15), _INFINITE - 1)
    codes.scales[:] = np.where(np.isfinite(norms), stored, _INFINITE)
    codes.signs[:] = _planes(positive)
    for plane in range(shape.bits - 1):
        codes.codes[:, plane] = _planes(large >> (shape.bits - 2 - plane) & 1)  # type: ignore[index]


def _integers(
    rests: np.ndarray, norms: np.ndarray, shape: CodeShape, cells: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which numbers are positive, the numbers of their sizes, and the integers; `cells` get their sizes."""
    deviations = norms / np.sqrt(shape.dim)
    if cells is None:
        numbers = sum(
            (np.abs(rests) >= edge * deviations[:, None] for edge in EDGES[4]), np.zeros(rests.shape, "int64")
        )
        return rests >= 0, numbers, np.where(rests >= 0, 1, -1) * np.array(SIZES[4])[numbers]
    centers = _codebook(shape)[cells, : shape.dim].astype("float64")
    products = (centers * rests).sum(axis=1)
    left = rests * ((centers**2).sum(axis=1) / products)[:, None] - centers
    found = np.sqrt((left**2).mean(axis=1))
    near = (products > 0) & (found <= DEVIATIONS[SIZE_MASK])
    sizes = np.where(near, np.searchsorted(ENDS[:-1], found, side="right"), SIZE_MASK)
    cells[:] = np.where(near, cells << SIZE_BITS, 0) | sizes
    deviations = np.where(deviations > 0, DEVIATIONS[SIZE_MASK] / deviations, 0)
    left = np.where(near[:, None], left, rests * deviations[:, None])
    large = (np.abs(left) >= EDGES[2][0] * DEVIATIONS[sizes][:, None]).astype("int64")
    if shape.bits == 1:
        large[:] = 0
    return left >= 0, large, _with_cells(cells, left >= 0, large, shape)


def _with_cells(cells: np.ndarray, positive: np.ndarray, large: np.ndarray, shape: CodeShape) -> np.ndarray:
    """Return the integers of 2-bit and 1-bit codes, ``(tokens, dim)``."""
    sizes = cells & SIZE_MASK
    small = SMALL_1 if shape.bits == 1 else SMALL_2
    levels = np.where(large > 0, LARGE_2[sizes][:, None], small[sizes][:, None])
    centers = _codebook(shape)[cells >> SIZE_BITS, : shape.dim].astype("int64")
    return np.clip(centers + np.where(positive, levels, -levels), -128, 127)


def _codebook(shape: CodeShape) -> np.ndarray:
    """Return the integers of the cells, ``(4096, byte_width(dim))`` int8."""
    return read_memory(shape.codebook or 0, CELLS * byte_width(shape.dim), "int8").reshape(CELLS, -1)


def _planes(bits: np.ndarray) -> np.ndarray:
    """Return bits, ``(tokens, dim)``, as words."""
    words = np.zeros((len(bits), sign_words(bits.shape[1])), dtype="<u4")
    packed = np.packbits(bits.astype(bool), axis=1, bitorder="little")
    words.view("uint8")[:, : packed.shape[1]] = packed
    return words


def read_memory(address: int, count: int, dtype: str) -> np.ndarray:
    """Return the array at an address, which lives as long as the memory."""
    size = count * np.dtype(dtype).itemsize
    memory = (ctypes.c_char * size).from_address(address) if size else b""
    return np.frombuffer(memoryview(memory), dtype)


def unpack_documents(
    documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape, rows: np.ndarray, scales: np.ndarray
) -> None:
    """Write the tokens of some documents, one document after the other, in the form that kernels multiply.

    `chosen`: ``(n,)`` int64: documents. `rows`: ``(tokens, byte_width(dim))`` uint8, written: integers + 128; beyond
    the dim 128, which stands for zero. `scales`: ``(tokens,)`` float32, written.
    """
    if instruction_set() == NUMPY:
        found = unpack_plainly(documents, chosen, shape)
        rows[:], scales[:] = found.rows, found.scales
        return
    _unpack(*documents, chosen, len(chosen), addressof(shape), rows, scales)


def unpack_tokens(
    documents: CodedDocuments,
    owners: np.ndarray,
    tokens: np.ndarray,
    shape: CodeShape,
    rows: np.ndarray,
    scales: np.ndarray,
) -> None:
    """Write single tokens in the form that kernels multiply, see `unpack_documents`.

    `owners`, `tokens`: ``(n,)`` int64 both: the document of each, and its number in the document.
    """
    if instruction_set() == NUMPY:
        for document in np.unique(owners):
            own = owners == document
            found = unpack_plainly(documents, np.array([document]), shape)
            rows[own], scales[own] = found.rows[tokens[own]], found.scales[tokens[own]]
        return
    _unpack_tokens(*documents, owners, tokens, len(owners), addressof(shape), rows, scales)


def decode_documents(documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape) -> tuple[np.ndarray, np.ndarray]:
    """Return the rests, ``(tokens, dim)`` float32, and the leads, ``(tokens,)``, of some documents."""
    if instruction_set() == NUMPY:
        found = unpack_plainly(documents, chosen, shape)
        return (found.rows[:, : shape.dim] - np.float32(128)) * found.scales[:, None], found.leads
    tokens = int(documents.lengths[chosen].sum())
    rests = np.empty((tokens, shape.dim), dtype="float32")
    leads = np.empty(tokens, dtype="float32")
    succeeded(_decode(*documents, chosen, len(chosen), addressof(shape), rests, leads))
    return rests, leads


class UnpackedTokens(NamedTuple):
    """Tokens as `unpack_documents` writes them, and their leads, ``(tokens,)`` float32."""

    rows: np.ndarray
    scales: np.ndarray
    leads: np.ndarray


def unpack_plainly(documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape) -> UnpackedTokens:
    """Return the tokens of some documents, in numpy."""
    parts = [_unpack_plainly(documents, d, shape) for d in chosen.tolist()]
    rows = np.concatenate([part.rows for part in parts] or [np.empty((0, byte_width(shape.dim)), "uint8")])
    scales, leads = (np.concatenate([part[i] for part in parts] or [np.empty(0, "float32")]) for i in (1, 2))
    return UnpackedTokens(rows, scales, leads)


def _unpack_plainly(documents: CodedDocuments, document: int, shape: CodeShape) -> UnpackedTokens:
    tokens = int(documents.lengths[document])
    words = shape.sign_words

    def read(name: str, per_token: int, dtype: str) -> np.ndarray:
        return read_memory(int(getattr(documents, name)[document]), tokens * per_token, dtype)

    rows = np.full((tokens, byte_width(shape.dim)), 128, dtype="uint8")
    if shape.bits == 8:
        rows[:, : shape.dim] = read("codes", shape.dim, "uint8").reshape(tokens, shape.dim)
    else:
        positive = _bits(read("signs", words, "<u4").reshape(tokens, words), shape.dim)
        planes = read("codes", words * (shape.bits - 1), "<u4").reshape(tokens, shape.bits - 1, words)
        numbers = np.zeros(positive.shape, dtype="int64")
        for plane in range(shape.bits - 1):
            numbers = numbers << 1 | _bits(planes[:, plane], shape.dim)
        if shape.bits == 4:
            integers = np.where(positive > 0, 1, -1) * np.array(SIZES[4])[numbers]
        else:
            integers = _with_cells(read("cells", 1, "<u2"), positive > 0, numbers, shape)
        rows[:, : shape.dim] = integers + 128
    # What only a damaged file holds, infinity and NaN, is read as zero.
    stored = read("scales", 1, "<u2").astype("uint32")
    scales = (np.where(stored < _INFINITE, stored, 0).astype("uint32") << np.uint32(15)).view("float32")
    wide = np.zeros((tokens, 4), dtype="uint8")
    wide[:, 1:] = read("leads", 3, "uint8").reshape(tokens, 3)
    bits = wide.view("<u4")[:, 0]
    leads = np.where(bits & _INFINITY_BITS < _INFINITY_BITS, bits, 0).astype("uint32").view("float32")
    return UnpackedTokens(rows, scales, leads)


def token_signs(documents: CodedDocuments, document: int, shape: CodeShape) -> np.ndarray:
    """Return the signs that the binary stage reads, in numpy, ``(tokens, dim)`` bool: some are those of the cell."""
    tokens = int(documents.lengths[document])
    words = read_memory(int(documents.signs[document]), tokens * shape.sign_words, "<u4")
    positive = _bits(words.reshape(tokens, shape.sign_words), shape.dim) > 0
    if not shape.codebook:
        return positive
    cells = read_memory(int(documents.cells[document]), tokens, "<u2") >> SIZE_BITS
    centers = _codebook(shape)[cells, : shape.dim]
    return np.where(np.abs(centers.astype("int16")) >= DECIDING, centers > 0, positive)


def _bits(words: np.ndarray, dim: int) -> np.ndarray:
    """Return the first `dim` bits of each row of words, uint8."""
    return np.unpackbits(np.ascontiguousarray(words).view("uint8"), axis=1, bitorder="little", count=dim)
