"""Bits: those of floats, and masks, in which each bit is about one SIMD lane."""

from __future__ import annotations

from typing import Any

from latelier.kernels.jit import intrinsic, ir, types

__all__ = ["bits_of", "float_of", "lowest_bit"]


@intrinsic
def lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Return the position of the lowest set bit of a mask that is not 0."""
    signature = types.int64(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return signature, generate


@intrinsic
def bits_of(typing_context: Any, number: Any) -> Any:
    """Return the bits of a float32 as uint32."""
    signature = types.uint32(types.float32)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return signature, generate


@intrinsic
def float_of(typing_context: Any, bits: Any) -> Any:
    """Return the float32 with the given bits, uint32."""
    signature = types.float32(types.uint32)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return signature, generate
