"""Queries as integers: three bytes per number, in the layouts that the kernels of each stage read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.code_layout import byte_width
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


def quantise_query(vectors: np.ndarray) -> QuantisedQuery:
    """Return a quantised query; the scale of each token is its largest absolute number / 127.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.

    Examples
    --------
    >>> query = quantise_query(np.array([[1.0, -0.5]], dtype="float32"))
    >>> query.digits[0, 0, :2].tolist(), round(float(query.scales[0]), 4)
    ([127, -64], 0.0079)
    """
    tokens, dim = vectors.shape
    width, groups = byte_width(dim), -(-tokens // LANES)
    query = QuantisedQuery(
        # For arrays that are read-only or not contiguous, kernels would be compiled again.
        vectors if vectors.flags.carray else np.array(vectors, order="C"),
        np.zeros((DIGITS, tokens, width), dtype="int16"),
        np.full((tokens, width), 128, dtype="uint8"),
        np.zeros((DIGITS, groups, width // 4, LANES, 4), dtype="int8"),
        np.zeros((DIGITS, groups, LANES), dtype="int32"),
        np.empty(tokens, dtype="float32"),
    )
    _quantise(tuple(query))
    return query


@kernel()
def _quantise(query: QuantisedQuery) -> None:
    """Fill all arrays of a query, given as a plain tuple, except `vectors`.

    Before, `rows` holds 128, and all others except `scales` hold zeros.
    """
    query = QuantisedQuery(*query)
    tokens, dim = query.vectors.shape
    rest = np.empty(dim, dtype=np.float64)
    for t in range(tokens):
        group, lane = t // LANES, t % LANES
        peak = np.float32(0)
        for i in range(dim):
            x = query.vectors[t, i]
            size = -x if x < 0 else x
            peak = size if size > peak else peak
        query.scales[t] = peak / np.float32(127)
        # Smaller scales are rounded so much that digits would be above 127: the token is taken as zeros.
        inverse = 1 / np.float64(query.scales[t]) if query.scales[t] > 1e-42 else 0.0
        for i in range(dim):
            rest[i] = np.float64(query.vectors[t, i]) * inverse
        for place in range(DIGITS):
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
