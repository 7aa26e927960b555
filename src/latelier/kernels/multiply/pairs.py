"""16-bit numbers multiplied, added in pairs of neighbours and added to 32-bit sums: exact, on any processor.

LLVM makes one instruction of a pair's multiplication where the processor has it: ``pmaddwd`` on x86, of 128, 256 or 512
bits. ``pmaddubsw``, which multiplies bytes, would need as many instructions: its 16-bit sums of two products have no
room for a third, and one factor must be made positive first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from latelier.kernels.jit import cgutils, ir
from latelier.kernels.simd import INTS, LANES, at, constant, shuffle

__all__ = ["multiply_bytes", "multiply_pairs"]

_SHORT, _WORD = ir.IntType(16), ir.IntType(32)
# Sums of one loop, a register each; the other half of 16 registers is for the operands. Four rows share a load of the
# vectors, which has to widen them to 16 bits.
_SUMS, _ROWS = 8, 4


def multiply_bytes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None = None,
    *,
    lanes: int = LANES,
    widened: bool = False,
    width: int,
) -> list[ir.Value]:
    """Emit the dot products of some rows with groups of sixteen vectors: a loop for as many as fit into registers.

    `rows`: address of `count` rows ``(words * 4)`` of 16 bits. `groups`: addresses of sixteen packed vectors
    ``(words, 16, 4)`` and of their starting sums ``(16,)`` int32. `meanwhile`: emits what else to do for each word,
    from the number of the word. `lanes`: how many vectors of each group to multiply; all others are zeros. `widened`:
    whether the packed vectors are int16; otherwise they are int8, and each loop widens them again. `width`: numbers of
    16 bits in a register. Returns: sixteen int32 for each row: all rows of the first group, then of the next.
    """
    part_lanes = width // 4  # vectors of which a register holds one word
    parts, all_parts = -(-lanes // part_lanes), LANES // part_lanes
    missing = [ir.Constant(ir.VectorType(_WORD, width // 2), [0] * (width // 2))] * (all_parts - parts)
    results: list[ir.Value] = []
    for vectors, start in groups:
        begin = builder.load(at(builder, start, INTS), align=4)
        sums: list[list[ir.Value]] = [[] for _ in range(count)]
        for first_row, some_rows, first_part, some_parts in _blocks(count, parts, all_parts):
            here = builder.add(rows, builder.mul(words, constant(8 * first_row)))
            column = builder.add(vectors, constant(width * first_part * (1 + widened)))
            found = _multiply_block(builder, here, column, words, (some_rows, some_parts, width), widened, meanwhile)
            meanwhile = None  # done by the first loop
            for r, new in enumerate(found, first_row):
                sums[r].extend(new)
        results.extend(builder.add(_join(builder, row + missing), begin) for row in sums)
    return results


def _blocks(count: int, parts: int, all_parts: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield what each loop multiplies: the first row and the number of rows, the first part and the number of parts."""
    usual = min(all_parts, _SUMS // min(count, _ROWS))
    whole = parts - parts % usual
    for row in range(0, count, _ROWS):
        for part in range(0, whole, usual):
            yield row, min(_ROWS, count - row), part, usual
    if whole < parts:  # with fewer parts, the registers hold the sums of more rows
        most = _SUMS // (parts - whole)
        for row in range(0, count, most):
            yield row, min(most, count - row), whole, parts - whole


def _multiply_block(
    builder: ir.IRBuilder,
    rows: ir.Value,
    vectors: ir.Value,
    words: ir.Value,
    shape: tuple[int, int, int],
    widened: bool,
    meanwhile: Callable[[ir.Value], None] | None,
) -> list[list[ir.Value]]:
    """Emit a loop for `shape`: rows, parts of a group, numbers of a part. Return two sums per vector, side by side."""
    count, parts, width = shape
    shorts, pairs = ir.VectorType(_SHORT, width), ir.VectorType(_WORD, width // 2)
    zero = ir.Constant(pairs, [0] * pairs.count)
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(parts)] for _ in range(count)]
    stride = builder.mul(words, constant(8))
    with cgutils.for_range(builder, words) as loop:
        if meanwhile:
            meanwhile(loop.index)
        column = builder.add(vectors, builder.mul(loop.index, constant(4 * LANES * (1 + widened))))
        packed = []
        for part in range(parts):
            place = builder.add(column, constant(width * part * (1 + widened)))
            if widened:
                packed.append(builder.load(at(builder, place, shorts), align=2))
            else:
                octets = ir.VectorType(ir.IntType(8), width)
                packed.append(builder.sext(builder.load(at(builder, place, octets), align=1), shorts))
        place = builder.add(rows, builder.mul(loop.index, constant(8)))
        for totals in sums:
            word = builder.load(at(builder, place, ir.VectorType(_SHORT, 4)), align=1)
            row = shuffle(builder, word, [0, 1, 2, 3] * (width // 4))
            for part, total in zip(packed, totals, strict=True):
                builder.store(builder.add(builder.load(total), multiply_pairs(builder, row, part)), total)
            place = builder.add(place, stride)
    return [[builder.load(total) for total in totals] for totals in sums]


def multiply_pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Emit the products of 16-bit numbers, added in pairs of neighbours: half as many 32-bit numbers."""
    wide = ir.VectorType(_WORD, left.type.count)
    return _add_neighbours(builder, builder.mul(builder.sext(left, wide), builder.sext(right, wide)))


def _add_neighbours(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    even, odd = (shuffle(builder, numbers, range(first, numbers.type.count, 2)) for first in range(2))
    return builder.add(even, odd)


def _join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """Emit sixteen sums from the parts of a group, which hold two numbers for each vector."""
    joined = [_add_neighbours(builder, part) for part in parts]
    while len(joined) > 1:
        joined = [
            shuffle(builder, first, range(2 * first.type.count), second)
            for first, second in zip(joined[::2], joined[1::2], strict=True)
        ]
    return joined[0]
