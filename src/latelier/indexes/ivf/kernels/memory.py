"""Access to memory by address, for documents scattered over memory maps.

Array views are avoided, since numba takes seconds to compile their error paths. Addresses are not checked: the caller
must keep the memory alive and stay within it.
"""

from __future__ import annotations

from typing import Any

from latelier.kernels import simd as vectors
from latelier.kernels.jit import cgutils, intrinsic, ir, types
from latelier.kernels.simd import constant

__all__ = ["copy_bytes", "prefetch", "read_half", "read_word"]

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
    """Prefetch the cache line at an address; an invalid address is ignored."""
    signature = types.void(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        vectors.emit_prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return signature, generate


def _read(bits: int) -> Any:
    @intrinsic
    def read(typing_context: Any, address: Any) -> Any:
        """Return the unsigned integer at an address."""
        signature = types.uint32(types.int64)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            word = builder.load(vectors.at(builder, arguments[0], ir.IntType(bits)), align=1)
            return builder.zext(word, ir.IntType(32)) if bits < 32 else word

        return signature, generate

    return read


read_half, read_word = _read(16), _read(32)
