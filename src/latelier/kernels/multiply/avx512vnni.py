"""Bytes multiplied by AVX-512 VNNI: ``vpdpbusd`` adds four products to each of sixteen 32-bit lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

from latelier.kernels.simd import INTS, LANES, at, constant, declare, load_words, splat

__all__ = ["multiply_bytes"]

# LLVM 21 declares the operands of the dot product as bytes, earlier releases as 32-bit words.
_OPERAND = ir.VectorType(ir.IntType(8), 64) if llvm.llvm_version_info[0] >= 21 else INTS


def multiply_bytes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None = None,
) -> list[ir.Value]:
    """Emit the dot products of some rows with groups of sixteen vectors, all groups in one loop over the words.

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
    dot = declare(builder.module, "llvm.x86.avx512.vpdpbusd.512", [INTS, _OPERAND, _OPERAND], INTS)
    begins = [builder.load(at(builder, start, INTS), align=4) for _, start in groups]
    sums = [[cgutils.alloca_once_value(builder, begin) for _ in range(count)] for begin in begins]
    with cgutils.for_range(builder, words) as loop:
        splats = []
        for word in load_words(builder, rows, words, loop.index, count):
            splats.append(builder.bitcast(splat(builder, word, INTS), _OPERAND))
        if meanwhile:
            meanwhile(loop.index)
        for (vectors, _), totals in zip(groups, sums, strict=True):
            column = builder.add(vectors, builder.mul(loop.index, constant(4 * LANES)))
            packed = builder.bitcast(builder.load(at(builder, column, INTS), align=4), _OPERAND)
            for row, total in zip(splats, totals, strict=True):
                builder.store(builder.call(dot, [builder.load(total), row, packed]), total)
    return [builder.load(total) for totals in sums for total in totals]
