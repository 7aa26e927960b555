"""The inner loop of the AVX-512 kernels: eight document tokens against one or two registers of query tokens.

Every kernel reads words of four bytes, be it one float32, two bfloat16 or four int8. A word of a document token is
spread over all lanes and multiplied with that word of sixteen query tokens, so nothing has to be added across lanes.
Two registers of query tokens at a time spare half the spreading, which costs as much as the multiplication where
that does four numbers at once. A kernel has the document tokens that come next fetched meanwhile: memory takes as long
as the multiplication unless it was asked early, and the processor does not foresee eight rows that are read at once.

numba's cache watches the file of a kernel alone: after a change to this module, `vectors` or `convert`, delete it
(``kernels/__pycache__``, or what ``NUMBA_CACHE_DIR`` names).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llvmlite import ir
from numba.core import cgutils

from latelier.kernels.simd import LANES, ROWS, at, constant, splat

__all__ = ["Tile", "dot_products"]


class Tile(NamedTuple):
    """What is multiplied, as 64-bit integers of the program being written.

    Parameters
    ----------
    rows
        Address of eight rows of `words` words.
    query
        Address of groups of packed query tokens, ``(groups, words, 16)`` words.
    words
        Words of a row.
    """

    rows: ir.Value
    query: ir.Value
    words: ir.Value


def dot_products(
    builder: ir.IRBuilder,
    tile: Tile,
    start: Sequence[ir.Value],
    word: ir.Type,
    multiply: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
    meanwhile: Callable[[ir.Value], None] | None = None,
) -> list[list[ir.Value]]:
    """Write the loop over the words.

    Parameters
    ----------
    builder
        Writes the program.
    tile
        What is multiplied.
    start
        For each group of query tokens what its sums begin with, a vector of 16.
    word
        Type of four bytes, as which rows and query tokens are read.
    multiply
        From sums, a row's word in all lanes and a word of each query token, returns the sums with the products added.
    meanwhile
        Writes what else is to be done at each word, from the number of the word.

    Returns
    -------
    list of list
        For each of the eight rows and each group, the sums.
    """
    lanes_type = ir.VectorType(word, LANES)
    sums = [[cgutils.alloca_once_value(builder, value) for value in start] for _ in range(ROWS)]
    row_bytes, group_bytes = builder.mul(tile.words, constant(4)), builder.mul(tile.words, constant(4 * LANES))
    with cgutils.for_range(builder, tile.words) as loop:
        here = builder.add(tile.query, builder.mul(loop.index, constant(4 * LANES)))
        lanes = []
        for _ in start:
            lanes.append(builder.load(at(builder, here, lanes_type), align=4))
            here = builder.add(here, group_bytes)
        if meanwhile:
            meanwhile(loop.index)
        place = builder.add(tile.rows, builder.mul(loop.index, constant(4)))
        for totals in sums:
            row = splat(builder, builder.load(at(builder, place, word), align=4), lanes_type)
            for total, tokens in zip(totals, lanes, strict=True):
                builder.store(multiply(builder.load(total), row, tokens), total)
            place = builder.add(place, row_bytes)
    return [[builder.load(total) for total in totals] for totals in sums]
