"""Token vectors as codes of 8, 4, 2 or 1 bits, and back to the bytes that integer kernels multiply.

A token is a scale times small integers, and the signs of its numbers stand apart, in words of 32 bits: they are the
first stage of a search, and at 4 bits and fewer also the highest bit of each code, so nothing is stored twice.

=====  ==================================  ===========================================
bits   integers                            stored beside the signs
=====  ==================================  ===========================================
8      -127 to 127                         a byte each, shifted by 128
4      odd, -15 to 15                      three planes of bits
2      -3, -1, 1, 3                        one plane of bits
1      -1, 1                               nothing
=====  ==================================  ===========================================

At 8 bits the largest number of a token decides its scale. At fewer bits the steps are those that lose least of normally
distributed numbers, and the scale makes the token as long as it was: without that, coarse codes shrink every score.

A scale takes 16 bits: the exponent of a float32 and 8 bits of its fraction (``bits >> 15``; scales have no sign).
"""

from __future__ import annotations

import numpy as np

from latelier.indexes.ivf.kernels.bit_planes import merge_planes, take_plane
from latelier.indexes.ivf.kernels.memory import bits_of, copy_bytes, float_of, read_half
from latelier.kernels.jit import kernel

__all__ = [
    "BITS",
    "ROWS",
    "byte_width",
    "decode_documents",
    "encode_tokens",
    "load_rows",
    "load_scales",
    "sign_words",
    "unpack_documents",
]

BITS = (8, 4, 2, 1)
# Tokens that a kernel works on together, as in `vectors`.
ROWS = 8
# Of a normal distribution with standard deviation 1, the width of the steps that lose least.
_STEP_4, _STEP_2 = np.float32(0.3352), np.float32(0.9957)
# Added to a float32 in (-256, 256), this rounds it to an integer, which then stands in its lowest bits.
_ROUND = np.float32(1.5 * 2**23 + 128)
# Scales below this have no finite inverse: such a token counts as zero.
_SMALLEST = np.float32(1e-37)
# Scales from here on are infinite or NaN.
_INFINITE = np.uint32(0xFF00)


def sign_words(dim: int) -> int:
    """Return how many words of 32 bits hold one bit per number."""
    return -(-dim // 32)


def byte_width(dim: int) -> int:
    """Return how many bytes a token takes when kernels multiply it: whole words of its signs."""
    return 32 * sign_words(dim)


@kernel()
def encode_tokens(
    vectors: np.ndarray, bits: int, signs: np.ndarray, codes: np.ndarray, planes: np.ndarray, scales: np.ndarray
) -> None:
    """Write the codes of tokens; see the module.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32, contiguous.
    bits
        8, 4, 2 or 1.
    signs
        ``(tokens, sign_words(dim))`` uint32, written; a bit is set where the integer is not negative.
    codes
        ``(tokens, dim)`` uint8, written for 8 bits only.
    planes
        ``(tokens, bits - 1, sign_words(dim))`` uint32, highest plane first, written for fewer bits only.
    scales
        ``(tokens,)`` uint16, written.
    """
    dim, words = vectors.shape[1], signs.shape[1]
    row = np.zeros(32 * words, dtype=np.uint8)
    row_at = np.int64(row.ctypes.data)
    for t in range(len(vectors)):
        if bits == 8:
            # Rounded up, so that the largest number still has a code.
            peak = float_of(_peak_bits(vectors[t])) / np.float32(127)  # type: ignore[call-arg]
            scales[t] = (bits_of(peak) + np.uint32(0x7FFF)) >> np.uint32(15)
            scale = float_of(np.uint32(scales[t]) << np.uint32(15))
            if scale < _SMALLEST:
                scales[t] = 0
            _quantise_row(vectors[t], scale, row)
            for i in range(dim):
                codes[t, i] = row[i]
            take_plane(row_at, 7, np.int64(signs[t].ctypes.data), words)
            continue
        length = np.sqrt(_square(vectors[t]))
        coded = _quantise_steps(vectors[t], length, bits, row)
        take_plane(row_at, bits - 1, np.int64(signs[t].ctypes.data), words)  # type: ignore[call-arg]
        for plane in range(bits - 1):
            take_plane(row_at, bits - 2 - plane, np.int64(planes[t, plane].ctypes.data), words)
        scales[t] = (bits_of(np.float32(length / np.sqrt(coded))) + np.uint32(0x4000)) >> np.uint32(15)


@kernel()
def _quantise_row(vector: np.ndarray, scale: float, row: np.ndarray) -> None:
    """Write ``round(vector / scale) + 128`` as bytes; too small a scale makes zeros."""
    inverse = np.float32(1) / scale if scale >= _SMALLEST else np.float32(0)
    for i in range(len(vector)):
        row[i] = np.uint8(bits_of(vector[i] * inverse + _ROUND))  # type: ignore[call-arg]


@kernel()
def _quantise_steps(vector: np.ndarray, length: float, bits: int, row: np.ndarray) -> float:
    """Write the codes 0 to 2 ** bits - 1 of a token; return the sum of the squares of its integers."""
    half, most = np.float32(1 << (bits - 1)), np.float32((1 << bits) - 1)
    step = np.float32(length / np.sqrt(len(vector))) * (_STEP_4 if bits == 4 else _STEP_2)
    inverse = np.float32(1) / step if step >= _SMALLEST else np.float32(0)
    for i in range(len(vector)):
        x = vector[i] * inverse + half
        x = x if x > 0 else np.float32(0)
        row[i] = np.uint8(np.int32(x if x < most else most))
    total = 0
    for i in range(len(vector)):
        value = 2 * np.int32(row[i]) - np.int32((1 << bits) - 1)
        total += value * value
    return float(total)


@kernel()
def _peak_bits(vector: np.ndarray) -> int:
    """Return the bits of the largest absolute number: those of floats without sign have the order of integers."""
    largest = np.uint32(0)
    for i in range(len(vector)):
        size = np.uint32(bits_of(vector[i]) & np.uint32(0x7FFFFFFF))  # type: ignore[call-arg]
        largest = size if size > largest else largest
    return largest


@kernel("reassoc", "contract")
def _square(vector: np.ndarray) -> float:
    total = 0.0
    for i in range(len(vector)):
        total += np.float64(vector[i]) * np.float64(vector[i])
    return total


@kernel()
def load_rows(
    addresses: tuple[int, int, int], shape: tuple[int, int, int], count: int, rows: np.ndarray, scales: np.ndarray
) -> None:
    """Bring up to eight tokens into the form that kernels multiply; the last one fills what is missing.

    Parameters
    ----------
    addresses
        Of the first token's signs, codes (or planes) and scale.
    shape
        Bits, dim and sign words.
    count
        Tokens, 1 to 8.
    rows
        ``(8, byte_width(dim))`` uint8, written: integers shifted by 128. What lies beyond the dim is without meaning.
    scales
        ``(8,)`` float32, written.
    """
    bits, dim, words = shape
    width = rows.shape[1]
    rows_at = np.int64(rows.ctypes.data)
    for r in range(ROWS):
        token = min(r, count - 1)
        if bits == 8:
            copy_bytes(rows_at + r * width, addresses[1] + token * dim, dim)  # type: ignore[call-arg]
        else:
            low = addresses[1] + token * (bits - 1) * words * 4
            merge_planes(bits, addresses[0] + token * words * 4, low, rows_at + r * width, words)
    load_scales(addresses[2], count, scales)


@kernel()
def load_scales(address: int, count: int, scales: np.ndarray) -> None:
    """Write the scales of up to eight tokens to ``(8,)`` float32; the last one fills what is missing.

    Infinity and NaN, which only a damaged file holds, count as zero.
    """
    for r in range(ROWS):
        bits = np.uint32(read_half(address + 2 * min(r, count - 1)))
        scales[r] = float_of((bits if bits < _INFINITE else np.uint32(0)) << np.uint32(15))  # type: ignore[call-arg]


@kernel()
def unpack_documents(
    documents: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    chosen: np.ndarray,
    shape: tuple[int, int, int],
    rows: np.ndarray,
    scales: np.ndarray,
) -> None:
    """Bring the tokens of documents into the form that kernels multiply.

    Parameters
    ----------
    documents, chosen, shape
        As for `decode_documents`.
    rows
        ``(tokens, byte_width(dim))`` uint8, written; 128, which is zero, beyond the dim.
    scales
        ``(tokens,)`` float32, written.
    """
    signs, codes, planes_scales, lengths = documents
    bits, dim, words = shape
    stride = dim if bits == 8 else (bits - 1) * words * 4
    block = np.empty((ROWS, rows.shape[1]), dtype=np.uint8)
    block_scales = np.empty(ROWS, dtype=np.float32)
    done = 0
    for d in chosen:
        for first in range(0, lengths[d], ROWS):
            count = min(ROWS, lengths[d] - first)
            at = (signs[d] + first * words * 4, codes[d] + first * stride, planes_scales[d] + first * 2)
            load_rows(at, shape, count, block, block_scales)
            for r in range(count):
                for i in range(rows.shape[1]):
                    rows[done, i] = block[r, i] if i < dim else np.uint8(128)
                scales[done] = block_scales[r]
                done += 1


@kernel()
def decode_documents(
    documents: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    chosen: np.ndarray,
    shape: tuple[int, int, int],
    vectors: np.ndarray,
) -> None:
    """Write the vectors that the codes of documents stand for.

    Parameters
    ----------
    documents
        Addresses of each document's signs, codes (or planes) and scales, and its number of tokens: int64 all.
    chosen
        ``(n,)`` int64: documents to decode.
    shape
        As for `load_rows`.
    vectors
        ``(tokens, dim)`` float32, written: the tokens of the chosen documents, one document after the other.
    """
    signs, codes, scales, lengths = documents
    bits, dim, words = shape
    stride = dim if bits == 8 else (bits - 1) * words * 4
    block = np.empty((ROWS, 32 * words), dtype=np.uint8)
    block_scales = np.empty(ROWS, dtype=np.float32)
    done = 0
    for d in chosen:
        for first in range(0, lengths[d], ROWS):
            count = min(ROWS, lengths[d] - first)
            at = (signs[d] + first * words * 4, codes[d] + first * stride, scales[d] + first * 2)
            load_rows(at, shape, count, block, block_scales)
            for r in range(count):
                for i in range(dim):
                    vectors[done, i] = np.float32(np.int32(block[r, i]) - 128) * block_scales[r]
                done += 1
