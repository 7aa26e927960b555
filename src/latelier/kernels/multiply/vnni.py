"""Bytes multiplied by VNNI: ``vpdpbusd`` adds four products to each 32-bit lane, of 512 bits or (AVX-VNNI) 256."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from latelier.kernels.jit import cgutils, ir, llvm
from latelier.kernels.simd import LANES, at, constant, declare, load_words, shuffle, splat

__all__ = ["multiply_bytes_256", "multiply_bytes_512"]


def _multiply_bytes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None = None,
    *,
    lanes: int,
    sums: int,
) -> list[ir.Value]:
    """Emit the dot products of some rows with groups of sixteen vectors.

    `rows`: address of `count` rows ``(words * 4)`` uint8. `groups`: addresses of sixteen packed vectors
    ``(words, 16, 4)`` int8 and of their starting sums ``(16,)`` int32. `words`: words of four bytes in a row.
    `meanwhile`: emits what else to do for each word, from the number of the word. `sums`: registers for sums; the
    others hold what is multiplied. Returns: sixteen int32 for each row: all rows of the first group, then of the next.
    """
    parts = LANES // lanes
    some_rows = min(count, sums // parts)
    some_groups = max(1, sums // (parts * some_rows))
    results: list[ir.Value] = []
    for g in range(0, len(groups), some_groups):
        block = groups[g : g + some_groups]
        by_group: list[list[ir.Value]] = [[] for _ in block]
        for first in range(0, count, some_rows):
            here = builder.add(rows, builder.mul(words, constant(4 * first)))
            found = _multiply_block(builder, here, block, words, min(some_rows, count - first), meanwhile, lanes)
            meanwhile = None  # done by the first loop
            for totals, new in zip(by_group, found, strict=True):
                totals.extend(new)
        results.extend(total for totals in by_group for total in totals)
    return results


def _multiply_block(
    builder: ir.IRBuilder,
    rows: ir.Value,
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    count: int,
    meanwhile: Callable[[ir.Value], None] | None,
    lanes: int,
) -> list[list[ir.Value]]:
    """Emit the dot products of as many rows and groups as fit into registers, in one loop over the words."""
    ints = ir.VectorType(ir.IntType(32), lanes)
    # LLVM 21 declares the operands of the dot product as bytes, earlier releases as 32-bit words.
    operand = ir.VectorType(ir.IntType(8), 4 * lanes) if llvm.llvm_version_info[0] >= 21 else ints
    dot = declare(builder.module, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", [ints, operand, operand], ints)
    parts = [constant(4 * lanes * part) for part in range(LANES // lanes)]
    sums = []
    for _, start in groups:
        begin = [builder.load(at(builder, builder.add(start, part), ints), align=4) for part in parts]
        sums.append([[cgutils.alloca_once_value(builder, value) for value in begin] for _ in range(count)])
    with cgutils.for_range(builder, words) as loop:
        if meanwhile:
            meanwhile(loop.index)
        packed = []
        for vectors, _ in groups:
            column = builder.add(vectors, builder.mul(loop.index, constant(4 * LANES)))
            places = [at(builder, builder.add(column, part), ints) for part in parts]
            packed.append([builder.bitcast(builder.load(place, align=4), operand) for place in places])
        for r, word in enumerate(load_words(builder, rows, words, loop.index, count)):
            row = builder.bitcast(splat(builder, word, ints), operand)
            for of_group, totals in zip(packed, sums, strict=True):
                for part, total in zip(of_group, totals[r], strict=True):
                    builder.store(builder.call(dot, [builder.load(total), row, part]), total)
    return [[_join(builder, list(map(builder.load, total))) for total in totals] for totals in sums]


def _join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    return parts[0] if len(parts) == 1 else shuffle(builder, parts[0], range(LANES), parts[1])


# AVX-512 has 32 registers, AVX2 has 16. Of 24 sums, each step of a loop reads one group for eight rows at most.
multiply_bytes_512 = partial(_multiply_bytes, lanes=16, sums=24)
multiply_bytes_256 = partial(_multiply_bytes, lanes=8, sums=8)
