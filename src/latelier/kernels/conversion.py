"""Conversion of document rows before they are multiplied: half precision is widened, signed bytes are shifted by 128.

Eight rows at a time are written to a buffer that stays in the first-level cache: at once by `convert_rows`, or word by
word while other rows are multiplied (`convert_meanwhile`), which hides the time it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.kernels.jit import kernel
from latelier.kernels.simd import LANES, ROWS, at, constant, emit_prefetch

__all__ = ["BFLOAT16", "FLOAT16", "INT8", "WORDS", "convert_meanwhile", "convert_rows"]

# What rows hold: words of four bytes that need no conversion, or numbers that are converted to words.
WORDS, FLOAT16, BFLOAT16, INT8 = range(4)


def _words(count: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(32), count)


def _keep(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    return value


def _widen_float16(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    return builder.bitcast(builder.fpext(value, ir.VectorType(ir.FloatType(), count)), _words(count))


def _widen_bfloat16(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    # A bfloat16 is the upper half of a float32.
    return builder.shl(builder.zext(value, _words(count)), ir.Constant(_words(count), [16] * count))


def _shift_int8(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    # Adding 128 to a byte inverts its highest bit.
    return builder.xor(value, ir.Constant(_words(count), [-0x7F7F7F80] * count))


class _Conversion(NamedTuple):
    """How numbers become words: the type to read them as, its bytes, and the function that emits the conversion."""

    type: ir.Type
    size: int
    emit: Callable[[ir.IRBuilder, ir.Value, int], ir.Value]


_CONVERSIONS = {
    WORDS: _Conversion(ir.IntType(32), 4, _keep),
    FLOAT16: _Conversion(ir.HalfType(), 2, _widen_float16),
    BFLOAT16: _Conversion(ir.IntType(16), 2, _widen_bfloat16),
    INT8: _Conversion(ir.IntType(32), 4, _shift_int8),
}


def convert_meanwhile(
    builder: ir.IRBuilder, kinds: Sequence[int], numbers: ir.Value, places: tuple[ir.Value, ir.Value, ir.Value]
) -> Callable[[ir.Value], None]:
    """Return the ``meanwhile`` of a multiplication: converts the next eight rows and prefetches those after them.

    Parameters
    ----------
    builder
        Emits the instructions.
    kinds
        The conversions to emit: `FLOAT16`, `BFLOAT16`, `INT8`.
    numbers
        What the next eight rows hold: one of `kinds`, or `WORDS`, which are not converted.
    places
        Addresses of those rows, of the buffer that they are written to, and of the rows to prefetch.
    """
    source, target, ahead = places
    halves = [builder.icmp_signed("==", numbers, constant(kind)) for kind in (FLOAT16, BFLOAT16)]
    step = builder.select(builder.or_(*halves), constant(2 * ROWS), constant(4 * ROWS))

    def convert_eight(index: ir.Value) -> None:
        offset = builder.mul(index, step)
        emit_prefetch(builder, builder.add(ahead, offset))
        for kind in kinds:
            conversion = _CONVERSIONS[kind]
            with builder.if_then(builder.icmp_signed("==", numbers, constant(kind))):
                eight = at(builder, builder.add(source, offset), ir.VectorType(conversion.type, ROWS))
                place = builder.add(target, builder.mul(index, constant(4 * ROWS)))
                value = conversion.emit(builder, builder.load(eight, align=1), ROWS)
                builder.store(value, at(builder, place, _words(ROWS)), align=4)

    return convert_eight


def _convert(numbers: int) -> Any:
    """Make the instruction sequence for one type of numbers."""
    conversion = _CONVERSIONS[numbers]

    @intrinsic
    def convert(typing_context: Any, source: Any, target: Any, words: Any, ahead: Any) -> Any:
        """Convert numbers at address `source` to `words` words at address `target`; prefetch as many at `ahead`."""
        signature = types.void(*[types.int64] * 4)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            source, target, words, ahead = arguments
            whole = builder.mul(builder.udiv(words, constant(LANES)), constant(LANES))
            for start, stop, count in ((constant(0), whole, LANES), (whole, words, 1)):
                with cgutils.for_range_slice(builder, start, stop, constant(count), inc=True) as (i, _):
                    offset = builder.mul(i, constant(conversion.size))
                    emit_prefetch(builder, builder.add(ahead, offset))
                    some = at(builder, builder.add(source, offset), ir.VectorType(conversion.type, count))
                    value = conversion.emit(builder, builder.load(some, align=1), count)
                    place = at(builder, builder.add(target, builder.mul(i, constant(4))), _words(count))
                    builder.store(value, place, align=4)
            return context.get_dummy_value()

        return signature, generate

    return convert


_from_words, _from_float16, _from_bfloat16, _from_int8 = map(_convert, (WORDS, FLOAT16, BFLOAT16, INT8))


@kernel()
def convert_rows(rows: int, count: int, numbers: int, ahead: int, out: np.ndarray) -> None:
    """Convert up to eight rows to words; missing rows are copies of the last one.

    Parameters
    ----------
    rows
        Address of the rows, which are contiguous.
    count
        Number of rows, 1 to 8.
    numbers
        What the rows hold: `WORDS`, `FLOAT16`, `BFLOAT16` or `INT8`.
    ahead
        Address of the rows to prefetch.
    out
        ``(8, words)`` int32, written.
    """
    target, words = out.ctypes.data, count * out.shape[1]
    if numbers == WORDS:
        _from_words(rows, target, words, ahead)
    elif numbers == FLOAT16:
        _from_float16(rows, target, words, ahead)
    elif numbers == BFLOAT16:
        _from_bfloat16(rows, target, words, ahead)
    else:
        _from_int8(rows, target, words, ahead)
    for r in range(count, ROWS):
        out[r] = out[count - 1]
