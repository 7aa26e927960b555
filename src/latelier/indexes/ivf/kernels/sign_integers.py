"""A query as small integers, which are multiplied with the signs of document tokens, +1 or -1 each.

For unit vectors, the dot product of one with the signs of another is on average about ``0.8 * sqrt(dim)`` times their
cosine. A document's sign score is the MaxSim of these products. It ranks documents well enough to discard nearly all of
them before their codes are read, and products with sign codes are more precise than Hamming distances between them (Gao
and Long, 2024, *RaBitQ: quantizing high-dimensional vectors with a theoretical error bound*; but we do not rotate the
vectors).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["GROUP", "SignIntegers", "round_to_integers"]

# Neighbouring dims whose absolute integers add up to at most 15: all sums of their products with signs fit five bits.
GROUP, _MOST = 4, 15
# Rounding adds at most half a unit to the absolute value of each.
_ROOM = _MOST + 0.5 - GROUP / 2
_LARGEST = float(np.finfo(np.float32).max)


class SignIntegers(NamedTuple):
    """A query as ``unit * integers``, about.

    Attributes
    ----------
    integers
        ``(tokens, 32 * words)`` int8, in which each four, from the first, have absolute values that add up to at most
        15; 0 beyond the dim.
    units
        ``(tokens,)`` float32.
    """

    integers: np.ndarray
    units: np.ndarray


def round_to_integers(vectors: np.ndarray, words: int) -> SignIntegers:
    """Round the first ``32 * words`` dims of a query; the unit is the largest sum of four absolute numbers / 13.5.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.
    words
        Words of sign codes that the integers are multiplied with.

    Examples
    --------
    >>> vectors = np.array([[0.5, -1.0, 0.25, 0.5]], dtype="float32")
    >>> integers, units = round_to_integers(vectors, 1)
    >>> integers[0, :5].tolist(), round(float(units[0]), 4)
    ([3, -6, 2, 3, 0], 0.1667)
    """
    tokens = len(vectors)
    rounded = SignIntegers(np.zeros((tokens, 32 * words), dtype="int8"), np.empty(tokens, dtype="float32"))
    _round(vectors, rounded.integers, rounded.units)
    return rounded


@kernel()
def _round(vectors: np.ndarray, integers: np.ndarray, units: np.ndarray) -> None:
    dims = min(vectors.shape[1], integers.shape[1])
    for t in range(len(vectors)):
        largest = 0.0
        for first in range(0, dims, GROUP):
            total = 0.0
            for i in range(first, min(first + GROUP, dims)):
                total += abs(np.float64(vectors[t, i]))
            largest = max(largest, total)
        unit = largest / _ROOM
        for i in range(dims):
            integers[t, i] = np.floor(vectors[t, i] / max(unit, 1e-300) + 0.5)
        units[t] = min(unit, _LARGEST)
