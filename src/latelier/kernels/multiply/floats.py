"""Floats multiplied on any processor: the dot products of some document tokens with groups of sixteen query tokens.

A word of four bytes is one float32 or two bfloat16. A row's word is copied to all lanes and multiplied by the same word
of sixteen query tokens, so no sum goes across lanes. All sums of a `Tile` stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from latelier.kernels.jit import cgutils, ir, llvm
from latelier.kernels.simd import FLOATS, INTS, LANES, STEP, at, constant, declare, shuffle, splat

__all__ = ["Tile", "multiply_bfloat16", "multiply_floats"]


class Tile(NamedTuple):
    """How many sums are computed together: as many as registers hold, beside what they are computed from.

    `by_element`: whether a multiplication can take one element of a register, so that four words of a row are loaded at
    once. Elsewhere each word is loaded into all lanes.
    """

    rows: int
    groups: int = 1
    by_element: bool = False


_Places: TypeAlias = tuple[ir.Value, ir.Value, ir.Value]
_Meanwhile: TypeAlias = Callable[[ir.Value], None]


class _BFloat(ir.Type):
    """LLVM's bfloat16, a type that llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


# LLVM 16 declares the operands of the dot product as bfloat16, earlier releases as 32-bit words.
_PAIRS = ir.VectorType(_BFloat(), 2 * LANES) if llvm.llvm_version_info[0] >= 16 else INTS


def multiply_floats(
    builder: ir.IRBuilder, tile: Tile, places: _Places, meanwhile: _Meanwhile | None = None
) -> list[list[ir.Value]]:
    """Emit the dot products of the rows of a tile with its query tokens: one loop over the words.

    `places`: address of the rows, of words; address of the groups of packed query tokens, ``(groups, words, 16)``
    words; number of words, a multiple of `STEP`. `meanwhile`: emits what else to do for each step of `STEP` words, from
    the number of the step: prefetch the next rows, since reading them from memory takes as long as the multiplication.
    Returns: for each row and each group, sixteen float32.
    """
    # Fused where the processor has it; a fused multiplication in software would take a hundred times as long.
    multiply = declare(builder.module, "llvm.fmuladd.v16f32", [FLOATS] * 3, FLOATS)

    def add_product(total: ir.Value, row: ir.Value, lanes: ir.Value) -> ir.Value:
        return builder.call(multiply, [row, lanes, total])

    return _dot_products(builder, tile, places, ir.FloatType(), add_product, meanwhile)


def multiply_bfloat16(
    builder: ir.IRBuilder, tile: Tile, places: _Places, meanwhile: _Meanwhile | None = None
) -> list[list[ir.Value]]:
    """Emit `multiply_floats` for words of two bfloat16, for processors with AVX512_BF16."""
    dot = declare(builder.module, "llvm.x86.avx512bf16.dpbf16ps.512", [FLOATS, _PAIRS, _PAIRS], FLOATS)

    def add_products(total: ir.Value, row: ir.Value, lanes: ir.Value) -> ir.Value:
        return builder.call(dot, [total, builder.bitcast(row, _PAIRS), builder.bitcast(lanes, _PAIRS)])

    return _dot_products(builder, tile, places, ir.IntType(32), add_products, meanwhile)


def _dot_products(
    builder: ir.IRBuilder,
    tile: Tile,
    places: _Places,
    word: ir.Type,
    multiply: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
    meanwhile: _Meanwhile | None,
) -> list[list[ir.Value]]:
    """Emit `multiply_floats` for a type of words.

    `multiply` returns the sums with the products added, from sums, a row's word in all lanes and a word of each query
    token.
    """
    rows, query, words = places
    lanes_type, some = ir.VectorType(word, LANES), ir.VectorType(word, STEP)
    zero = ir.Constant(FLOATS, [0.0] * LANES)
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(tile.groups)] for _ in range(tile.rows)]
    row_bytes, group_bytes = builder.mul(words, constant(4)), builder.mul(words, constant(4 * LANES))
    with cgutils.for_range(builder, builder.udiv(words, constant(STEP))) as loop:
        if meanwhile:
            meanwhile(loop.index)
        starts = [builder.add(rows, builder.mul(loop.index, constant(4 * STEP)))]
        for _ in range(1, tile.rows):
            starts.append(builder.add(starts[-1], row_bytes))
        loaded = [builder.load(at(builder, start, some), align=4) for start in starts] if tile.by_element else []
        for step in range(STEP):
            column = builder.add(builder.mul(loop.index, constant(STEP)), constant(step))
            here = builder.add(query, builder.mul(column, constant(4 * LANES)))
            lanes = []
            for _ in range(tile.groups):
                lanes.append(builder.load(at(builder, here, lanes_type), align=4))
                here = builder.add(here, group_bytes)
            for r, totals in enumerate(sums):
                if tile.by_element:
                    row = shuffle(builder, loaded[r], [step] * LANES)
                else:
                    place = at(builder, builder.add(starts[r], constant(4 * step)), word)
                    row = splat(builder, builder.load(place, align=4), lanes_type)
                for total, tokens in zip(totals, lanes, strict=True):
                    builder.store(multiply(builder.load(total), row, tokens), total)
    return [[builder.load(total) for total in totals] for totals in sums]
