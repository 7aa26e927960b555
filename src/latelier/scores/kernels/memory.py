"""Reading memory by its address: rows of documents that lie scattered over memory maps, with no array for each.

The caller keeps the memory alive and knows how many bytes are his; nothing is checked here.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.scores.kernels import vectors
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
        vectors.prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return signature, generate
