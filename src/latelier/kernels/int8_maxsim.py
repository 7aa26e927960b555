"""Int8 MaxSim in one pass: no matrix of similarities is ever written.

Groups of sixteen query tokens fill the lanes of registers, eight document tokens are scored at a time, and the running
maximum stays in registers too. The multiplication takes unsigned by signed numbers, see `latelier.kernels.multiply`, so
document codes are shifted by 128 while the eight before them are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.kernels.conversion import INT8, WIDE_INT8, WORDS, convert_meanwhile, convert_rows
from latelier.kernels.jit import FLOATS, LANES, ROWS, STEP, at, cgutils, constant, intrinsic, ir, kernel, splat, types
from latelier.kernels.multiply import Factors, has_wide_rows, instruction_set_of, tile_groups


class Documents(NamedTuple):
    """Documents to score.

    `codes`: ``(tokens, dim)`` int8; `scales`: ``(tokens,)`` float32; `offsets`: ``(documents + 1,)`` int64.
    """

    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray


class Queries(NamedTuple):
    """Queries as the kernel reads them.

    `packed`: groups of 16 tokens ``(groups, words, 16, 4)`` int8, zeros where tokens or dims are missing; `start`:
    ``(groups, 16)`` int32: minus what shifting the document codes by 128 adds to each sum; `scales`:
    ``(query_tokens,)`` float32; `offsets`: ``(queries + 1,)`` int64.
    """

    packed: np.ndarray
    start: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray


def emit_maxima(
    builder: ir.IRBuilder,
    isa: types.BaseTuple,
    places: tuple[ir.Value, ir.Value, ir.Value],
    groups: Sequence[tuple[ir.Value, ir.Value]],
    words: ir.Value,
    meanwhile: Callable[[ir.Value], None] | None = None,
    *,
    lanes: int = LANES,
    widened: bool = False,
    leads: tuple[ir.Value, ir.Value] | None = None,
) -> list[ir.Value]:
    """Emit ``best[g, lane] = max(best[g, lane], scales[r] * <rows[r], groups[g, lane]>)`` for eight rows.

    `places`: addresses of the rows ``(8, words * 4)``, of their scales ``(8,)`` float32 and of the maxima ``(groups,
    16)`` float32; `leads`: addresses of ``(8,)`` and ``(groups, 16)`` float32, whose products are added to those of
    rows and groups; for the others see `Factors`. Returns the sixteen scaled products of each row: all
    rows of the first group, then of the next.
    """
    rows, scales, best = places
    factors = Factors(rows, groups, words, ROWS, meanwhile, lanes, widened)
    totals = instruction_set_of(isa).products.multiply(builder, factors)
    products = []
    for g in range(len(groups)):
        best_at = at(builder, builder.add(best, constant(4 * LANES * g)), FLOATS)
        highest = builder.load(best_at, align=4)
        for r in range(ROWS):
            place = builder.add(scales, constant(4 * r))
            scale = splat(builder, builder.load(at(builder, place, ir.FloatType()), align=4), FLOATS)
            product = builder.fmul(builder.sitofp(totals[ROWS * g + r], FLOATS), scale)
            if leads is not None:
                own = builder.load(at(builder, builder.add(leads[0], constant(4 * r)), ir.FloatType()), align=4)
                others = builder.load(at(builder, builder.add(leads[1], constant(4 * LANES * g)), FLOATS), align=4)
                product = builder.fadd(product, builder.fmul(splat(builder, own, FLOATS), others))
            highest = builder.select(builder.fcmp_ordered(">", product, highest), product, highest)
            products.append(product)
        builder.store(highest, best_at, align=4)
    return products


def _raise_maxima_of(of_tile: bool) -> Any:
    """Make the instruction sequence for the groups of a tile, or for only one group of query tokens at a time."""

    @intrinsic
    def raise_maxima(typing_context: Any, isa: Any, places: Any, query: Any, words: Any, following: Any) -> Any:
        """Emit `emit_maxima`: `places` and `query` hold its addresses.

        `following` holds the arguments `numbers` and `places` of `convert_meanwhile`, for the next eight rows.
        """
        number = types.int64
        pair, three, four = (types.UniTuple(number, count) for count in (2, 3, 4))
        chosen = instruction_set_of(isa)
        width = chosen.tile.groups if of_tile else 1
        wide = chosen.products.wide_rows

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, places, query, words, following = arguments
            places, (packed, start), (numbers, *coming) = (
                cgutils.unpack_tuple(builder, value) for value in (places, query, following)
            )
            convert = convert_meanwhile(builder, [WIDE_INT8 if wide else INT8], numbers, 4 * ROWS, tuple(coming))
            groups = []
            for _ in range(width):
                groups.append((packed, start))
                packed = builder.add(packed, builder.mul(words, constant(4 * LANES * (1 + wide))))
                start = builder.add(start, constant(4 * LANES))
            emit_maxima(builder, isa, places, groups, words, convert, widened=wide)
            return context.get_dummy_value()

        return types.void(isa, three, pair, number, four), generate

    return raise_maxima


_raise_maxima_of_tile = _raise_maxima_of(True)
_raise_maxima_of_group = _raise_maxima_of(False)


def pack_queries(codes: np.ndarray, scales: np.ndarray, offsets: np.ndarray) -> Queries:
    """Arrange query tokens as the kernel reads them.

    `codes`: ``(query_tokens, dim)`` int8; `scales`, `offsets`: as in `Queries`.
    """
    tokens, dim = codes.shape
    groups = -(-tokens // LANES)
    words = -(-dim // (4 * STEP)) * STEP
    padded = np.zeros((groups * LANES, words * 4), dtype=np.int8)
    padded[:tokens, :dim] = codes
    start = -128 * padded.astype(np.int32).sum(axis=1, dtype=np.int32)
    packed = padded.reshape(groups, LANES, words, 4).transpose(0, 2, 1, 3)
    return Queries(np.ascontiguousarray(packed), start.reshape(groups, LANES), scales, offsets)


@kernel()
def score_range(isa: tuple[int, ...], documents: Documents, queries: Queries, scores: np.ndarray, column: int) -> None:
    """Score documents against queries.

    `documents`: `Documents`, as a plain tuple; `queries`: from `pack_queries`, likewise; `scores`: ``(queries, n)``
    float32, written from `column` on.
    """
    codes, scales, offsets = documents
    packed, start, query_scales, query_offsets = queries
    dim = codes.shape[1]
    best = np.empty(packed.shape[0] * LANES, dtype=np.float32)
    words = packed.shape[1] * (1 + has_wide_rows(isa))
    widened = widen(packed, has_wide_rows(isa))
    buffers = np.zeros((2, ROWS, words), dtype=np.int32)
    few_scales = np.empty(ROWS, dtype=np.float32)
    for d in range(len(offsets) - 1):
        begin = offsets[d]
        end = offsets[d + 1]
        best[:] = -np.inf
        codes_at = np.int64(codes.ctypes.data) + begin * dim
        scales_at = np.int64(scales.ctypes.data) + begin * 4
        if 0 < end - begin < ROWS:
            for r in range(ROWS):  # copies of the last scale fill up to eight
                few_scales[r] = scales[min(begin + r, end - 1)]
            scales_at = np.int64(few_scales.ctypes.data)
        _maxima(isa, (codes_at, dim, scales_at, end - begin), (packed, widened, start), buffers, best)
        for q in range(len(query_offsets) - 1):
            total = 0.0
            for i in range(query_offsets[q], query_offsets[q + 1]):
                total += best[i] * query_scales[i]
            scores[q, column + d] = total if begin < end else -np.inf


@kernel(inner=True)
def widen(packed: np.ndarray, wanted: bool) -> np.ndarray:
    """Return packed query tokens as 16 bits, so that it is not done again for each row; nothing if not wanted."""
    numbers = packed.reshape(-1)
    widened = np.empty(len(numbers) if wanted else 0, dtype=np.int16)
    for i in range(len(widened)):
        widened[i] = numbers[i]
    return widened


@kernel()
def _maxima(
    isa: tuple[int, ...],
    document: tuple[int, int, int, int],
    query: tuple[np.ndarray, np.ndarray, np.ndarray],
    buffers: np.ndarray,
    best: np.ndarray,
) -> None:
    """Update the maxima ``best`` with a document: address of its codes, dim, address of at least eight scales, tokens.

    `query` holds the packed tokens, the same from `widen`, and their starting sums.
    `buffers` ``(2, 8, words)`` int32 hold the rows that are multiplied and those that are converted meanwhile; numbers
    beyond the dim are zeros there, or any others, since the query's are zeros.
    """
    codes, dim, scales, tokens = document
    packed, widened, start = query
    words = packed.shape[1]
    column_bytes = 4 * (1 + has_wide_rows(isa))
    query_at = np.int64(packed.ctypes.data)
    start_at = np.int64(start.ctypes.data)
    best_at = np.int64(best.ctypes.data)
    if has_wide_rows(isa):
        query_at = np.int64(widened.ctypes.data)
    kind = WIDE_INT8 if has_wide_rows(isa) else INT8
    groups = packed.shape[0]
    width = tile_groups(isa)
    in_step = dim == 4 * words  # rows are as long as those in the buffer, so that they can be converted meanwhile
    for token in range(0, tokens, ROWS):
        # The last step starts eight rows before the end and scores some rows twice, which changes no maximum.
        first = max(0, min(token, tokens - ROWS))
        after = min(token + ROWS, tokens - ROWS)
        step = token // ROWS % 2
        rows = np.int64(buffers[step].ctypes.data)
        target = np.int64(buffers[1 - step].ctypes.data)
        if token == 0 or not in_step:
            convert_rows(codes + first * dim, min(ROWS, tokens), (kind, dim, dim), buffers[step])
        following = (WORDS, rows, target, codes + (after + ROWS) * dim)
        if in_step and token + ROWS < tokens:
            following = (kind, codes + after * dim, target, codes + (after + ROWS) * dim)
        for g in range(0, groups - width + 1, width):
            lanes = g * LANES * 4  # bytes
            columns = (query_at + g * LANES * column_bytes * words, start_at + lanes)
            _raise_maxima_of_tile(isa, (rows, scales + first * 4, best_at + lanes), columns, words, following)
            following = (WORDS, rows, target, rows)  # the first groups have converted them
        for g in range(groups - groups % width, groups):
            lanes = g * LANES * 4
            columns = (query_at + g * LANES * column_bytes * words, start_at + lanes)
            _raise_maxima_of_group(isa, (rows, scales + first * 4, best_at + lanes), columns, words, following)
            following = (WORDS, rows, target, rows)
