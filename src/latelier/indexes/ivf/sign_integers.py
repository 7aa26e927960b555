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
    >>> integers, units = round_to_integers(np.array([[0.5, -1.0, 0.25, 0.5]]), 1)
    >>> integers[0, :5].tolist(), round(float(units[0]), 4)
    ([3, -6, 2, 3, 0], 0.1667)
    """
    dims = min(vectors.shape[1], 32 * words)
    numbers = np.zeros((len(vectors), 32 * words))
    numbers[:, :dims] = vectors[:, :dims]
    units = np.abs(numbers).reshape(len(vectors), -1, GROUP).sum(axis=2).max(axis=1) / _ROOM
    integers = np.floor(numbers / np.maximum(units, 1e-300)[:, None] + 0.5)
    return SignIntegers(integers.astype("int8"), np.minimum(units, _LARGEST).astype("float32"))
