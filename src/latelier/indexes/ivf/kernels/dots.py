"""Integer dot products in vectors: documents reranked, centroids compared, tokens assigned.

Each kernel takes the `InstructionSet` whose multiplication it is compiled with, see `latelier.kernels.cpu`; all give
equal results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.indexes.ivf.kernels.codes import load_rows, load_scales
from latelier.indexes.ivf.kernels.memory import copy_bytes, prefetch
from latelier.kernels.cpu import InstructionSet
from latelier.kernels.jit import kernel
from latelier.kernels.simd import FLOATS, INTS, LANES, ROWS, at, constant, declare, splat

__all__ = ["assign_rows", "group_dots", "lane_dots", "rerank_scores"]


def _max_of(count: int) -> Any:
    """Make the instruction sequence for the first `count` bytes of the query's numbers."""

    @intrinsic
    def max_of_rows(typing_context: Any, isa: Any, places: Any, words: Any, groups: Any) -> Any:
        """``best[lane] = max(best[lane], scales[r] * <rows[r], lanes[lane]>)`` for eight rows.

        Places are the addresses of the rows ``(8, words * 4)`` uint8, their scales ``(8,)`` float32, packed lanes
        ``(words, 16, 4)`` int8 of the query's first bytes (those of the next bytes follow `groups` groups later),
        their starting sums ``(16,)`` int32 (the same) and the maxima ``(16,)`` float32.
        """
        signature = types.void(isa, types.UniTuple(types.int64, 5), types.int64, types.int64)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, places, words, groups = arguments
            rows, scales, lanes, start, best = cgutils.unpack_tuple(builder, places)
            starts = builder.mul(groups, constant(4 * LANES))
            stride = builder.mul(starts, words)
            planes = [
                (
                    builder.add(lanes, builder.mul(stride, constant(plane))),
                    builder.add(start, builder.mul(starts, constant(plane))),
                )
                for plane in range(count)
            ]
            sums = isa.multiply_bytes(builder, rows, planes, words, ROWS)
            highest = builder.load(at(builder, best, FLOATS), align=4)
            finer = ir.Constant(FLOATS, [float(np.float32(1 / 254))] * LANES)
            for r in range(ROWS):
                value = builder.sitofp(sums[(count - 1) * ROWS + r], FLOATS)
                for plane in range(count - 2, -1, -1):
                    coarse = builder.sitofp(sums[plane * ROWS + r], FLOATS)
                    value = builder.fadd(coarse, builder.fmul(value, finer))
                place = builder.add(scales, constant(4 * r))
                scale = splat(builder, builder.load(at(builder, place, ir.FloatType()), align=4), FLOATS)
                value = builder.fmul(value, scale)
                highest = builder.select(builder.fcmp_ordered(">", value, highest), value, highest)
            builder.store(highest, at(builder, best, FLOATS), align=4)
            return context.get_dummy_value()

        return signature, generate

    return max_of_rows


_max_of_rows, _max_of_rows_finely = _max_of(1), _max_of(3)


@intrinsic
def _nearest_lanes(typing_context: Any, isa: Any, places: Any, groups: Any, words: Any) -> Any:
    """Write the lane with the highest dot product for eight rows, and that product; of equal ones, the first.

    Places are the addresses of the rows ``(8, words * 4)`` uint8, packed lanes ``(groups, words, 16, 4)`` int8, their
    starting sums ``(groups, 16)`` int32, and both results ``(8,)`` int32.
    """
    signature = types.void(isa, types.UniTuple(types.int64, 5), types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, places, groups, words = arguments
        rows, lanes, start, found, dots = cgutils.unpack_tuple(builder, places)
        lowest, nowhere = (ir.Constant(INTS, [n] * LANES) for n in (-(1 << 31), 0))
        best = [cgutils.alloca_once_value(builder, lowest) for _ in range(ROWS)]
        where = [cgutils.alloca_once_value(builder, nowhere) for _ in range(ROWS)]
        with cgutils.for_range(builder, groups) as loop:
            lanes_at = builder.add(lanes, builder.mul(builder.mul(loop.index, words), constant(4 * LANES)))
            start_at = builder.add(start, builder.mul(loop.index, constant(4 * LANES)))
            number = splat(builder, builder.trunc(loop.index, ir.IntType(32)), INTS)
            for r, total in enumerate(isa.multiply_bytes(builder, rows, [(lanes_at, start_at)], words, ROWS)):
                highest = builder.load(best[r])
                higher = builder.icmp_signed(">", total, highest)
                builder.store(builder.select(higher, total, highest), best[r])
                builder.store(builder.select(higher, number, builder.load(where[r])), where[r])
        for r in range(ROWS):
            dot, lane = _first_of_highest(builder, builder.load(best[r]), builder.load(where[r]))
            for value, result in ((lane, found), (dot, dots)):
                place = builder.add(result, constant(4 * r))
                builder.store(value, at(builder, place, ir.IntType(32)), align=4)
        return context.get_dummy_value()

    return signature, generate


def _first_of_highest(builder: ir.IRBuilder, best: ir.Value, where: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Emit the highest of sixteen numbers, and the lowest ``where * 16 + lane`` of those that have it."""
    word = ir.IntType(32)
    highest = declare(builder.module, "llvm.vector.reduce.smax.v16i32", [INTS], word)
    first = declare(builder.module, "llvm.vector.reduce.smin.v16i32", [INTS], word)
    dot = builder.call(highest, [best])
    numbers = builder.add(builder.mul(where, ir.Constant(INTS, [LANES] * LANES)), ir.Constant(INTS, list(range(LANES))))
    is_best = builder.icmp_signed("==", best, splat(builder, dot, INTS))
    none = ir.Constant(INTS, [(1 << 31) - 1] * LANES)
    return dot, builder.call(first, [builder.select(is_best, numbers, none)])


def _dots_of(count: int) -> Any:
    """Make the instruction sequence for `count` groups of lanes at a time."""

    @intrinsic
    def dots_of_groups(typing_context: Any, isa: Any, row: Any, lanes: Any, start: Any, out: Any, words: Any) -> Any:
        """``out[g, lane] = <row, lanes[g, lane]>``; all but the last are addresses, of the shapes above."""
        signature = types.void(isa, *[types.int64] * 5)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            row, lanes, start, out, words = arguments[1:]
            stride = builder.mul(words, constant(4 * LANES))
            groups = [
                (
                    builder.add(lanes, builder.mul(stride, constant(g))),
                    builder.add(start, constant(4 * LANES * g)),
                )
                for g in range(count)
            ]
            for g, total in enumerate(isa.multiply_bytes(builder, row, groups, words, 1)):
                builder.store(total, at(builder, builder.add(out, constant(4 * LANES * g)), INTS), align=4)
            return context.get_dummy_value()

        return signature, generate

    return dots_of_groups


_dots_of_groups, _dots_of_group = _dots_of(8), _dots_of(1)


@kernel()
def lane_dots(isa: InstructionSet, row: np.ndarray, packed: np.ndarray, start: np.ndarray, out: np.ndarray) -> None:
    """Write ``out[g, lane]``, the dot product of one row with every lane.

    Parameters
    ----------
    isa
        From `instruction_set`.
    row
        ``(words * 4,)`` uint8, shifted by 128.
    packed, start
        Groups of lanes ``(groups, words, 16, 4)`` int8 and their starting sums ``(groups, 16)`` int32.
    out
        ``(groups, 16)`` int32, written.
    """
    groups, words = packed.shape[0], packed.shape[1]
    row_at, lanes_at = np.int64(row.ctypes.data), np.int64(packed.ctypes.data)
    start_at, out_at = np.int64(start.ctypes.data), np.int64(out.ctypes.data)
    g = 0
    while g < groups:
        lanes, step = lanes_at + g * words * 4 * LANES, 4 * LANES * g
        if g + 8 <= groups:
            _dots_of_groups(isa, row_at, lanes, start_at + step, out_at + step, words)
            g += 8
        else:
            _dots_of_group(isa, row_at, lanes, start_at + step, out_at + step, words)
            g += 1


@kernel()
def group_dots(
    isa: InstructionSet, rows: np.ndarray, ranges: np.ndarray, packed: np.ndarray, start: np.ndarray, out: np.ndarray
) -> None:
    """Write the dot products of rows with the lanes of their own ranges of groups.

    Parameters
    ----------
    isa
        From `instruction_set`.
    rows
        ``(n, words * 4)`` uint8, shifted by 128.
    ranges
        ``(n, m, 2)`` int64: first and last (exclusive) group of each range.
    packed, start
        As for `lane_dots`.
    out
        ``(n, groups, 16)`` int32, written: the groups of a row's ranges, one range after the other.
    """
    for n in range(len(rows)):
        g = 0
        for m in range(ranges.shape[1]):
            first, last = ranges[n, m, 0], ranges[n, m, 1]
            lane_dots(isa, rows[n], packed[first:last], start[first:last], out[n, g : g + last - first])
            g += last - first


@kernel()
def assign_rows(
    isa: InstructionSet,
    rows: np.ndarray,
    order: np.ndarray,
    packed: np.ndarray,
    start: np.ndarray,
    lanes: np.ndarray,
    dots: np.ndarray,
) -> None:
    """Find the lane with the highest dot product for some rows; of equal ones, the first.

    Parameters
    ----------
    isa
        From `instruction_set`.
    rows
        ``(n, words * 4)`` uint8, shifted by 128.
    order
        ``(m,)`` int64, which rows.
    packed, start
        As for `lane_dots`.
    lanes, dots
        ``(n,)`` int32 both, written for these rows: ``group * 16 + lane``, and its dot product.
    """
    groups, words = packed.shape[0], packed.shape[1]
    width = words * 4
    block = np.empty((ROWS, width), dtype=np.uint8)
    best, where = np.empty(ROWS, dtype=np.int32), np.empty(ROWS, dtype=np.int32)
    best_at, where_at = np.int64(best.ctypes.data), np.int64(where.ctypes.data)
    for first in range(0, len(order), ROWS):
        count = min(ROWS, len(order) - first)
        if _are_consecutive(order, first, count):
            here = np.int64(rows.ctypes.data) + order[first] * width
        else:
            here = _copy_rows(rows, order, first, count, block)
        places = (here, np.int64(packed.ctypes.data), np.int64(start.ctypes.data), where_at, best_at)
        _nearest_lanes(isa, places, groups, words)  # type: ignore[call-arg]
        for r in range(count):
            # By index, not by address alone: numba frees an array after the last use of its name.
            lanes[order[first + r]], dots[order[first + r]] = where[r], best[r]


@kernel()
def _are_consecutive(order: np.ndarray, first: int, count: int) -> bool:
    """Whether eight rows follow one another, so that they can be multiplied where they lie."""
    consecutive = count == ROWS
    for r in range(1, count):
        consecutive &= order[first + r] == order[first] + r
    return consecutive


@kernel()
def _copy_rows(rows: np.ndarray, order: np.ndarray, first: int, count: int, block: np.ndarray) -> int:
    """Bring up to eight rows together, ask for the next ones, and return the address."""
    width = rows.shape[1]
    rows_at, block_at = np.int64(rows.ctypes.data), np.int64(block.ctypes.data)
    for r in range(count):
        copy_bytes(block_at + r * width, rows_at + order[first + r] * width, width)  # type: ignore[call-arg]
        ahead = order[min(first + r + ROWS, len(order) - 1)]
        for line in range(0, width, 64):
            prefetch(rows_at + ahead * width + line)
    return block_at


@kernel()
def rerank_scores(
    isa: InstructionSet,
    documents: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    chosen: np.ndarray,
    shape: tuple[int, int, int],
    query: tuple[np.ndarray, np.ndarray, np.ndarray],
    fine: bool,
    scores: np.ndarray,
) -> None:
    """Write the MaxSim of the chosen documents' codes with one query.

    Parameters
    ----------
    isa
        From `instruction_set`.
    documents
        Addresses of each document's signs, codes (or planes) and scales, and its number of tokens: int64 all.
    chosen
        ``(n,)`` int64: documents to score, with a token each.
    shape
        Bits, dim and sign words, as for `codes.load_rows`.
    query
        From `probing.encode_query`: codes in lanes with their starting sums, and scales.
    fine
        Use all three bytes of the query's numbers, rather than the first.
    scores
        ``(n,)`` float32, written.
    """
    signs, codes, scales, lengths = documents
    packed, start, query_scales = query
    bits, dim, sign_count = shape
    width = 32 * sign_count
    groups = packed.shape[1]
    rows = np.empty((ROWS, width), dtype=np.uint8)
    row_scales = np.empty(ROWS, dtype=np.float32)
    best = np.empty(groups * LANES, dtype=np.float32)
    rows_at, scales_at = np.int64(rows.ctypes.data), np.int64(row_scales.ctypes.data)
    packed_at, start_at = np.int64(packed.ctypes.data), np.int64(start.ctypes.data)
    best_at = np.int64(best.ctypes.data)
    direct = bits == 8 and dim == width  # then rows can be multiplied where they lie
    stride = dim if bits == 8 else (bits - 1) * sign_count * 4
    for n in range(len(chosen)):
        d, ahead = chosen[n], chosen[min(n + 1, len(chosen) - 1)]
        tokens, more = lengths[d], lengths[ahead]
        for line in range(0, 2 * more, 64):
            prefetch(scales[ahead] + line)  # type: ignore[call-arg]
        best[:] = -np.inf
        for token in range(0, max(tokens, more), ROWS):
            # The next document is asked for while this one is multiplied, a step's worth at a time: all at once would
            # only wait for each other.
            for line in range(token * stride, min(token + ROWS, more) * stride, 64):
                prefetch(codes[ahead] + line)  # type: ignore[call-arg]
            if token >= tokens:
                continue
            # The last step reaches back to score eight rows again, some of them twice: a maximum does not mind.
            first = max(0, min(token, tokens - ROWS))
            count = min(ROWS, tokens - first)
            here = (signs[d] + first * sign_count * 4, codes[d] + first * stride, scales[d] + first * 2)
            if direct and count == ROWS:
                block_at = here[1]
                load_scales(here[2], count, row_scales)
            else:
                block_at = rows_at
                load_rows(here, shape, count, rows, row_scales)
            for g in range(groups):
                lanes_at, sums_at = packed_at + g * width * LANES, start_at + 4 * LANES * g
                highest_at = best_at + 4 * LANES * g
                places = (block_at, scales_at, lanes_at, sums_at, highest_at)
                if fine:
                    _max_of_rows_finely(isa, places, width // 4, groups)
                else:
                    _max_of_rows(isa, places, width // 4, groups)
        total = np.float32(0)
        for i in range(len(query_scales)):
            total += best[i] * query_scales[i]
        # A document without tokens, or with scales that no encoder writes: the selection that follows knows no NaN.
        scores[n] = total if total == total else -np.inf
