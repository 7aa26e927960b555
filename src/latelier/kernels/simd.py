"""Helpers of the kernels that emit LLVM's vector instructions: sixteen 32-bit lanes, one query token in each.

LLVM splits a vector of sixteen lanes into as many registers as the processor needs for it: one with AVX-512, two with
AVX2, four with SSE and NEON.
"""

from __future__ import annotations

from collections.abc import Sequence

from latelier.kernels.jit import ir

LANES = 16  # lanes of a vector: query tokens
ROWS = 8  # document tokens that are scored together where numbers are integers
STEP = 4  # rows are padded to a multiple of this many words, so that loops are unrolled without a remainder

INTS = ir.VectorType(ir.IntType(32), LANES)
FLOATS = ir.VectorType(ir.FloatType(), LANES)


def constant(value: int) -> ir.Constant:
    """Return a 64-bit integer."""
    return ir.Constant(ir.IntType(64), value)


def declare(module: ir.Module, name: str, operands: list[ir.Type], result: ir.Type) -> ir.Function:
    """Return an intrinsic function of LLVM, declared once per module."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, operands), name)


def at(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """Return a pointer to `kind` from an address."""
    return builder.inttoptr(address, kind.as_pointer())


def splat(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Return a vector with the same value in every lane."""
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return shuffle(builder, single, [0] * kind.count)


def shuffle(builder: ir.IRBuilder, first: ir.Value, places: Sequence[int], second: ir.Value | None = None) -> ir.Value:
    """Return the elements at `places` of a vector, or of two vectors one after the other."""
    second = ir.Constant(first.type, ir.Undefined) if second is None else second
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places)))


def load_words(builder: ir.IRBuilder, rows: ir.Value, words: ir.Value, index: ir.Value, count: int) -> list[ir.Value]:
    """Return word `index` of each of `count` rows; `rows` is their address, and each has `words` words."""
    word = ir.IntType(32)
    column, stride = builder.add(rows, builder.mul(index, constant(4))), builder.mul(words, constant(4))
    places = [builder.add(column, builder.mul(stride, constant(r))) for r in range(count)]
    return [builder.load(at(builder, place, word), align=1) for place in places]


def emit_prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line at an address; the processor ignores an address that cannot be read."""
    pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    # LLVM 15 and later rename it to llvm.prefetch.p0.
    fetch = declare(builder.module, "llvm.prefetch.p0i8", [pointer, word, word, word], ir.VoidType())
    # The constants: for reading, into the first-level cache, data.
    builder.call(fetch, [builder.inttoptr(address, pointer), *(ir.Constant(word, n) for n in (0, 3, 1))])
