"""Codes in numpy: what a process needs that writes or searches a few thousand documents.

Importing numba and loading kernels takes longer than such a search, and compiling them far longer. Codes and scores are
those of `latelier.indexes.ivf.kernels.codes`, up to the order of sums in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from latelier.indexes.ivf.layout import (
    EDGES,
    LARGE_2,
    SIZE_BITS,
    SIZE_MASK,
    SIZES,
    SMALL_1,
    SMALL_2,
    START_BITS,
    sign_words,
)

# A transform takes a matrix of so many rows and columns at most, 4 MB.
MOST_DIMS = 1024
# Tokens that are decoded at a time, whose numbers stay in a cache.
_TOKENS = 1024
_INFINITE = 0xFF00
_INFINITY_BITS = 0x7F800000


@lru_cache(2)
def _hadamard(size: int) -> np.ndarray:
    """Return the matrix of the Hadamard transform of `size` numbers, a power of two."""
    matrix = np.ones((1, 1), dtype="float32")
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def rotate(vectors: np.ndarray, axis: np.ndarray, flips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rotated rests of tokens, ``(tokens, dim)``, and their leads, ``(tokens,)``; see `Codec.rotation`."""
    with np.errstate(invalid="ignore", over="ignore"):
        leads = vectors @ axis
        rests = vectors - leads[:, None] * axis
        size = flips.shape[1]
        matrix = _hadamard(size)
        rests[:, :size] = (rests[:, :size] * flips[0]) @ matrix
        if len(flips) > 1:
            rests[:, -size:] = (rests[:, -size:] * flips[1]) @ matrix
    return rests, leads


def restore(rests: np.ndarray, axis: np.ndarray, flips: np.ndarray, leads: np.ndarray) -> np.ndarray:
    """Return the vectors that rotated rests and leads come from."""
    rows = rests.copy()
    size = flips.shape[1]
    matrix = _hadamard(size)
    if len(flips) > 1:
        rows[:, -size:] = (rows[:, -size:] @ matrix) * flips[1]
    rows[:, :size] = (rows[:, :size] @ matrix) * flips[0]
    # The code of a rest has a small component along the axis.
    missing = leads - rows @ axis
    return rows + missing[:, None] * axis


def encode(rests: np.ndarray, leads: np.ndarray) -> dict[str, np.ndarray]:
    """Return codes of `START_BITS` and scales and leads of rotated tokens, by the names of `Codec.layout`."""
    tokens, dim = rests.shape
    words = sign_words(dim)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        norms = np.sqrt(np.einsum("td,td->t", rests, rests, dtype="float64"))
        sizes = np.abs(rests)
        deviations = (norms / np.sqrt(dim)).astype("float32")
        numbers = np.zeros((tokens, dim), dtype="uint8")
        for edge in EDGES[START_BITS]:
            numbers += sizes >= (np.float32(edge) * deviations)[:, None]
        levels = np.array(SIZES[START_BITS], dtype="float32")
        products = np.einsum("td,td->t", levels[numbers], sizes, dtype="float64")
        scales = np.where(products > 0, norms**2 / products, 0).astype("float32")
    stored = (scales.view("uint32") + 0x4000) >> 15
    stored = np.where(np.isfinite(norms), np.minimum(stored, _INFINITE - 1), _INFINITE)
    bits = leads.astype("float32").view("uint32")
    bits = bits + np.where(bits & _INFINITY_BITS < _INFINITY_BITS, 0x80, 0).astype("uint32")
    planes = np.zeros((tokens, START_BITS, words), dtype="<u4")
    packed = planes.view("uint8")
    used = -(-dim // 8)
    packed[:, 0, :used] = np.packbits(rests >= 0, axis=1, bitorder="little")
    for plane in range(1, START_BITS):
        bit = numbers >> (START_BITS - 1 - plane) & 1
        packed[:, plane, :used] = np.packbits(bit, axis=1, bitorder="little")
    return {
        "signs": planes[:, 0].astype("uint32"),
        "codes": planes[:, 1:].astype("uint32"),
        "scales": stored.astype("uint16"),
        "leads": bits[:, None].astype("<u4").view("uint8")[:, 1:],
    }


def decode(arrays: Mapping[str, np.ndarray], dim: int, bits: int, codebook: np.ndarray | None) -> np.ndarray:
    """Return coded tokens, ``(tokens, dim + 1)`` float32: the numbers of a rotated rest, and its lead."""
    tokens = len(arrays["scales"])
    found = np.empty((tokens, dim + 1), dtype="float32")
    stored = arrays["scales"].astype("uint32")
    scales = (np.where(stored < _INFINITE, stored, 0).astype("uint32") << 15).view("float32")
    for first in range(0, tokens, _TOKENS):
        some = slice(first, first + _TOKENS)
        own = {name: rows[some] for name, rows in arrays.items()}
        found[some, :dim] = _integers(own, dim, bits, codebook)
        found[some, :dim] *= scales[some, None]
    wide = np.zeros((tokens, 4), dtype="uint8")
    wide[:, 1:] = arrays["leads"]
    leads = wide.view("<u4")[:, 0].astype("uint32")
    found[:, dim] = np.where(leads & _INFINITY_BITS < _INFINITY_BITS, leads, 0).astype("uint32").view("float32")
    return found


# The integers of codes of 4 bits, of which the highest is the sign, set if it is positive.
_OF_4_BITS = np.array([*(-size for size in SIZES[4]), *SIZES[4]], dtype="float32")


def _integers(own: Mapping[str, np.ndarray], dim: int, bits: int, codebook: np.ndarray | None) -> np.ndarray:
    """Return the integers of some tokens, ``(tokens, dim)``."""
    if bits == 8:
        return own["codes"] - np.float32(128)
    signs = _bits(own["signs"], dim)
    if bits == 4:
        for plane in range(3):
            signs = signs << 1 | _bits(own["codes"][:, plane], dim)
        return _OF_4_BITS[signs]
    size = own["cells"] & SIZE_MASK
    # 16 bits: half the memory of others
    if bits == 2:
        small = SMALL_2[size].astype("int16")[:, None]
        levels = _bits(own["codes"][:, 0], dim) * (LARGE_2[size].astype("int16")[:, None] - small) + small
    else:
        levels = SMALL_1[size].astype("int16")[:, None]
    numbers = (2 * signs.astype("int16") - 1) * levels
    if codebook is not None:
        numbers += codebook[own["cells"] >> SIZE_BITS]
    return np.clip(numbers, -128, 127, out=numbers)


def _bits(words: np.ndarray, dim: int) -> np.ndarray:
    """Return the first `dim` bits of each row of words, uint8."""
    return np.unpackbits(words.astype("<u4", copy=False).view("uint8"), axis=1, bitorder="little", count=dim)
