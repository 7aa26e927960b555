"""Masks: integers in which each bit is about one lane, walked from bit to bit."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

__all__ = ["lowest_bit"]


@intrinsic
def lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Return the position of the lowest set bit of a mask that is not 0."""
    signature = types.int64(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return signature, generate
