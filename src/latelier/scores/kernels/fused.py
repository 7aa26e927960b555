"""Float32 MaxSim in one pass, for processors with AVX-512: no score matrix is ever written.

A matrix product as narrow as a query runs at half the speed of the processor and then its result has to be read
again for the maxima. Here sixteen query tokens are the lanes of a register, eight document tokens are scored at a
time in eight registers, and the running maximum stays in a register too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.scores.kernels.jit import kernel
from latelier.scores.kernels.vectors import FLOATS, INTS, LANES, ROWS, at, constant, declare, splat

__all__ = ["pack_queries", "score_range"]


def _max_of(count: int) -> Any:
    """Make the instruction sequence for `count` document tokens at a time."""

    @intrinsic
    def max_of_rows(typing_context: Any, rows: Any, query: Any, best: Any, where: Any, dim: Any, first: Any) -> Any:
        """``best[lane] = max(best[lane], <rows[r], query[lane]>)`` for `count` rows, and in ``where[lane]`` its number.

        The first four are addresses: of the rows ``(count, dim)`` float32, a packed query group ``(dim, 16)``
        float32, its maxima ``(16,)`` float32 and where they were found ``(16,)`` int32. `first` is the number of the
        first row.
        """
        signature = types.void(*[types.int64] * 6)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            rows, query, best, where, dim, first = arguments
            fma = declare(builder.module, "llvm.fma.v16f32", [FLOATS] * 3, FLOATS)
            zero = ir.Constant(FLOATS, [0.0] * LANES)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(count)]
            stride = builder.mul(dim, constant(4))
            with cgutils.for_range(builder, dim) as loop:
                lanes_at = builder.add(query, builder.mul(loop.index, constant(4 * LANES)))
                lanes = builder.load(at(builder, lanes_at, FLOATS), align=4)
                column = builder.add(rows, builder.mul(loop.index, constant(4)))
                for r in range(count):
                    place = builder.add(column, builder.mul(stride, constant(r)))
                    row = splat(builder, builder.load(at(builder, place, ir.FloatType()), align=4), FLOATS)
                    builder.store(builder.call(fma, [row, lanes, builder.load(sums[r])]), sums[r])
            highest = builder.load(at(builder, best, FLOATS), align=4)
            number = splat(builder, builder.trunc(first, ir.IntType(32)), INTS)
            found = builder.load(at(builder, where, INTS), align=4)
            for r, total in enumerate(map(builder.load, sums)):
                higher = builder.fcmp_ordered(">", total, highest)
                highest = builder.select(higher, total, highest)
                found = builder.select(higher, builder.add(number, ir.Constant(INTS, [r] * LANES)), found)
            builder.store(highest, at(builder, best, FLOATS), align=4)
            builder.store(found, at(builder, where, INTS), align=4)
            return context.get_dummy_value()

        return signature, generate

    return max_of_rows


_max_of_rows, _max_of_row = _max_of(ROWS), _max_of(1)


def pack_queries(vectors: np.ndarray) -> np.ndarray:
    """Arrange query tokens ``(tokens, dim)`` float32 as the kernel reads them: ``(groups, dim, 16)``, zeros behind.

    Examples
    --------
    >>> pack_queries(np.array([[1, 2, 3], [4, 5, 6]], dtype="float32"))[0, :, :3]
    array([[1., 4., 0.],
           [2., 5., 0.],
           [3., 6., 0.]], dtype=float32)
    """
    tokens, dim = vectors.shape
    groups = max(1, -(-tokens // LANES))
    padded = np.zeros((groups * LANES, dim), dtype=np.float32)
    padded[:tokens] = vectors
    return np.ascontiguousarray(padded.reshape(groups, LANES, dim).transpose(0, 2, 1))


@kernel()
def score_range(
    documents: tuple[np.ndarray, np.ndarray],
    queries: tuple[np.ndarray, np.ndarray],
    scores: np.ndarray,
    positions: np.ndarray,
    column: int,
) -> None:
    """Score documents against queries.

    Parameters
    ----------
    documents
        Where each document's float32 rows ``(tokens, dim)`` begin in memory, ``(documents,)`` int64, and how many
        they are, ``(documents,)`` int64. Addresses, so that documents need not be copied together to be scored; the
        caller keeps the memory alive.
    queries
        From `pack_queries`; offsets ``(queries + 1,)`` int64.
    scores
        ``(queries, n)`` float32, written in place.
    positions
        ``(query_tokens, n)`` int32, written in place, or `NO_POSITIONS`: see `segment_max_sum`.
    column
        Where the first document stands in `scores` and `positions`.
    """
    addresses, lengths = documents
    packed, query_offsets = queries
    groups, dim = packed.shape[0], packed.shape[1]
    best = np.empty(groups * LANES, dtype=np.float32)
    where = np.empty(groups * LANES, dtype=np.int32)
    for d in range(len(addresses)):
        tokens = lengths[d]
        best[:] = -np.inf
        where[:] = -1
        token = 0
        while token < tokens:
            # The last step reaches back to score eight rows again, some of them twice: a maximum does not mind.
            first = min(token, tokens - ROWS) if tokens >= ROWS else token
            rows = addresses[d] + first * dim * 4
            for g in range(groups):
                query, lanes = packed[g].ctypes.data, slice(g * LANES, (g + 1) * LANES)
                highest, found = best[lanes].ctypes.data, where[lanes].ctypes.data
                if tokens >= ROWS:
                    _max_of_rows(rows, query, highest, found, dim, first)
                else:
                    _max_of_row(rows, query, highest, found, dim, first)
            token += ROWS if tokens >= ROWS else 1
        if positions.size > 0:
            positions[:, column + d] = where[: len(positions)]
        for q in range(len(query_offsets) - 1):
            total = 0.0
            for i in range(query_offsets[q], query_offsets[q + 1]):
                total += best[i]
            scores[q, column + d] = total if tokens > 0 else -np.inf
