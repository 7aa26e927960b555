"""Memory layout of codes, and the numbers of inverted lists: what needs no kernel."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

Bits: TypeAlias = Literal[8, 4, 2, 1]
# Bits per number that tokens can be coded with.
BITS: tuple[Bits, ...] = (8, 4, 2, 1)
# Those of the index that a retriever makes in a folder.
FOLDER_BITS: Bits = 2
# With these, a token is coded by itself; with fewer, as what one of 4,096 cells leaves of it: one of 64 under each of
# 64 coarse ones. The cell is stored in 16 bits, of which the lowest four are the number of a size.
PLAIN_BITS = (8, 4)
# Those of an index of fewer, until it has so many tokens that it chooses its cells.
START_BITS = 4
COARSE_CELLS = 64
FINE_CELLS = 64
SIZE_BITS = 4
CELLS = COARSE_CELLS * FINE_CELLS
# The sizes of the integers of codes: in proportion, the levels with the least squared error for a normal distribution
# (Max, 1960); and where one ends and the next begins, in standard deviations, by number of bits.
SIZES = {4: (6, 18, 30, 44, 58, 75, 96, 127)}
EDGES = {1: (), 2: (0.9816,), 4: (0.2582, 0.5224, 0.7996, 1.0993, 1.4371, 1.8435, 2.4008)}
# Of the number of a size: its bits, and steps per factor of two.
SIZE_MASK = (1 << SIZE_BITS) - 1
STEPS = 1 << (SIZE_BITS - 2)
# The standard deviation of what is left of a token beside its cell, by number of its size, in integers; the edge to
# the next one, midway; and the sizes for it: what makes them unbiased, and for a normal distribution, in one bit and in
# two.
_NUMBERS = np.arange(1 << SIZE_BITS)
DEVIATIONS = (74.4 * 2.0 ** ((_NUMBERS - SIZE_MASK) / STEPS)).astype("float32")
ENDS = (74.4 * 2.0 ** ((_NUMBERS + 0.5 - SIZE_MASK) / STEPS)).astype("float32")
SMALL_1, SMALL_2, LARGE_2 = (np.rint(factor * DEVIATIONS).astype("int64") for factor in (1, 0.511, 1.706))
# The size of the integers of a cell from which on it decides on signs: 0.67 standard deviations of what it leaves,
# which are about that.
DECIDING = 18


class CodeShape(ctypes.Structure):
    """The sizes of a token's codes, and what they stand for, as kernels read them by address.

    `bits`: bits per number; `dim`: dimension of the token vectors; `sign_words`: words of 32 bits of a binary code;
    `code_bytes`: bytes of a token's codes, without its binary code; `codebook`, `masks`: addresses of the two arrays of
    `Cells`, which the caller must keep alive; None at 8 and 4 bits. The others are the choices above.
    """

    bits: int
    dim: int
    sign_words: int
    code_bytes: int
    codebook: int | None
    masks: int | None
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("bits", "dim", "sign_words", "code_bytes")),
        *((name, ctypes.c_void_p) for name in ("codebook", "masks")),
        ("levels", ctypes.c_uint8 * 16),
        ("edges", ctypes.c_float * 7),
        ("edge", ctypes.c_float),
        ("deviations", ctypes.c_float * len(DEVIATIONS)),
        ("ends", ctypes.c_float * len(ENDS)),
        ("small", ctypes.c_uint8 * len(SMALL_1)),
        ("large", ctypes.c_uint8 * len(SMALL_1)),
    )

    def __init__(self, bits: int, dim: int, codebook: int | None = None, masks: int | None = None) -> None:
        words = sign_words(dim)
        code_bytes = dim if bits == 8 else (bits - 1) * words * 4
        small = SMALL_1 if bits == 1 else SMALL_2
        super().__init__(
            *(bits, dim, words, code_bytes, codebook, masks),
            (*(128 - size for size in SIZES[4]), *(128 + size for size in SIZES[4])),
            *(EDGES[4], *EDGES[2]),
            *(tuple(DEVIATIONS.tolist()), tuple(ENDS.tolist()), tuple(small.tolist()), tuple(LARGE_2.tolist())),
        )


class CodedDocuments(NamedTuple):
    """Where documents are in memory: int64 arrays with one number per document.

    `signs`, `codes`, `scales`, `leads`, `cells`: addresses of the first token's binary code, codes (bytes or bit
    planes; unused at 1 bit), scale, lead and cell (unused at 8 and 4 bits). The other tokens follow without gaps.
    `lengths`: number of tokens.
    """

    signs: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    leads: np.ndarray
    cells: np.ndarray
    lengths: np.ndarray


class DeviceCodes(NamedTuple):
    """Codes on a device, as they are on disk; unsigned words as signed ones of as many bits.

    `first`, `lengths`: of each document, its first row and its number of tokens, int64. `codebook`: ``(cells, width)``
    int8; `sizes`: ``(3, 16)`` int32, by number of a size: `SMALL_1`, `SMALL_2`, `LARGE_2`.
    """

    first: torch.Tensor
    lengths: torch.Tensor
    signs: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    leads: torch.Tensor
    cells: torch.Tensor
    codebook: torch.Tensor
    sizes: torch.Tensor


class DeviceQueries(NamedTuple):
    """Rotated queries: ``(queries, tokens, width)`` float16, `high` + `low`, times ``scales (queries, tokens)``.

    `tokens` is a power of two from 16 on. `leads` are divided by the scale; that of a missing token is 0, as its scale.
    """

    high: torch.Tensor
    low: torch.Tensor
    leads: torch.Tensor
    scales: torch.Tensor


def sign_words(dim: int) -> int:
    """Return the number of 32-bit words of a binary code."""
    return -(-dim // 32)


def byte_width(dim: int) -> int:
    """Return the number of bytes of a token as kernels multiply it: the dim, rounded up to a multiple of 32."""
    return 32 * sign_words(dim)


# Inverted lists come in groups of so many, which kernels multiply together.
GROUP = 16
# list_count = 14.4 * sqrt(tokens) * size_factor ** 0.3: above 10 million tokens, lists would get too long without the
# factor.
_LARGE = 10_000_000
_LISTS_PER_ROOT = 14.4
_LISTS_EXPONENT = 0.3


def size_factor(tokens: int) -> float:
    """Return ``max(1, tokens / 10 million)``."""
    return max(1.0, tokens / _LARGE)


def list_count(tokens: int) -> int:
    """Return the number of inverted lists for a number of tokens, a multiple of 16."""
    return GROUP * max(1, round(_LISTS_PER_ROOT / GROUP * tokens**0.5 * size_factor(tokens) ** _LISTS_EXPONENT))


def coarse_count(lists: int) -> int:
    """Return the number of coarse centroids for a number of inverted lists, a multiple of 16."""
    return GROUP * max(1, round(lists**0.5 / GROUP))
