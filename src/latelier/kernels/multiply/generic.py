"""Bytes multiplied on any processor: widened to 16 bits, multiplied in pairs and added to 32-bit sums.

LLVM makes one instruction of a pair's multiplication where the processor has it (x86: ``pmaddwd``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba.core import cgutils

from latelier.kernels.simd import INTS, LANES, at, constant, load_words

__all__ = ["multiply_bytes"]

_WORD, _BYTES = ir.IntType(32), ir.VectorType(ir.IntType(8), 4)
# A word of sixteen vectors is multiplied in four parts of four vectors each. The sums of two rows take eight registers,
# which leaves eight for the operands on processors that have sixteen.
_PARTS, _ROWS = 4, 2


def multiply_bytes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None = None,
) -> list[ir.Value]:
    """Emit the dot products of some rows with groups of sixteen vectors, one loop for each group and two rows.

    Parameters
    ----------
    builder
        Emits the instructions.
    rows
        Address of `count` rows ``(words * 4)`` uint8.
    groups
        Addresses of sixteen packed vectors ``(words, 16, 4)`` int8 and of their starting sums ``(16,)`` int32.
    words
        Words of four bytes in a row.
    count
        Number of rows.
    meanwhile
        Emits what else to do for each word, from the number of the word.

    Returns
    -------
    list of ir.Value
        Sixteen int32 for each row: all rows of the first group, then of the next.
    """
    sums = []
    for vectors, start in groups:
        begin = builder.load(at(builder, start, INTS), align=4)
        for first in range(0, count, _ROWS):
            here = builder.add(rows, builder.mul(words, constant(4 * first)))
            for total in _multiply_rows(builder, here, vectors, words, min(_ROWS, count - first), meanwhile):
                sums.append(builder.add(total, begin))
            meanwhile = None  # done by the first loop
    return sums


def _multiply_rows(
    builder: ir.IRBuilder,
    rows: ir.Value,
    vectors: ir.Value,
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None,
) -> list[ir.Value]:
    """Emit the dot products of one or two rows with one group of vectors, without its starting sums."""
    shorts, pairs = ir.VectorType(ir.IntType(16), 16), ir.VectorType(_WORD, 8)
    zero = ir.Constant(pairs, [0] * 8)
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(_PARTS)] for _ in range(count)]
    with cgutils.for_range(builder, words) as loop:
        if meanwhile:
            meanwhile(loop.index)
        column = builder.add(vectors, builder.mul(loop.index, constant(4 * LANES)))
        parts = []
        for part in range(_PARTS):
            place = at(builder, builder.add(column, constant(16 * part)), ir.VectorType(ir.IntType(8), 16))
            parts.append(builder.sext(builder.load(place, align=1), shorts))
        for word, totals in zip(load_words(builder, rows, words, loop.index, count), sums, strict=True):
            bytes_ = builder.zext(builder.bitcast(word, _BYTES), ir.VectorType(ir.IntType(16), 4))
            row = _shuffle(builder, bytes_, [0, 1, 2, 3] * 4)
            for part, total in zip(parts, totals, strict=True):
                builder.store(builder.add(builder.load(total), _multiply_pairs(builder, row, part)), total)
    return [_join(builder, [builder.load(total) for total in totals]) for totals in sums]


def _multiply_pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Emit the products of sixteen 16-bit numbers, added in pairs of neighbours: eight 32-bit numbers."""
    wide = ir.VectorType(_WORD, 16)
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    return _add_neighbours(builder, products, 16)


def _add_neighbours(builder: ir.IRBuilder, numbers: ir.Value, count: int) -> ir.Value:
    even, odd = (_shuffle(builder, numbers, list(range(first, count, 2))) for first in range(2))
    return builder.add(even, odd)


def _join(builder: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """Emit sixteen sums from four parts, which hold two numbers for each of four vectors."""
    first, second, third, fourth = (_add_neighbours(builder, part, 8) for part in parts)
    halves = _concatenate(builder, first, second, 4), _concatenate(builder, third, fourth, 4)
    return _concatenate(builder, halves[0], halves[1], 8)


def _concatenate(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, count: int) -> ir.Value:
    return _shuffle(builder, first, list(range(2 * count)), second)


def _shuffle(builder: ir.IRBuilder, first: ir.Value, places: list[int], second: ir.Value | None = None) -> ir.Value:
    second = ir.Constant(first.type, ir.Undefined) if second is None else second
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_WORD, len(places)), places))
