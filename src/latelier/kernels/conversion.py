"""Conversion of document rows before they are multiplied: half precision is widened, signed bytes are shifted by 128.

The rows of one tile are written to a buffer that stays in the first-level cache: at once by `convert_rows`, or step by
step while other rows are multiplied (`convert_meanwhile`), which hides the time it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.kernels.jit import LANES, at, cgutils, constant, emit_prefetch, has_features, intrinsic, ir, kernel, types

# What rows hold: words of four bytes that need no conversion; half precision, which becomes float32; or int8, which
# becomes uint8 or, as WIDE_INT8, 16 bits.
WORDS, FLOAT16, BFLOAT16, INT8, WIDE_INT8 = range(5)
_UINT8 = 5  # bytes that are shifted already and become 16 bits


def _vector(bits: int, count: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), count)


def _same(kind: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def _keep(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return value


def _widen_float16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    count = value.type.count
    words = _vector(32, count)
    if has_features("f16c") or has_features("neon"):
        half = builder.bitcast(value, ir.VectorType(ir.HalfType(), count))
        return builder.bitcast(builder.fpext(half, ir.VectorType(ir.FloatType(), count)), words)
    # Without instructions for it: exponent and fraction, moved to where a float32 has them, are a float32 that is too
    # small by 2**112, the difference of the two exponent biases, also if the float16 is subnormal.
    bits = builder.zext(value, words)
    size = builder.and_(bits, _same(words, 0x7FFF))
    floats = ir.VectorType(ir.FloatType(), count)
    shifted = builder.bitcast(builder.shl(size, _same(words, 13)), floats)
    finite = builder.bitcast(builder.fmul(shifted, ir.Constant(floats, [2.0**112] * count)), words)
    # Infinity and NaN have the largest exponent in both.
    other = builder.or_(builder.shl(size, _same(words, 13)), _same(words, 0x7F800000))
    is_finite = builder.icmp_unsigned("<", size, _same(words, 0x7C00))
    sign = builder.shl(builder.and_(bits, _same(words, 0x8000)), _same(words, 16))
    return builder.or_(builder.select(is_finite, finite, other), sign)


def _widen_bfloat16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    # A bfloat16 is the upper half of a float32.
    words = _vector(32, value.type.count)
    return builder.shl(builder.zext(value, words), _same(words, 16))


def _shift_int8(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.xor(value, _same(value.type, -128))  # adding 128 to a byte inverts its highest bit


def _shift_and_widen_int8(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return _widen_uint8(builder, _shift_int8(builder, value))


def _widen_uint8(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return builder.zext(value, _vector(16, value.type.count))


class _Conversion(NamedTuple):
    """How numbers are converted: bits of a number before and after, and the function that emits the conversion."""

    bits: int
    result_bits: int
    emit: Callable[[ir.IRBuilder, ir.Value], ir.Value]


_CONVERSIONS = {
    WORDS: _Conversion(32, 32, _keep),
    FLOAT16: _Conversion(16, 32, _widen_float16),
    BFLOAT16: _Conversion(16, 32, _widen_bfloat16),
    INT8: _Conversion(8, 8, _shift_int8),
    WIDE_INT8: _Conversion(8, 16, _shift_and_widen_int8),
    _UINT8: _Conversion(8, 16, _widen_uint8),
}


def _emit(builder: ir.IRBuilder, kind: int, source: ir.Value, target: ir.Value, count: int) -> None:
    """Emit the conversion of `count` numbers from an address to another."""
    conversion = _CONVERSIONS[kind]
    value = builder.load(at(builder, source, _vector(conversion.bits, count)), align=1)
    builder.store(conversion.emit(builder, value), at(builder, target, _vector(conversion.result_bits, count)), align=1)


def convert_meanwhile(
    builder: ir.IRBuilder,
    kinds: Sequence[int],
    numbers: ir.Value,
    count: int,
    places: tuple[ir.Value, ir.Value, ir.Value],
) -> Callable[[ir.Value], None]:
    """Return the ``meanwhile`` of a multiplication: converts the next rows, and prefetches those after them.

    `kinds`: the conversions to emit: `FLOAT16` and `BFLOAT16`, or one of `INT8` and `WIDE_INT8`; `numbers`: what the
    next rows hold: one of `kinds`, or `WORDS`, which are not converted; `count`: how many numbers to convert in one
    step of the multiplication, a multiple of 8; `places`: addresses of the next rows, of the buffer that they are
    written to, and of the rows to prefetch, each of them contiguous.
    """
    source, target, ahead = places
    is_kind = [builder.icmp_signed("==", numbers, constant(kind)) for kind in kinds]
    step = constant(count)
    most = count
    if FLOAT16 in kinds:
        step = builder.select(builder.or_(*is_kind), constant(2 * count), constant(4 * count))
        most = 4 * count

    def convert(index: ir.Value) -> None:
        wanted = builder.add(ahead, builder.mul(index, step))
        for line in range(0, most, 64):
            emit_prefetch(builder, builder.add(wanted, constant(line)))
        for kind, chosen in zip(kinds, is_kind, strict=True):
            conversion = _CONVERSIONS[kind]
            with builder.if_then(chosen):
                # LLVM splits a vector that is longer than a register
                if conversion.bits == 8:
                    some = count
                else:
                    some = 8
                for number in range(0, count, some):
                    place = builder.add(builder.mul(index, constant(count)), constant(number))
                    read = builder.add(source, builder.mul(place, constant(conversion.bits // 8)))
                    written = builder.add(target, builder.mul(place, constant(conversion.result_bits // 8)))
                    _emit(builder, kind, read, written, some)

    return convert


def _convert(kind: int) -> Any:
    """Make the instruction sequence for one kind of numbers."""
    conversion = _CONVERSIONS[kind]

    @intrinsic
    def convert(typing_context: Any, source: Any, target: Any, numbers: Any) -> Any:
        """Convert `numbers` numbers at address `source` to address `target`."""
        signature = types.void(*[types.int64] * 3)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            source, target, numbers = arguments
            whole = builder.mul(builder.udiv(numbers, constant(LANES)), constant(LANES))
            for start, stop, count in ((constant(0), whole, LANES), (whole, numbers, 1)):
                with cgutils.for_range_slice(builder, start, stop, constant(count), inc=True) as (i, _):
                    read = builder.add(source, builder.mul(i, constant(conversion.bits // 8)))
                    written = builder.add(target, builder.mul(i, constant(conversion.result_bits // 8)))
                    _emit(builder, kind, read, written, count)
            return context.get_dummy_value()

        return signature, generate

    return convert


_keep_words, _from_float16, _from_bfloat16, _from_int8, _from_wide_int8 = map(
    _convert, (WORDS, FLOAT16, BFLOAT16, INT8, WIDE_INT8)
)
widen_bytes = _convert(_UINT8)


@kernel()
def convert_rows(rows: int, count: int, row: tuple[int, int, int], out: np.ndarray) -> None:
    """Convert up to as many rows as `out` has; missing rows are copies of the last one.

    `rows`: address of the rows, which are contiguous. `count`: number of rows, at least 1. `row`: what a row holds
    (`WORDS`, `FLOAT16`, `BFLOAT16`, `INT8` or `WIDE_INT8`), how many numbers, and its bytes. `out`: ``(n, words)``
    int32, written up to the length of a row; the rest should be zeros.
    """
    kind, numbers, row_bytes = row
    for r in range(len(out)):
        source = rows + min(r, count - 1) * row_bytes
        target = np.int64(out[r].ctypes.data)
        if kind == WORDS:
            _keep_words(source, target, numbers)
        elif kind == FLOAT16:
            _from_float16(source, target, numbers)
        elif kind == BFLOAT16:
            _from_bfloat16(source, target, numbers)
        elif kind == INT8:
            _from_int8(source, target, numbers)
        else:
            _from_wide_int8(source, target, numbers)
