"""Queries as integers: three bytes per number, in the layouts that the kernels of each stage read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.kernels.jit import kernel
from latelier.kernels.simd import LANES

__all__ = ["BASE", "DIGITS", "QuantisedQuery", "quantise_query"]

# Digits of a number, and what a unit of one is worth in units of the next.
DIGITS, BASE = 3, 254


class QuantisedQuery(NamedTuple):
    """A query as ``scale * (d0 + d1 / 254 + d2 / 254**2)``, each digit in -127 to 127: as precise as float32.

    Most stages read only the first digit. In the shapes below, ``width = byte_width(dim)``, and a group has 16 tokens,
    one in each SIMD lane.

    Attributes
    ----------
    vectors
        ``(tokens, dim)`` float32: the query itself.
    digits
        ``(3, tokens, width)`` int16, as which they are multiplied one row at a time; zero beyond the dim.
    rows
        ``(tokens, width)`` uint8: first digits + 128, to be multiplied with packed centroids.
    packed
        ``(3, groups, width / 4, 16, 4)`` int8: the digits packed for SIMD, to be multiplied with document rows.
    start
        ``(3, groups, 16)`` int32: ``-128 * (sum of a token's digits)``, which cancels the shift of document rows.
    scales
        ``(tokens,)`` float32: scale of each token.
    """

    vectors: np.ndarray
    digits: np.ndarray
    rows: np.ndarray
    packed: np.ndarray
    start: np.ndarray
    scales: np.ndarray


@kernel()
def quantise_query(vectors: np.ndarray, digits: int = DIGITS) -> QuantisedQuery:
    """Return a quantised query; the scale of each token is its largest absolute number / 127.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.
    digits
        How many digits to compute, the first ones, in place of three: probing reads only the first.

    Examples
    --------
    >>> query = quantise_query(np.array([[1.0, -0.5]], dtype="float32"))
    >>> query.digits[0, 0, :2].tolist(), round(float(query.scales[0]), 4)
    ([127, -64], 0.0079)
    """
    tokens, dim = vectors.shape
    words, groups = 8 * -(-dim // 32), -(-tokens // LANES)  # words of four bytes: byte_width(dim) / 4
    query = QuantisedQuery(
        vectors,
        np.zeros((digits, tokens, 4 * words), dtype=np.int16),
        np.full((tokens, 4 * words), 128, dtype=np.uint8),
        np.zeros((digits, groups, words, LANES, 4), dtype=np.int8),
        np.zeros((digits, groups, LANES), dtype=np.int32),
        np.empty(tokens, dtype=np.float32),
    )
    rest = np.empty(dim, dtype=np.float64)
    for t in range(tokens):
        group, lane = t // LANES, t % LANES
        peak = np.float32(0)
        for i in range(dim):
            x = vectors[t, i]
            size = -x if x < 0 else x
            peak = size if size > peak else peak
        query.scales[t] = peak / np.float32(127)
        # Smaller scales are rounded so much that digits would be above 127: the token is taken as zeros.
        inverse = 1 / np.float64(query.scales[t]) if query.scales[t] > 1e-42 else 0.0
        for i in range(dim):
            rest[i] = np.float64(vectors[t, i]) * inverse
        for place in range(digits):
            total = np.int32(0)
            for i in range(dim):
                # floor(rest + 1/2): the shift by 128 makes the number positive, and truncation then rounds it down.
                # The new rest is 254 times a number in [-1/2, 1/2], so the next digit is in [-127, 127].
                digit = np.int32(rest[i] + 128.5) - np.int32(128)
                rest[i] = (rest[i] - digit) * BASE
                query.digits[place, t, i] = digit
                total += digit
            query.start[place, group, lane] = -128 * total
            for i in range(dim):
                query.packed[place, group, i >> 2, lane, i & 3] = query.digits[place, t, i]
        for i in range(dim):
            query.rows[t, i] = np.int32(query.digits[0, t, i]) + 128
    return query
