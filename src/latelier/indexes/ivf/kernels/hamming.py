"""MaxSim of sign codes: each query token is matched with the document token at the least Hamming distance.

For unit vectors the expected Hamming distance decreases as the cosine increases. It ranks documents well enough to
discard nearly all of them before their codes are read, and takes two nanoseconds per document token. The kernel uses
LLVM's generic vector instructions, so it is the same for all processors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.indexes.ivf.code_layout import CodedDocuments
from latelier.indexes.ivf.kernels.memory import prefetch
from latelier.kernels.jit import kernel
from latelier.kernels.simd import INTS, LANES, ROWS, at, constant, declare, splat

__all__ = ["hamming_scores"]

_FAR = np.int32(1 << 30)
# How many documents ahead memory is prefetched.
_AHEAD = 2


def _least_of(count: int) -> Any:
    """Make the instruction sequence for `count` document tokens at a time."""

    @intrinsic
    def least_of_rows(typing_context: Any, rows: Any, query: Any, least: Any, words: Any) -> Any:
        """``least[lane] = min(least[lane], popcount(rows[r] ^ query[lane]))`` for `count` rows.

        The first three are addresses: of the rows ``(count, words)`` uint32, a group of query tokens ``(words, 16)``
        uint32 and its minima ``(16,)`` int32.
        """
        signature = types.void(*[types.int64] * 4)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            rows, query, least, words = arguments
            popcount = declare(builder.module, "llvm.ctpop.v16i32", [INTS], INTS)
            zero = ir.Constant(INTS, [0] * LANES)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(count)]
            stride = builder.mul(words, constant(4))
            with cgutils.for_range(builder, words) as loop:
                lanes_at = builder.add(query, builder.mul(loop.index, constant(4 * LANES)))
                lanes = builder.load(at(builder, lanes_at, INTS), align=4)
                column = builder.add(rows, builder.mul(loop.index, constant(4)))
                for r in range(count):
                    place = builder.add(column, builder.mul(stride, constant(r)))
                    row = splat(builder, builder.load(at(builder, place, ir.IntType(32)), align=4), INTS)
                    differing = builder.call(popcount, [builder.xor(row, lanes)])
                    builder.store(builder.add(builder.load(sums[r]), differing), sums[r])
            lowest = builder.load(at(builder, least, INTS), align=4)
            for total in map(builder.load, sums):
                lowest = builder.select(builder.icmp_unsigned("<", total, lowest), total, lowest)
            builder.store(lowest, at(builder, least, INTS), align=4)
            return context.get_dummy_value()

        return signature, generate

    return least_of_rows


_least_of_rows, _least_of_row = _least_of(ROWS), _least_of(1)


@kernel()
def hamming_scores(
    documents: CodedDocuments, chosen: np.ndarray, query: tuple[np.ndarray, np.ndarray], scores: np.ndarray
) -> None:
    """Write ``-(sum over query tokens of norm * least Hamming distance)`` for each chosen document.

    Parameters
    ----------
    documents
        `CodedDocuments`, as a plain tuple.
    chosen
        ``(n,)`` int64: documents to score, with at least one token each.
    query
        `signs` and `norms` of a `QuantisedQuery`.
    scores
        ``(n,)`` float32, written.
    """
    documents = CodedDocuments(*documents)
    signs, norms = query
    groups, words = signs.shape[0], signs.shape[1]
    least = np.empty(groups * LANES, dtype=np.int32)
    least_at, signs_at = np.int64(least.ctypes.data), np.int64(signs.ctypes.data)
    row_bytes, group_bytes = 4 * words, 4 * words * LANES
    for n in range(len(chosen)):
        ahead = chosen[min(n + _AHEAD, len(chosen) - 1)]
        wanted, end = documents.signs[ahead], documents.signs[ahead] + documents.lengths[ahead] * row_bytes
        tokens, rows = documents.lengths[chosen[n]], documents.signs[chosen[n]]
        least[:] = _FAR
        token = 0
        while token < tokens:
            # The last step begins earlier, to have eight rows; comparing a row twice does not change the minimum.
            first = min(token, tokens - ROWS) if tokens >= ROWS else token
            here = rows + first * row_bytes
            # Prefetch as many bytes of a later document as this step reads; more at once would wait for each other.
            wanted = _fetch(wanted, min(end, wanted + ROWS * row_bytes))
            for g in range(groups):
                if tokens >= ROWS:
                    _least_of_rows(here, signs_at + g * group_bytes, least_at + 4 * LANES * g, words)
                else:
                    _least_of_row(here, signs_at + g * group_bytes, least_at + 4 * LANES * g, words)
            token += ROWS if tokens >= ROWS else 1
        _fetch(wanted, end)
        total = np.float32(0)
        for i in range(len(norms)):
            total += norms[i] * least[i]
        # An infinite norm can make the sum NaN, which the selection after this stage does not accept.
        scores[n] = -total if total == total else -np.inf


@kernel()
def _fetch(address: int, end: int) -> int:
    """Prefetch the cache lines from an address to another, and return where the next one begins."""
    while address < end:
        prefetch(address)  # type: ignore[call-arg]
        address += 64
    return address
