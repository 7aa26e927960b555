"""Table lookup: bytes of a table of sixteen, 32 document tokens at a time, by the shuffle of the instruction set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from latelier.kernels.instruction_sets import instruction_set_of
from latelier.kernels.jit import ir, types
from latelier.kernels.simd import at, constant, declare, shuffle, splat

__all__ = ["TOKENS", "Lookup", "lookup_of"]

# Document tokens in one row of table positions, one byte each.
TOKENS = 32
_HALF = 16


class Lookup(NamedTuple):
    """How an instruction set looks up bytes.

    Attributes
    ----------
    width
        Bytes looked up together: 32, those of one query token, or 64, those of two.
    emit
        Emits the lookup, ``emit(builder, table, rows)``: address of a table of 16 bytes, `width` bytes which repeat it,
        or for two query tokens repeat the table of each in 32 bytes; and addresses of rows of `TOKENS` positions, 0 to
        15 each. Returns `width` bytes for each row.
    """

    width: int
    emit: Callable[[ir.IRBuilder, ir.Value, Sequence[ir.Value]], list[ir.Value]]


def lookup_of(isa: types.BaseTuple) -> Lookup:
    """Return the lookup of an instruction set, given the numba type of its `InstructionSet.argument`."""
    features = instruction_set_of(isa).features
    return next(lookup for feature, lookup in _LOOKUPS.items() if feature in features or feature == "")


def _bytes(count: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(8), count)


def _load(builder: ir.IRBuilder, address: ir.Value, count: int) -> ir.Value:
    return builder.load(at(builder, address, _bytes(count)), align=1)


def _avx512(builder: ir.IRBuilder, table: ir.Value, rows: Sequence[ir.Value]) -> list[ir.Value]:
    kind = _bytes(2 * TOKENS)
    look_up = declare(builder.module, "llvm.x86.avx512.pshuf.b.512", [kind, kind], kind)
    tables, found = _load(builder, table, 2 * TOKENS), []
    for row in rows:
        places = _load(builder, row, TOKENS)
        twice = shuffle(builder, places, [*range(TOKENS)] * 2)
        found.append(builder.call(look_up, [tables, twice]))
    return found


def _avx2(builder: ir.IRBuilder, table: ir.Value, rows: Sequence[ir.Value]) -> list[ir.Value]:
    kind = _bytes(TOKENS)
    look_up = declare(builder.module, "llvm.x86.avx2.pshuf.b", [kind, kind], kind)
    tables = _load(builder, table, TOKENS)
    return [builder.call(look_up, [tables, _load(builder, row, TOKENS)]) for row in rows]


def _neon(builder: ir.IRBuilder, table: ir.Value, rows: Sequence[ir.Value]) -> list[ir.Value]:
    kind = _bytes(_HALF)
    look_up = declare(builder.module, "llvm.aarch64.neon.tbl1.v16i8", [kind, kind], kind)
    tables, found = _load(builder, table, _HALF), []
    for row in rows:
        halves = [
            builder.call(look_up, [tables, _load(builder, builder.add(row, constant(first)), _HALF)])
            for first in (0, _HALF)
        ]
        found.append(shuffle(builder, halves[0], range(TOKENS), halves[1]))
    return found


def _generic(builder: ir.IRBuilder, table: ir.Value, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Emit a lookup without a shuffle instruction, for tables in which each bit of a position adds a number.

    The byte at position p is ``table[0] + sum of (table[1 << b] - table[0]) over the set bits b of p``, modulo 256.
    """
    kind, byte = _bytes(TOKENS), ir.IntType(8)

    def entry(position: int) -> ir.Value:
        return builder.load(at(builder, builder.add(table, constant(position)), byte), align=1)

    first, found = entry(0), []
    steps = [(1 << b, splat(builder, builder.sub(entry(1 << b), first), kind)) for b in range(4)]
    for row in rows:
        places, total = _load(builder, row, TOKENS), splat(builder, first, kind)
        for bit, step in steps:
            is_set = builder.icmp_unsigned(
                "!=", builder.and_(places, ir.Constant(kind, [bit] * TOKENS)), ir.Constant(kind, [0] * TOKENS)
            )
            total = builder.add(total, builder.select(is_set, step, ir.Constant(kind, [0] * TOKENS)))
        found.append(total)
    return found


# By a feature of the instruction set; the last one is for all others.
_LOOKUPS = {
    "avx512bw": Lookup(2 * TOKENS, _avx512),
    "avx2": Lookup(TOKENS, _avx2),
    "neon": Lookup(TOKENS, _neon),
    "": Lookup(TOKENS, _generic),
}
