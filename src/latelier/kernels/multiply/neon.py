"""Bytes multiplied by NEON without the dot product: ``smull`` and ``smlal`` give 16-bit sums of two products.

Both factors are from -127 to 127, so a sum of two products has 16 bits; ``sadalp`` adds it to 32-bit sums before a
third. Rows are shifted back to signed numbers first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from latelier.kernels.jit import cgutils, ir
from latelier.kernels.simd import LANES, at, constant, declare, load_words, shuffle

__all__ = ["multiply_bytes"]

_WORDS, _BYTES = ir.VectorType(ir.IntType(32), 4), ir.VectorType(ir.IntType(8), 8)
_SHORTS = ir.VectorType(ir.IntType(16), 8)
# A register of 16-bit products holds those of two vectors. A loop is for two rows and eight vectors: 8 of the 32
# registers hold sums, since products and factors need nearly all of the others.
_PARTS, _ROWS = 4, 2


def multiply_bytes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None = None,
) -> list[ir.Value]:
    """Emit the dot products of some rows with groups of sixteen vectors: a loop for two rows and half a group.

    `rows`: address of `count` rows ``(words * 4)`` uint8. `groups`: addresses of sixteen packed vectors
    ``(words, 16, 4)`` int8; their starting sums are not needed. `words`: words of four bytes in a row, a multiple of
    `STEP`. `meanwhile`: emits what else to do for each word, from the number of the word. Returns: sixteen int32 for
    each row: all rows of the first group, then of the next.
    """
    results = []
    for vectors, _ in groups:
        for first in range(0, count, _ROWS):
            here = builder.add(rows, builder.mul(words, constant(4 * first)))
            halves = []
            for lane in (0, LANES // 2):
                column = builder.add(vectors, constant(4 * lane))
                halves.append(_multiply_rows(builder, here, column, words, min(_ROWS, count - first), meanwhile))
                meanwhile = None  # done by the first loop
            for low, high in zip(*halves, strict=True):
                results.append(shuffle(builder, low, range(LANES), high))
    return results


def _multiply_rows(
    builder: ir.IRBuilder,
    rows: ir.Value,
    vectors: ir.Value,
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None,
) -> list[ir.Value]:
    """Emit the dot products of one or two rows with eight vectors, two words at a time: eight int32 for each row."""
    pairwise = declare(builder.module, "llvm.aarch64.neon.saddlp.v4i32.v8i16", [_SHORTS], _WORDS)
    sums = [
        [cgutils.alloca_once_value(builder, ir.Constant(_WORDS, [0] * 4)) for _ in range(_PARTS)] for _ in range(count)
    ]
    with cgutils.for_range_slice(builder, constant(0), words, constant(2), inc=True) as (index, _):
        numbers = [index, builder.add(index, constant(1))]
        by_word = [load_words(builder, rows, words, number, count) for number in numbers]
        if meanwhile:
            for number in numbers:
                meanwhile(number)
        factors = [[_signed_row(builder, word) for word in words_of_row] for words_of_row in by_word]
        columns = [builder.add(vectors, builder.mul(number, constant(4 * LANES))) for number in numbers]
        for part in range(_PARTS):
            places = [builder.add(column, constant(8 * part)) for column in columns]
            packed = [_widen(builder, builder.load(at(builder, place, _BYTES), align=1)) for place in places]
            for r, totals in enumerate(sums):
                products = [builder.mul(packed[i], _widen(builder, factors[i][r])) for i in range(2)]
                total = builder.call(pairwise, [builder.add(products[0], products[1])])
                builder.store(builder.add(builder.load(totals[part]), total), totals[part])
    return [_join(builder, list(map(builder.load, totals))) for totals in sums]


def _signed_row(builder: ir.IRBuilder, word: ir.Value) -> ir.Value:
    """Emit a word of a row twice, as eight signed bytes."""
    pair = ir.VectorType(ir.IntType(32), 2)
    single = builder.insert_element(ir.Constant(pair, ir.Undefined), word, ir.Constant(ir.IntType(32), 0))
    shifted = builder.bitcast(shuffle(builder, single, [0, 0]), _BYTES)
    return builder.xor(shifted, ir.Constant(_BYTES, [-128] * 8))


def _widen(builder: ir.IRBuilder, bytes_: ir.Value) -> ir.Value:
    return builder.sext(bytes_, _SHORTS)


def _join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """Emit eight sums from four parts, which hold two numbers for each of two vectors."""
    joined = []
    for first, second in zip(parts[::2], parts[1::2], strict=True):
        even, odd = (shuffle(builder, first, range(start, 8, 2), second) for start in range(2))
        joined.append(builder.add(even, odd))
    return shuffle(builder, joined[0], range(8), joined[1])
