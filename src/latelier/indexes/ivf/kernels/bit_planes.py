"""Bit planes: a plane holds the same bit of many small integers, 32 per word. Bytes are split into planes, and merged.

On AVX-512, LLVM's vectors of single bits are mask registers, so a plane takes one instruction per word; elsewhere LLVM
generates several.
"""

from __future__ import annotations

from typing import Any

from latelier.kernels.jit import cgutils, intrinsic, ir, kernel, types
from latelier.kernels.simd import at, constant

__all__ = ["merge_planes", "take_plane"]

_WORD = ir.IntType(32)
_BITS = ir.VectorType(ir.IntType(1), 32)
_BYTES = ir.VectorType(ir.IntType(8), 32)


@intrinsic
def take_plane(typing_context: Any, rows: Any, bit: Any, plane: Any, words: Any) -> Any:
    """Write bit `bit` of each byte at `rows` (``32 * words`` of them) to the `words` words at `plane`."""
    signature = types.void(*[types.int64] * 4)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        rows, bit, plane, words = arguments
        mask = _all(builder, builder.trunc(builder.shl(constant(1), bit), ir.IntType(8)))
        with cgutils.for_range(builder, words) as loop:
            source = builder.add(rows, builder.mul(loop.index, constant(32)))
            codes = builder.load(at(builder, source, _BYTES), align=1)
            found = builder.icmp_unsigned("!=", builder.and_(codes, mask), ir.Constant(_BYTES, [0] * 32))
            target = builder.add(plane, builder.mul(loop.index, constant(4)))
            builder.store(builder.bitcast(found, _WORD), at(builder, target, _WORD), align=4)
        return context.get_dummy_value()

    return signature, generate


def _merge_of(bits: int) -> Any:
    """Make the instruction sequence that merges `bits` planes."""

    @intrinsic
    def merge(typing_context: Any, signs: Any, low: Any, row: Any, words: Any) -> Any:
        """Write ``2 * code - (2 ** bits - 1) + 128`` for each code to the ``32 * words`` bytes at `row`.

        The highest plane is at `signs`, the others at `low`, one after the other from the highest.
        """
        signature = types.void(*[types.int64] * 4)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            signs, low, row, words = arguments
            offset = ir.Constant(_BYTES, [128 - (2**bits - 1)] * 32)
            stride = builder.mul(words, constant(4))
            with cgutils.for_range(builder, words) as loop:
                step = builder.mul(loop.index, constant(4))
                total = ir.Constant(_BYTES, [0] * 32)
                for plane in range(bits):
                    base = signs if plane == 0 else builder.add(low, builder.mul(stride, constant(plane - 1)))
                    word = builder.load(at(builder, builder.add(base, step), _WORD), align=4)
                    # A bit of plane p adds 2 ** (bits - p) to the doubled code.
                    weight = ir.Constant(_BYTES, [2 ** (bits - plane)] * 32)
                    zero = ir.Constant(_BYTES, [0] * 32)
                    total = builder.add(total, builder.select(builder.bitcast(word, _BITS), weight, zero))
                target = builder.add(row, builder.mul(loop.index, constant(32)))
                builder.store(builder.add(total, offset), at(builder, target, _BYTES), align=1)
            return context.get_dummy_value()

        return signature, generate

    return merge


_merge_1, _merge_2, _merge_4 = _merge_of(1), _merge_of(2), _merge_of(4)


@kernel(inner=True)
def merge_planes(bits: int, signs: int, low: int, row: int, words: int) -> None:
    """Merge the planes of a token's 1, 2 or 4-bit codes into bytes that kernels multiply.

    Parameters
    ----------
    bits
        1, 2 or 4.
    signs, low
        Address of the highest plane, and of the other planes from the highest to the lowest.
    row
        Address of ``32 * words`` bytes, written: ``2 * code - (2 ** bits - 1)``, shifted by 128.
    words
        Number of words of a plane.
    """
    if bits == 4:
        _merge_4(signs, low, row, words)
    elif bits == 2:
        _merge_2(signs, low, row, words)
    else:
        _merge_1(signs, low, row, words)


def _all(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    undefined = ir.Constant(_BYTES, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_WORD, 32), [0] * 32))
