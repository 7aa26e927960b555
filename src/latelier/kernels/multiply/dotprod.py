"""Bytes multiplied by the dot product of AArch64: ``sdot`` adds four products to each of four 32-bit lanes.

It multiplies a register by one word of another register, so four words of a row are loaded at once. Both factors are
signed: rows are shifted back, which takes one instruction for sixteen multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from latelier.kernels.jit import cgutils, ir
from latelier.kernels.simd import LANES, STEP, at, constant, declare, shuffle

__all__ = ["multiply_bytes"]

_SUMS, _BYTES = ir.VectorType(ir.IntType(32), 4), ir.VectorType(ir.IntType(8), 16)
_PARTS = LANES // 4
# Rows of one loop: 16 of the 32 registers hold their sums.
_ROWS = 4


def multiply_bytes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None = None,
) -> list[ir.Value]:
    """Emit the dot products of some rows with groups of sixteen vectors: a loop for each group and four rows.

    `rows`: address of `count` rows ``(words * 4)`` uint8. `groups`: addresses of sixteen packed vectors
    ``(words, 16, 4)`` int8; their starting sums are not needed. `words`: words of four bytes in a row, a multiple of
    `STEP`. `meanwhile`: emits what else to do for each word, from the number of the word. Returns: sixteen int32 for
    each row: all rows of the first group, then of the next.
    """
    results = []
    for vectors, _ in groups:
        for first in range(0, count, _ROWS):
            here = builder.add(rows, builder.mul(words, constant(4 * first)))
            results.extend(_multiply_rows(builder, here, vectors, words, min(_ROWS, count - first), meanwhile))
            meanwhile = None  # done by the first loop
    return results


def _multiply_rows(
    builder: ir.IRBuilder,
    rows: ir.Value,
    vectors: ir.Value,
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None,
) -> list[ir.Value]:
    """Emit the dot products of up to four rows with one group of vectors."""
    dot = declare(builder.module, "llvm.aarch64.neon.sdot.v4i32.v16i8", [_SUMS, _BYTES, _BYTES], _SUMS)
    sums = [
        [cgutils.alloca_once_value(builder, ir.Constant(_SUMS, [0] * 4)) for _ in range(_PARTS)] for _ in range(count)
    ]
    stride = builder.mul(words, constant(4))
    with cgutils.for_range_slice(builder, constant(0), words, constant(STEP), inc=True) as (index, _):
        place = builder.add(rows, builder.mul(index, constant(4)))
        signed = []
        for _ in range(count):
            shifted = builder.load(at(builder, place, _BYTES), align=1)
            row = builder.xor(shifted, ir.Constant(_BYTES, [-128] * 16))
            signed.append(builder.bitcast(row, _SUMS))
            place = builder.add(place, stride)
        for word in range(STEP):
            number = builder.add(index, constant(word))
            if meanwhile:
                meanwhile(number)
            column = builder.add(vectors, builder.mul(number, constant(4 * LANES)))
            for part in range(_PARTS):
                packed = builder.load(at(builder, builder.add(column, constant(16 * part)), _BYTES), align=1)
                for row, totals in zip(signed, sums, strict=True):
                    element = builder.bitcast(shuffle(builder, row, [word] * 4), _BYTES)
                    total = builder.call(dot, [builder.load(totals[part]), packed, element])
                    builder.store(total, totals[part])
    return [_join(builder, list(map(builder.load, totals))) for totals in sums]


def _join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    halves = [shuffle(builder, parts[i], range(8), parts[i + 1]) for i in (0, 2)]
    return shuffle(builder, halves[0], range(LANES), halves[1])
