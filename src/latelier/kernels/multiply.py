"""The instructions that multiply bytes: eight tokens by sixteen lanes, with AVX-512 VNNI or on any processor.

Bytes of rows are unsigned (shifted by 128), those of lanes signed, and what the shift adds is taken off beforehand, in
the starting sums. Without VNNI, bytes are widened to 16 bits and multiplied in pairs, which LLVM spells in one
instruction where the processor has it (x86: pmaddwd). Integers are exact, so both ways give equal sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

from latelier.kernels.simd import INTS, LANES, at, constant, declare, splat

__all__ = ["multiply_bytes"]

_OPERAND = ir.VectorType(ir.IntType(8), 64) if llvm.llvm_version_info[0] >= 21 else INTS
_WORD, _BYTES = ir.IntType(32), ir.VectorType(ir.IntType(8), 4)
# Without VNNI a word of all lanes takes four parts of four lanes, and two rows at a time fill sixteen registers.
_PARTS, _PAIR = 4, 2


def multiply_bytes(
    builder: ir.IRBuilder,
    has_vnni: bool,
    rows: ir.Value,
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    count: int,
) -> list[ir.Value]:
    """Emit the sums of some rows with each group of lanes: all rows of the first group, then of the next.

    Parameters
    ----------
    builder
        Writes the program.
    has_vnni
        Whether the processor has the instruction for it.
    rows
        Address of `count` rows ``(words * 4)`` uint8.
    groups
        Addresses of lanes ``(words, 16, 4)`` int8, and of what their sums start with, ``(16,)`` int32.
    words
        Words of four bytes.
    count
        Rows.

    Returns
    -------
    list of ir.Value
        Sixteen int32 each.
    """
    if has_vnni:
        return _with_vnni(builder, rows, groups, words, count)
    sums = []
    for lanes, start in groups:
        begin = builder.load(at(builder, start, INTS), align=4)
        for first in range(0, count, _PAIR):
            here = builder.add(rows, builder.mul(words, constant(4 * first)))
            for total in _plainly(builder, here, lanes, words, min(_PAIR, count - first)):
                sums.append(builder.add(total, begin))
    return sums


def _with_vnni(
    builder: ir.IRBuilder, rows: ir.Value, groups: Sequence[tuple[ir.Value, ir.Value]], words: ir.Value, count: int
) -> list[ir.Value]:
    dot = declare(builder.module, "llvm.x86.avx512.vpdpbusd.512", [INTS, _OPERAND, _OPERAND], INTS)
    begins = [builder.load(at(builder, start, INTS), align=4) for _, start in groups]
    sums = [[cgutils.alloca_once_value(builder, begin) for _ in range(count)] for begin in begins]
    with cgutils.for_range(builder, words) as loop:
        splats = []
        for word in _words(builder, rows, words, loop.index, count):
            splats.append(builder.bitcast(splat(builder, word, INTS), _OPERAND))
        for (lanes, _), totals in zip(groups, sums, strict=True):
            lanes_at = builder.add(lanes, builder.mul(loop.index, constant(4 * LANES)))
            packed = builder.bitcast(builder.load(at(builder, lanes_at, INTS), align=4), _OPERAND)
            for row, total in zip(splats, totals, strict=True):
                builder.store(builder.call(dot, [builder.load(total), row, packed]), total)
    return [builder.load(total) for totals in sums for total in totals]


def _plainly(builder: ir.IRBuilder, rows: ir.Value, lanes: ir.Value, words: ir.Value, count: int) -> list[ir.Value]:
    """Emit the sums of one or two rows with one group of lanes."""
    shorts, pairs = ir.VectorType(ir.IntType(16), 16), ir.VectorType(_WORD, 8)
    zero = ir.Constant(pairs, [0] * 8)
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(_PARTS)] for _ in range(count)]
    with cgutils.for_range(builder, words) as loop:
        lanes_at = builder.add(lanes, builder.mul(loop.index, constant(4 * LANES)))
        parts = []
        for part in range(_PARTS):
            place = at(builder, builder.add(lanes_at, constant(16 * part)), ir.VectorType(ir.IntType(8), 16))
            parts.append(builder.sext(builder.load(place, align=1), shorts))
        for word, totals in zip(_words(builder, rows, words, loop.index, count), sums, strict=True):
            bytes_ = builder.zext(builder.bitcast(word, _BYTES), ir.VectorType(ir.IntType(16), 4))
            row = _shuffle(builder, bytes_, [0, 1, 2, 3] * 4)
            for part, total in zip(parts, totals, strict=True):
                builder.store(builder.add(builder.load(total), _multiply_pairs(builder, row, part)), total)
    return [_join(builder, [builder.load(total) for total in totals]) for totals in sums]


def _words(builder: ir.IRBuilder, rows: ir.Value, words: ir.Value, index: ir.Value, count: int) -> list[ir.Value]:
    """Emit the loads of one word of each row."""
    column, stride = builder.add(rows, builder.mul(index, constant(4))), builder.mul(words, constant(4))
    places = [builder.add(column, builder.mul(stride, constant(r))) for r in range(count)]
    return [builder.load(at(builder, place, _WORD), align=1) for place in places]


def _multiply_pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Emit products of sixteen 16-bit numbers, each two neighbours added up: eight 32-bit numbers."""
    wide = ir.VectorType(_WORD, 16)
    products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
    return _add_neighbours(builder, products, 16)


def _add_neighbours(builder: ir.IRBuilder, numbers: ir.Value, count: int) -> ir.Value:
    even, odd = (_shuffle(builder, numbers, list(range(first, count, 2))) for first in range(2))
    return builder.add(even, odd)


def _join(builder: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """Emit the sums of four parts, of two numbers per lane each, as one number for each of sixteen lanes."""
    first, second, third, fourth = (_add_neighbours(builder, part, 8) for part in parts)
    halves = _concatenate(builder, first, second, 4), _concatenate(builder, third, fourth, 4)
    return _concatenate(builder, halves[0], halves[1], 8)


def _concatenate(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, count: int) -> ir.Value:
    return _shuffle(builder, first, list(range(2 * count)), second)


def _shuffle(builder: ir.IRBuilder, first: ir.Value, places: list[int], second: ir.Value | None = None) -> ir.Value:
    second = ir.Constant(first.type, ir.Undefined) if second is None else second
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_WORD, len(places)), places))
