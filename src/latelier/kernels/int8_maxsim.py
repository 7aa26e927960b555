"""Int8 MaxSim in one pass: no matrix of similarities is ever written.

Groups of sixteen query tokens fill the lanes of registers, eight document tokens are scored at a time, and the running
maximum stays in registers too. The multiplication takes unsigned by signed numbers, see `latelier.kernels.multiply`, so
document codes are shifted by 128 while the eight before them are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.kernels.conversion import INT8, WIDE_INT8, convert_meanwhile, convert_rows
from latelier.kernels.instruction_sets import has_wide_rows, instruction_set_of
from latelier.kernels.jit import kernel
from latelier.kernels.simd import FLOATS, LANES, ROWS, STEP, at, constant, splat

__all__ = ["Documents", "Queries", "emit_maxima", "pack_queries", "score_range"]


class Documents(NamedTuple):
    """Documents to score.

    Parameters
    ----------
    codes
        ``(tokens, dim)`` int8.
    scales
        ``(tokens,)`` float32.
    offsets
        ``(documents + 1,)`` int64.
    """

    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray


class Queries(NamedTuple):
    """Queries as the kernel reads them.

    Parameters
    ----------
    packed
        Groups of 16 tokens ``(groups, words, 16, 4)`` int8, zeros where tokens or dims are missing.
    start
        ``(groups, 16)`` int32: minus what shifting the document codes by 128 adds to each sum.
    scales
        ``(query_tokens,)`` float32.
    offsets
        ``(queries + 1,)`` int64.
    """

    packed: np.ndarray
    start: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray


def emit_maxima(
    builder: ir.IRBuilder,
    isa: types.BaseTuple,
    places: tuple[ir.Value, ir.Value, ir.Value],
    query: tuple[ir.Value, ir.Value],
    words: ir.Value,
    meanwhile: Callable[[ir.Value], None] | None = None,
    *,
    lanes: int = LANES,
) -> list[ir.Value]:
    """Emit ``best[lane] = max(best[lane], scales[r] * <rows[r], query[lane]>)`` for eight rows.

    Parameters
    ----------
    builder
        Emits the instructions.
    isa
        The numba type of `InstructionSet.argument`.
    places
        Addresses of the rows ``(8, words * 4)``, as `InstructionSet.multiply_bytes` takes them, of their scales
        ``(8,)`` float32 and of the maxima ``(16,)`` float32.
    query
        Addresses of sixteen packed query tokens ``(words, 16, 4)`` int8 and of their starting sums ``(16,)`` int32.
    words
        Words of four bytes in a row.
    meanwhile
        Emits what else to do for each word, from the number of the word.
    lanes
        The query tokens from this one on are zeros.

    Returns
    -------
    list of ir.Value
        The sixteen scaled products of each row.
    """
    rows, scales, best = places
    highest = builder.load(at(builder, best, FLOATS), align=4)
    products = []
    multiply = instruction_set_of(isa).multiply_lanes(lanes)
    for r, total in enumerate(multiply(builder, rows, [query], words, ROWS, meanwhile)):
        place = builder.add(scales, constant(4 * r))
        scale = splat(builder, builder.load(at(builder, place, ir.FloatType()), align=4), FLOATS)
        products.append(builder.fmul(builder.sitofp(total, FLOATS), scale))
        highest = builder.select(builder.fcmp_ordered(">", products[r], highest), products[r], highest)
    builder.store(highest, at(builder, best, FLOATS), align=4)
    return products


@intrinsic
def _raise_maxima(typing_context: Any, isa: Any, places: Any, query: Any, words: Any) -> Any:
    """Emit `emit_maxima`: `places` and `query` hold its addresses."""
    number = types.int64
    signature = types.void(isa, types.UniTuple(number, 3), types.UniTuple(number, 2), number)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        places, query = (cgutils.unpack_tuple(builder, value) for value in arguments[1:3])
        emit_maxima(builder, isa, places, query, arguments[3])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _raise_maxima_and_convert(
    typing_context: Any, isa: Any, places: Any, query: Any, words: Any, following: Any
) -> Any:
    """Emit `_raise_maxima`, and meanwhile `convert_meanwhile` with `following`, its places for the next eight rows."""
    number = types.int64
    signature = types.void(isa, types.UniTuple(number, 3), types.UniTuple(number, 2), number, types.UniTuple(number, 3))

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        places, query, following = (cgutils.unpack_tuple(builder, arguments[i]) for i in (1, 2, 4))
        kind = WIDE_INT8 if instruction_set_of(isa).wide_rows else INT8
        convert = convert_meanwhile(builder, [kind], constant(kind), 4 * ROWS, following)
        emit_maxima(builder, isa, places, query, arguments[3], convert)
        return context.get_dummy_value()

    return signature, generate


def pack_queries(codes: np.ndarray, scales: np.ndarray, offsets: np.ndarray) -> Queries:
    """Arrange query tokens as the kernel reads them.

    Parameters
    ----------
    codes
        ``(query_tokens, dim)`` int8.
    scales, offsets
        As in `Queries`.

    Returns
    -------
    Queries
        The packed queries.

    Examples
    --------
    >>> codes = np.array([[1, 2, 3], [0, 0, -1]], dtype="int8")
    >>> queries = pack_queries(codes, np.ones(2, dtype="float32"), np.array([0, 2]))
    >>> queries.packed.shape, queries.packed[0, 0, :2].tolist()
    ((1, 4, 16, 4), [[1, 2, 3, 0], [0, 0, -1, 0]])
    >>> queries.start[0, :2].tolist()
    [-768, 128]
    """
    tokens, dim = codes.shape
    groups, words = -(-tokens // LANES), -(-dim // (4 * STEP)) * STEP
    padded = np.zeros((groups * LANES, words * 4), dtype=np.int8)
    padded[:tokens, :dim] = codes
    start = -128 * padded.astype(np.int32).sum(axis=1, dtype=np.int32)
    packed = padded.reshape(groups, LANES, words, 4).transpose(0, 2, 1, 3)
    return Queries(np.ascontiguousarray(packed), start.reshape(groups, LANES), scales, offsets)


@kernel()
def score_range(isa: tuple[int, ...], documents: Documents, queries: Queries, scores: np.ndarray, column: int) -> None:
    """Score documents against queries.

    Parameters
    ----------
    isa
        `InstructionSet.argument`.
    documents
        `Documents`, as a plain tuple.
    queries
        From `pack_queries`, as a plain tuple.
    scores
        ``(queries, n)`` float32, written in place.
    column
        Column of the first document in `scores`.
    """
    codes, scales, offsets = documents
    packed, start, query_scales, query_offsets = queries
    dim = codes.shape[1]
    best = np.empty(packed.shape[0] * LANES, dtype=np.float32)
    words = packed.shape[1] * (1 + has_wide_rows(isa))
    buffers, few_scales = np.zeros((2, ROWS, words), dtype=np.int32), np.empty(ROWS, dtype=np.float32)
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        best[:] = -np.inf
        codes_at, scales_at = np.int64(codes.ctypes.data) + begin * dim, np.int64(scales.ctypes.data) + begin * 4
        if 0 < end - begin < ROWS:
            for r in range(ROWS):  # copies of the last scale fill up to eight
                few_scales[r] = scales[min(begin + r, end - 1)]
            scales_at = np.int64(few_scales.ctypes.data)
        _maxima(isa, (codes_at, dim, scales_at, end - begin), packed, start, buffers, best)
        for q in range(len(query_offsets) - 1):
            total = 0.0
            for i in range(query_offsets[q], query_offsets[q + 1]):
                total += best[i] * query_scales[i]
            scores[q, column + d] = total if begin < end else -np.inf


@kernel()
def _maxima(
    isa: tuple[int, ...],
    document: tuple[int, int, int, int],
    packed: np.ndarray,
    start: np.ndarray,
    buffers: np.ndarray,
    best: np.ndarray,
) -> None:
    """Update the maxima ``best`` with a document: address of its codes, dim, address of at least eight scales, tokens.

    `buffers` ``(2, 8, words)`` int32 hold the rows that are multiplied and those that are converted meanwhile; numbers
    beyond the dim are zeros there, or any others, since the query's are zeros.
    """
    codes, dim, scales, tokens = document
    words = packed.shape[1]
    query_at, start_at, best_at = np.int64(packed.ctypes.data), np.int64(start.ctypes.data), np.int64(best.ctypes.data)
    row = (WIDE_INT8 if has_wide_rows(isa) else INT8, dim, dim)
    in_step = dim == 4 * words  # rows are as long as those in the buffer, so that they can be converted meanwhile
    for token in range(0, tokens, ROWS):
        # The last step starts eight rows before the end and scores some rows twice, which changes no maximum.
        first, after = max(0, min(token, tokens - ROWS)), min(token + ROWS, tokens - ROWS)
        step = token // ROWS % 2
        rows, target = np.int64(buffers[step].ctypes.data), np.int64(buffers[1 - step].ctypes.data)
        if token == 0 or not in_step:
            convert_rows(codes + first * dim, min(ROWS, tokens), row, buffers[step])
        # Without next rows to convert, it converts this buffer into the other one, which is not read again.
        coming = codes + after * dim if in_step and token + ROWS < tokens else rows
        for g in range(packed.shape[0]):
            lanes = g * LANES * 4  # bytes
            places = (rows, scales + first * 4, best_at + lanes)
            query = (query_at + lanes * words, start_at + lanes)
            if g == 0:
                following = (coming, target, codes + (after + ROWS) * dim)
                _raise_maxima_and_convert(isa, places, query, words, following)  # type: ignore[call-arg]
            else:
                _raise_maxima(isa, places, query, words)  # type: ignore[call-arg]  # numba adds the typing context
