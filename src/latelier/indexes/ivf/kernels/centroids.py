"""Products of queries and documents with centroids.

Rows are tokens as bytes shifted by 128; they are multiplied with groups of 16 centroids, packed so that
each has a SIMD lane. Every kernel takes `InstructionSet.argument` and is compiled with the multiplication of that
instruction set, see `latelier.kernels.multiply`; the results are equal for all instruction sets.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.indexes.ivf.kernels.codes import copy_bytes, prefetch
from latelier.kernels.conversion import widen_bytes
from latelier.kernels.jit import INTS, LANES, ROWS, at, cgutils, constant, declare, intrinsic, ir, kernel, splat, types
from latelier.kernels.multiply import Factors, has_wide_rows, instruction_set_of


@intrinsic
def _nearest_of_rows(typing_context: Any, isa: Any, places: Any, groups: Any, words: Any) -> Any:
    """Write for eight rows the centroid with the highest dot product, and that product; of equal ones, the first.

    `places` are five addresses: of the rows ``(8, words * 4)`` from `as_multiplied`, of the centroids ``(groups,
    words, 16, 4)`` int8, of their starting sums ``(groups, 16)`` int32, and of the two results ``(8,)`` int32.
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
            for r, total in enumerate(
                instruction_set_of(isa).products.multiply(builder, Factors(rows, [(lanes_at, start_at)], words, ROWS))
            ):
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
    """Emit the highest of sixteen numbers, and the lowest ``where * 16 + lane`` of the lanes that hold it."""
    word = ir.IntType(32)
    highest = declare(builder.module, "llvm.vector.reduce.smax.v16i32", [INTS], word)
    first = declare(builder.module, "llvm.vector.reduce.smin.v16i32", [INTS], word)
    dot = builder.call(highest, [best])
    numbers = builder.add(builder.mul(where, ir.Constant(INTS, [LANES] * LANES)), ir.Constant(INTS, list(range(LANES))))
    is_best = builder.icmp_signed("==", best, splat(builder, dot, INTS))
    none = ir.Constant(INTS, [(1 << 31) - 1] * LANES)
    return dot, builder.call(first, [builder.select(is_best, numbers, none)])


def _dots_of(count: int) -> Any:
    """Make the instruction sequence for `count` groups of centroids at a time."""

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
            factors = Factors(row, groups, words, 1)
            for g, total in enumerate(instruction_set_of(isa).products.multiply(builder, factors)):
                builder.store(total, at(builder, builder.add(out, constant(4 * LANES * g)), INTS), align=4)
            return context.get_dummy_value()

        return signature, generate

    return dots_of_groups


_dots_of_groups = _dots_of(8)
_dots_of_group = _dots_of(1)


@kernel(inner=True)
def as_multiplied(isa: tuple[int, ...], rows: int, wide: np.ndarray) -> int:
    """Return the address of rows of bytes as the instruction set multiplies them: in `wide`, if that is 16 bits."""
    if not has_wide_rows(isa):
        return rows
    widen_bytes(rows, np.int64(wide.ctypes.data), len(wide))
    return np.int64(wide.ctypes.data)


@kernel(inner=True)
def _dots_of_row(isa: tuple[int, ...], row_at: int, packed: np.ndarray, start: np.ndarray, out: np.ndarray) -> None:
    """Write ``out[g, lane]``, the dot product of one row, at its address from `as_multiplied`, with every centroid."""
    groups = packed.shape[0]
    words = packed.shape[1]
    lanes_at = np.int64(packed.ctypes.data)
    start_at = np.int64(start.ctypes.data)
    out_at = np.int64(out.ctypes.data)
    g = 0
    while g < groups:
        lanes = lanes_at + g * words * 4 * LANES
        step = 4 * LANES * g
        if g + 8 <= groups:
            _dots_of_groups(isa, row_at, lanes, start_at + step, out_at + step, words)
            g += 8
        else:
            _dots_of_group(isa, row_at, lanes, start_at + step, out_at + step, words)
            g += 1


@kernel()
def centroid_dots(
    isa: tuple[int, ...], rows: np.ndarray, ranges: np.ndarray, packed: np.ndarray, start: np.ndarray, out: np.ndarray
) -> None:
    """Write the dot products of each row with the centroids in its own ranges of groups.

    `isa`: `InstructionSet.argument`; `rows`: ``(n, words * 4)`` uint8, shifted by 128; `ranges`: ``(n, m, 2)`` int64:
    first and last (exclusive) group of each range; `packed`, `start`: centroids ``(groups, words, 16, 4)`` int8 and
    their starting sums ``(groups, 16)`` int32; `out`: ``(n, groups, 16)`` int32, written: the groups of a row's ranges,
    one range after the other.
    """
    wide = np.empty(rows.shape[1], dtype=np.uint16)  # used in each turn, as numba frees it after its last use by name
    for n in range(len(rows)):
        row_at = as_multiplied(isa, np.int64(rows[n].ctypes.data), wide)
        g = 0
        for m in range(ranges.shape[1]):
            first = ranges[n, m, 0]
            last = ranges[n, m, 1]
            _dots_of_row(isa, row_at, packed[first:last], start[first:last], out[n, g : g + last - first])
            g += last - first


@kernel()
def nearest_centroids(
    isa: tuple[int, ...],
    rows: np.ndarray,
    order: np.ndarray,
    packed: np.ndarray,
    start: np.ndarray,
    nearest: np.ndarray,
    dots: np.ndarray,
) -> None:
    """Find the centroid with the highest dot product for some rows; of equal ones, the first.

    `isa`: `InstructionSet.argument`; `rows`: ``(n, words * 4)`` uint8, shifted by 128; `order`: ``(m,)`` int64: the
    rows to assign; `packed`, `start`: as for `centroid_dots`; `nearest`, `dots`: ``(n,)`` int32 both, written for these
    rows: the centroid, ``group * 16 + lane``, and its dot product.
    """
    groups = packed.shape[0]
    words = packed.shape[1]
    width = words * 4
    block = np.empty((ROWS, width), dtype=np.uint8)
    wide = np.empty(ROWS * width, dtype=np.uint16)
    best = np.empty(ROWS, dtype=np.int32)
    where = np.empty(ROWS, dtype=np.int32)
    best_at = np.int64(best.ctypes.data)
    where_at = np.int64(where.ctypes.data)
    for first in range(0, len(order), ROWS):
        count = min(ROWS, len(order) - first)
        if _are_consecutive(order, first, count):
            here = np.int64(rows.ctypes.data) + order[first] * width
        else:
            here = _copy_rows(rows, order, first, count, block)
        here = as_multiplied(isa, here, wide)
        places = (here, np.int64(packed.ctypes.data), np.int64(start.ctypes.data), where_at, best_at)
        _nearest_of_rows(isa, places, groups, words)  # type: ignore[call-arg]
        for r in range(count):
            # The arrays are used by name here, since numba frees an array after the last use of its name.
            nearest[order[first + r]], dots[order[first + r]] = where[r], best[r]


@kernel()
def nearest_of_groups(
    isa: tuple[int, ...],
    rows: np.ndarray,
    members: tuple[np.ndarray, np.ndarray],
    centroids: tuple[np.ndarray, np.ndarray, np.ndarray],
    nearest: np.ndarray,
    dots: np.ndarray,
) -> None:
    """Find the nearest centroid of rows that each have centroids of their own: those of the coarse centroid above.

    `isa`, `rows`: as for `nearest_centroids`. `members`: offsets ``(coarse + 1,)`` and rows ``(n,)``, both int64: which
    rows are under each coarse centroid. `centroids`: `packed` and `start`, as for `centroid_dots`, and offsets
    ``(coarse + 1,)`` int64 of the groups under each coarse centroid. `nearest`, `dots`: as for `nearest_centroids`;
    numbers of centroids begin with 0 under each coarse centroid.
    """
    offsets, order = members
    packed, start, groups = centroids
    for c in range(len(offsets) - 1):
        mine = order[offsets[c] : offsets[c + 1]]
        if len(mine) > 0:
            first = groups[c]
            last = groups[c + 1]
            nearest_centroids(isa, rows, mine, packed[first:last], start[first:last], nearest, dots)


@kernel(inner=True)
def _are_consecutive(order: np.ndarray, first: int, count: int) -> bool:
    """Whether these rows are eight consecutive ones, which can be multiplied in place."""
    consecutive = count == ROWS
    for r in range(1, count):
        consecutive &= order[first + r] == order[first] + r
    return consecutive


@kernel(inner=True)
def _copy_rows(rows: np.ndarray, order: np.ndarray, first: int, count: int, block: np.ndarray) -> int:
    """Copy `count` rows, from ``order[first]`` on, into a block, prefetch the next ones, and return its address."""
    width = rows.shape[1]
    rows_at = np.int64(rows.ctypes.data)
    block_at = np.int64(block.ctypes.data)
    for r in range(count):
        copy_bytes(block_at + r * width, rows_at + order[first + r] * width, width)  # type: ignore[call-arg]
        ahead = order[min(first + r + ROWS, len(order) - 1)]
        for line in range(0, width, 64):
            prefetch(rows_at + ahead * width + line)
    return block_at


# Digits of a number, and what a unit of one is worth in units of the next.
DIGITS = 3
BASE = 254


class QuantisedQuery(NamedTuple):
    """A query as ``scale * (d0 + d1 / 254 + d2 / 254**2)``, each digit in -127 to 127: as precise as float32.

    With ``width = byte_width(dim)`` and groups of 16 tokens, one in each SIMD lane: `digits` ``(3, tokens, width)``
    int16; `rows` ``(tokens, width)`` uint8, first digits + 128, for packed centroids; `packed` ``(3, groups, width / 4,
    16, 4)`` int8, for document rows; `start` ``(3, groups, 16)`` int32, ``-128 * (sum of a token's digits)``, which
    cancels the shift of document rows; `scales` ``(tokens,)`` float32; `leads` ``(16 * groups,)`` float32, in units of
    the scales. Most stages read only the first digit.
    """

    vectors: np.ndarray
    digits: np.ndarray
    rows: np.ndarray
    packed: np.ndarray
    start: np.ndarray
    scales: np.ndarray
    leads: np.ndarray


# The rest of a query token is taken to be at least so long, beside its lead: a smaller one adds nothing to a score.
_LEAST_REST = np.float32(2**-24)


@kernel()
def quantise_query(vectors: np.ndarray, leads: np.ndarray, digits: int = DIGITS) -> QuantisedQuery:
    """Return a quantised query; the scale of each token is its largest absolute number / 127.

    `vectors`: ``(tokens, dim)`` float32, rotated rests; `leads`: ``(tokens,)`` float32; `digits`: how many digits to
    compute, the first ones, in place of three: probing reads only the first.
    """
    tokens, dim = vectors.shape
    # words of four bytes: byte_width(dim) / 4
    words = 8 * -(-dim // 32)
    groups = -(-tokens // LANES)
    query = QuantisedQuery(
        vectors,
        np.zeros((digits, tokens, 4 * words), dtype=np.int16),
        np.full((tokens, 4 * words), 128, dtype=np.uint8),
        np.zeros((digits, groups, words, LANES, 4), dtype=np.int8),
        np.zeros((digits, groups, LANES), dtype=np.int32),
        np.empty(tokens, dtype=np.float32),
        np.zeros(groups * LANES, dtype=np.float32),
    )
    rest = np.empty(dim, dtype=np.float64)
    for t in range(tokens):
        group = t // LANES
        lane = t % LANES
        peak = np.float32(0)
        for i in range(dim):
            x = vectors[t, i]
            size = -x if x < 0 else x
            peak = size if size > peak else peak
        peak = max(peak, _LEAST_REST * abs(leads[t]))
        query.scales[t] = peak / np.float32(127)
        # Smaller scales are rounded so much that digits would be above 127: the token is taken as zeros.
        if query.scales[t] > 1e-42:
            inverse = 1 / np.float64(query.scales[t])
        else:
            inverse = 0.0
        query.leads[t] = leads[t] * inverse
        for i in range(dim):
            rest[i] = np.float64(vectors[t, i]) * inverse
        for place in range(digits):
            total = np.int32(0)
            for i in range(dim):
                # floor(rest + 1/2): the shift by 128 makes the number positive, and truncation then rounds it down.
                # The new rest is 254 times a number in [-1/2, 1/2], so the next digit is in [-127, 127].
                digit = np.int32(rest[i] + 128.5) - np.int32(128)
                rest[i] = (rest[i] - digit) * BASE
                query.digits[place, t, i] = digit
                total += digit
            query.start[place, group, lane] = -128 * total
            for i in range(dim):
                query.packed[place, group, i >> 2, lane, i & 3] = query.digits[place, t, i]
        for i in range(dim):
            query.rows[t, i] = np.int32(query.digits[0, t, i]) + 128
    return query
