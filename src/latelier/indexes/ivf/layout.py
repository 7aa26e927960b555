"""Memory layout of codes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Bits per number that tokens can be coded with.
BITS = (8, 4, 2, 1)


class CodeShape(NamedTuple):
    """The sizes of a token's codes.

    `bits`: bits per number; `dim`: dimension of the token vectors; `sign_words`: words of 32 bits of a sign code;
    `code_bytes`: bytes of a token's codes, without its sign code.
    """

    bits: int
    dim: int
    sign_words: int
    code_bytes: int


class CodedDocuments(NamedTuple):
    """Where documents are in memory: int64 arrays with one number per document.

    `signs`, `codes`, `scales`: addresses of the first token's sign code, codes (bytes or bit planes; unused at 1 bit)
    and scale. The other tokens follow without gaps. `lengths`: number of tokens.
    """

    signs: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    lengths: np.ndarray


def sign_words(dim: int) -> int:
    """Return the number of 32-bit words of a sign code."""
    return -(-dim // 32)


def byte_width(dim: int) -> int:
    """Return the number of bytes of a token as kernels multiply it: the dim, rounded up to a multiple of 32."""
    return 32 * sign_words(dim)
