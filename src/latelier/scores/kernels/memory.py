"""Reading memory by its address: rows of documents that lie scattered over memory maps, with no array for each.

The caller keeps the memory alive and knows how many bytes are his; nothing is checked here.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.scores.kernels.vectors import constant

__all__ = ["copy_bytes", "prefetch"]

_BYTE = ir.IntType(8)


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes from one address to another; the two do not overlap."""
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        target, source, count = arguments
        pointer = _BYTE.as_pointer()
        cgutils.raw_memcpy(
            builder, builder.inttoptr(target, pointer), builder.inttoptr(source, pointer), count, constant(1)
        )
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for a line of memory that will be read soon; any address will do, results never change."""
    signature = types.void(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer, word = _BYTE.as_pointer(), ir.IntType(32)
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, word, word, word]), name
        )
        # To read, of high locality, data.
        operands = [builder.inttoptr(arguments[0], pointer), *(ir.Constant(word, value) for value in (0, 3, 1))]
        builder.call(function, operands)
        return context.get_dummy_value()

    return signature, generate
