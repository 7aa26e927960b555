"""Tables of a query for `sign_scores`: the products of four of its integers with all sixteen values of four signs."""

from __future__ import annotations

import numpy as np

from latelier.indexes.ivf.kernels.lookup import TOKENS
from latelier.indexes.ivf.kernels.sign_integers import GROUP
from latelier.kernels.jit import kernel

__all__ = ["GROUPS", "make_sign_tables"]

# Groups of four dims in a word of 32 signs. A table holds 0 to 30, so the sum of a word's lookups, at most 240, fits a
# byte.
GROUPS = 8


def make_sign_tables(integers: np.ndarray) -> np.ndarray:
    """Return the tables of a query.

    Parameters
    ----------
    integers
        From `round_to_integers`, ``(tokens, 32 * words)`` int8.

    Returns
    -------
    numpy.ndarray
        ``(pairs, groups, 2, 32)`` uint8, for pairs of query tokens and groups of four dims: ``(sum of integer * sign) +
        (sum of absolute integers)`` for each value of four bits, twice. A set bit is the sign +1, the lowest bit that
        of the first dim. The last table is 0 if the number of tokens is odd.

    Examples
    --------
    >>> integers = np.zeros((1, 32), dtype="int8")
    >>> integers[0, :2] = 3, -6
    >>> make_sign_tables(integers)[0, 0, 0, :4].tolist()
    [12, 18, 0, 6]
    """
    tokens, dims = integers.shape
    tables = np.zeros((-(-tokens // 2), dims // GROUP, 2, TOKENS), dtype="uint8")
    _fill(integers, tables)
    return tables


@kernel()
def _fill(integers: np.ndarray, tables: np.ndarray) -> None:
    for t in range(len(integers)):
        for g in range(tables.shape[1]):
            table = tables[t >> 1, g, t & 1]
            lowest = 0  # the entry of four signs of -1
            for b in range(GROUP):
                number = np.int32(integers[t, g * GROUP + b])
                lowest += abs(number) - number
            table[0] = lowest
            for b in range(GROUP):
                step = 2 * np.int32(integers[t, g * GROUP + b])
                for i in range(1 << b):
                    table[(1 << b) + i] = np.int32(table[i]) + step
            for i in range(1 << GROUP):
                table[(1 << GROUP) + i] = table[i]
