"""Int8 MaxSim in one pass, for processors with AVX-512 VNNI: no score matrix is ever written.

Sixteen query tokens are the lanes of a vector register, eight document tokens are scored at a time, and the running
maximum stays in a register too. The instruction multiplies unsigned by signed bytes, so document codes are shifted by
128 on the way in, and the accumulators start at minus what that adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.kernels.convert import INT8, convert_meanwhile, convert_rows
from latelier.kernels.jit import kernel
from latelier.kernels.simd import FLOATS, INTS, LANES, ROWS, at, constant, declare, splat
from latelier.kernels.tiles import Tile, dot_products

__all__ = ["max_of_rows", "pack_queries", "score_range"]

# LLVM 21 spells the operands of the dot product as bytes, earlier releases as words.
_OPERAND = ir.VectorType(ir.IntType(8), 64) if llvm.llvm_version_info[0] >= 21 else INTS


def _write(builder: ir.IRBuilder, arguments: Sequence[ir.Value], meanwhile: Any = None) -> None:
    """Write the instruction sequence of `max_of_rows`, which has the same arguments."""
    rows, scales, query, start, best, words = arguments
    dot = declare(builder.module, "llvm.x86.avx512.vpdpbusd.512", [INTS, _OPERAND, _OPERAND], INTS)

    def multiply(total: ir.Value, row: ir.Value, lanes: ir.Value) -> ir.Value:
        return builder.call(dot, [total, builder.bitcast(row, _OPERAND), builder.bitcast(lanes, _OPERAND)])

    begin = builder.load(at(builder, start, INTS), align=4)
    sums = dot_products(builder, Tile(rows, query, words), [begin], ir.IntType(32), multiply, meanwhile)
    highest = builder.load(at(builder, best, FLOATS), align=4)
    for r, (total,) in enumerate(sums):
        place = builder.add(scales, constant(4 * r))
        scale = splat(builder, builder.load(at(builder, place, ir.FloatType()), align=4), FLOATS)
        value = builder.fmul(builder.sitofp(total, FLOATS), scale)
        highest = builder.select(builder.fcmp_ordered(">", value, highest), value, highest)
    builder.store(highest, at(builder, best, FLOATS), align=4)


@intrinsic
def max_of_rows(typing_context: Any, rows: Any, scales: Any, query: Any, start: Any, best: Any, words: Any) -> Any:
    """``best[lane] = max(best[lane], scale[r] * <rows[r], query[lane]>)`` for eight rows.

    All arguments but the last are addresses: of the rows ``(8, words * 4)`` uint8, their scales ``(8,)`` float32, a
    packed query group ``(words, 16, 4)`` int8, its starting sums ``(16,)`` int32 and its maxima ``(16,)`` float32.
    """
    signature = types.void(*[types.int64] * 6)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _write(builder, arguments)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _max_and_convert(typing_context: Any, arguments: Any, places: Any) -> Any:
    """Do as `max_of_rows` and as `convert_meanwhile`, whose places are those of the next eight rows."""
    signature = types.void(types.UniTuple(types.int64, 6), types.UniTuple(types.int64, 3))

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        own, places = (cgutils.unpack_tuple(builder, value) for value in arguments)
        _write(builder, own, convert_meanwhile(builder, [INT8], constant(INT8), places))
        return context.get_dummy_value()

    return signature, generate


def pack_queries(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Arrange query tokens as the kernel reads them.

    Parameters
    ----------
    codes
        ``(query_tokens, dim)`` int8.

    Returns
    -------
    tuple of numpy.ndarray
        Groups of 16 tokens ``(groups, words, 16, 4)`` int8, zeros where tokens or dims are missing, and what the
        sums start with ``(groups, 16)`` int32.

    Examples
    --------
    >>> packed, start = pack_queries(np.array([[1, 2, 3], [0, 0, -1]], dtype="int8"))
    >>> packed.shape, packed[0, 0, :2].tolist(), start[0, :2].tolist()
    ((1, 1, 16, 4), [[1, 2, 3, 0], [0, 0, -1, 0]], [-768, 128])
    """
    tokens, dim = codes.shape
    groups, words = -(-tokens // LANES), -(-dim // 4)
    padded = np.zeros((groups * LANES, words * 4), dtype=np.int8)
    padded[:tokens, :dim] = codes
    start = -128 * padded.astype(np.int32).sum(axis=1, dtype=np.int32)
    packed = padded.reshape(groups, LANES, words, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(packed), start.reshape(groups, LANES)


@kernel()
def score_range(
    documents: tuple[np.ndarray, np.ndarray, np.ndarray],
    queries: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    scores: np.ndarray,
    column: int,
) -> None:
    """Score documents against queries.

    Parameters
    ----------
    documents
        Codes ``(tokens, words * 4)`` int8, scales ``(tokens,)`` float32, offsets ``(documents + 1,)`` int64.
    queries
        Both arrays of `pack_queries`, scales ``(query_tokens,)`` float32, offsets ``(queries + 1,)`` int64.
    scores
        ``(queries, n)`` float32, written in place.
    column
        Where the first document stands in `scores`.
    """
    codes, scales, offsets = documents
    packed, start, query_scales, query_offsets = queries
    width = packed.shape[1] * 4
    best = np.empty(packed.shape[0] * LANES, dtype=np.float32)
    buffers, few_scales = np.empty((2, ROWS, width // 4), dtype=np.int32), np.empty(ROWS, dtype=np.float32)
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        best[:] = -np.inf
        codes_at, scales_at = np.int64(codes.ctypes.data) + begin * width, np.int64(scales.ctypes.data) + begin * 4
        if 0 < end - begin < ROWS:
            for r in range(ROWS):  # the last token fills what is missing
                few_scales[r] = scales[min(begin + r, end - 1)]
            scales_at = np.int64(few_scales.ctypes.data)
        _maxima((codes_at, scales_at, end - begin), packed, start, buffers, best)
        for q in range(len(query_offsets) - 1):
            total = 0.0
            for i in range(query_offsets[q], query_offsets[q + 1]):
                total += best[i] * query_scales[i]
            scores[q, column + d] = total if begin < end else -np.inf


@kernel()
def _maxima(
    document: tuple[int, int, int], packed: np.ndarray, start: np.ndarray, buffers: np.ndarray, best: np.ndarray
) -> None:
    """Raise the maxima ``best`` by a document: addresses of its codes and of eight scales or more, and its tokens."""
    codes, scales, tokens = document
    words = packed.shape[1]
    width = words * 4
    query_at, start_at, best_at = np.int64(packed.ctypes.data), np.int64(start.ctypes.data), np.int64(best.ctypes.data)
    for token in range(0, tokens, ROWS):
        # The last step reaches back to score eight rows again, some of them twice: a maximum does not mind.
        first, after = max(0, min(token, tokens - ROWS)), min(token + ROWS, tokens - ROWS)
        step = token // ROWS % 2
        rows, target = np.int64(buffers[step].ctypes.data), np.int64(buffers[1 - step].ctypes.data)
        if token == 0:
            convert_rows(codes, min(ROWS, tokens), INT8, codes + ROWS * width, buffers[0])
        # After the last step there is nothing to convert: it converts the buffer, which nobody reads.
        coming = codes + after * width if token + ROWS < tokens else rows
        for g in range(packed.shape[0]):
            lanes = g * LANES * 4  # bytes
            own = (rows, scales + first * 4, query_at + lanes * words, start_at + lanes, best_at + lanes, words)
            if g == 0:
                _max_and_convert(own, (coming, target, codes + (after + ROWS) * width))  # type: ignore[call-arg]
            else:
                max_of_rows(*own)  # type: ignore[call-arg]  # numba fills in the typing context
