"""Sign scores: MaxSim of a query in small integers with the signs of document tokens, see `sign_integers`.

Four signs have only sixteen values, so a product is a sum of lookups in the tables of `sign_tables`, one for every four
dims, and one instruction looks up 16 to 64 document tokens (Andre et al., 2017, *Accelerated nearest neighbor search
with Quick ADC*). For that, the bits of 32 tokens are transposed first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latelier.indexes.ivf.kernels.codes import CodedDocuments
from latelier.indexes.ivf.kernels.lookup import TOKENS, lookup_of
from latelier.indexes.ivf.kernels.memory import copy_bytes, prefetch
from latelier.indexes.ivf.kernels.sign_tables import GROUPS
from latelier.kernels.jit import cgutils, intrinsic, ir, kernel, types
from latelier.kernels.simd import at, constant, declare, shuffle

__all__ = ["sign_scores"]

# Bytes of a row that are transposed together, and the words in them.
_BYTES, _WORDS = 16, 4
# Blocks of 32 document tokens that are compared with a query token at a time, at most.
_BLOCKS = 4
# How many documents ahead memory is prefetched.
_AHEAD = 2


@intrinsic
def _transpose(typing_context: Any, rows: Any, stride: Any, target: Any, target_stride: Any) -> Any:
    """Write the groups of four bits of 16 bytes of 32 rows, as 32 rows of 32 bytes: one row per group.

    The first two are the address of the rows and the bytes from one to the next, the others those of the result.
    """
    signature = types.void(*[types.int64] * 4)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        rows, stride, target, target_stride = arguments
        row_type, whole = ir.VectorType(ir.IntType(8), _BYTES), ir.VectorType(ir.IntType(8), TOKENS)

        def load(row: int) -> ir.Value:
            place = builder.add(rows, builder.mul(stride, constant(row)))
            return builder.load(at(builder, place, row_type), align=1)

        # Two tokens to a vector. Interleaving vectors i and i + 8 four times transposes both halves of 16 x 16 bytes.
        vectors = [shuffle(builder, load(row), range(TOKENS), load(row + _BYTES)) for row in range(_BYTES)]
        lower = [half + i // 2 + TOKENS * (i % 2) for half in (0, _BYTES) for i in range(_BYTES)]
        upper = [place + _BYTES // 2 for place in lower]
        for _ in range(4):
            pairs = list(zip(vectors[: _BYTES // 2], vectors[_BYTES // 2 :], strict=True))
            vectors = [shuffle(builder, first, places, other) for first, other in pairs for places in (lower, upper)]
        four, mask = ir.Constant(whole, [4] * TOKENS), ir.Constant(whole, [15] * TOKENS)
        for i, vector in enumerate(vectors):
            for part, group in enumerate((builder.and_(vector, mask), builder.lshr(vector, four))):
                place = builder.add(target, builder.mul(target_stride, constant(2 * i + part)))
                builder.store(group, at(builder, place, whole), align=1)
        return context.get_dummy_value()

    return signature, generate


def _raise_of(blocks: int) -> Any:
    """Make the instruction sequence for some blocks of 32 document tokens at a time."""

    @intrinsic
    def raise_maxima(typing_context: Any, isa: Any, groups: Any, tables: Any, best: Any, words: Any) -> Any:
        """``best[q] = max(best[q], sum over g of tables[g, q, groups[g]])`` for two query tokens.

        Addresses of the groups of bits of the document tokens, ``(8 * words, blocks, 32)`` uint8; of the tables,
        ``(8 * words, 2, 32)`` uint8; and of the maxima, ``(2, 16)`` uint16, of which the largest counts.
        """
        signature = types.void(isa, *[types.int64] * 4)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, groups, tables, best, words = arguments
            width = lookup_of(isa).width
            for first in range(0, 2 * TOKENS, width):
                own = (builder.add(address, constant(first)) for address in (tables, best))
                _emit_maxima(builder, isa, blocks, (groups, *own), words)
            return context.get_dummy_value()

        return signature, generate

    return raise_maxima


def _emit_maxima(
    builder: ir.IRBuilder, isa: types.BaseTuple, blocks: int, places: tuple[ir.Value, ...], words: ir.Value
) -> None:
    """Emit `raise_maxima` for the query tokens that are looked up together."""
    lookup = lookup_of(isa)
    groups, tables, best = places
    shorts = ir.VectorType(ir.IntType(16), lookup.width // 2)
    zero, eight, mask = (ir.Constant(shorts, [n] * shorts.count) for n in (0, 8, 255))
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(2)] for _ in range(blocks)]
    with cgutils.for_range(builder, words) as loop:
        totals: list[ir.Value] = []
        for g in range(GROUPS):
            row = builder.add(builder.mul(loop.index, constant(GROUPS)), constant(g))
            row_at = builder.add(groups, builder.mul(row, constant(TOKENS * blocks)))
            rows = [builder.add(row_at, constant(TOKENS * b)) for b in range(blocks)]
            found = lookup.emit(builder, builder.add(tables, builder.mul(row, constant(2 * TOKENS))), rows)
            totals = [builder.add(total, more) for total, more in zip(totals, found, strict=True)] if g else found
        for total, (even, odd) in zip(totals, sums, strict=True):
            both = builder.bitcast(total, shorts)
            builder.store(builder.add(builder.load(even), builder.and_(both, mask)), even)
            builder.store(builder.add(builder.load(odd), builder.lshr(both, eight)), odd)
    place = at(builder, best, shorts)
    highest = builder.load(place, align=2)
    for total in (builder.load(part) for parts in sums for part in parts):
        highest = builder.select(builder.icmp_unsigned(">", total, highest), total, highest)
    builder.store(highest, place, align=2)


_raise_by_four, _raise_by_two, _raise_by_one = _raise_of(4), _raise_of(2), _raise_of(1)


@intrinsic
def _highest(typing_context: Any, address: Any) -> Any:
    """Return the largest of sixteen uint16 at an address."""
    signature = types.int64(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(ir.IntType(16), TOKENS // 2)
        numbers = builder.load(at(builder, arguments[0], kind), align=2)
        name = f"llvm.vector.reduce.umax.v{kind.count}i16"
        largest = declare(builder.module, name, [kind], ir.IntType(16))
        return builder.zext(builder.call(largest, [numbers]), ir.IntType(64))

    return signature, generate


@kernel()
def sign_scores(
    isa: tuple[int, ...],
    documents: CodedDocuments,
    chosen: np.ndarray,
    row_bytes: int,
    query: tuple[np.ndarray, np.ndarray],
    scores: np.ndarray,
) -> None:
    """Write ``sum over query tokens of unit * largest sum of lookups`` for each chosen document.

    Up to a constant, this is the MaxSim of the query, in the integers of its tables, and the signs of the document.

    Parameters
    ----------
    isa
        `InstructionSet.argument`.
    documents
        `CodedDocuments`, as a plain tuple.
    chosen
        ``(n,)`` int64: documents to score, with at least one token each.
    row_bytes
        Bytes of a token's sign code.
    query
        Tables and units of the query, see `make_sign_tables` and `SignIntegers`. The tables may have fewer words than
        the sign codes; then the first dims are scored.
    scores
        ``(n,)`` float32, written; minus infinity where the sum is not finite.
    """
    documents = CodedDocuments(*documents)
    tables, units = query
    words = tables.shape[1] // GROUPS
    parts = -(-words // _WORDS)  # of 16 bytes
    best = np.empty((2 * len(tables), TOKENS // 2), dtype=np.uint16)
    groups = np.empty((parts * _WORDS * GROUPS, _BLOCKS * TOKENS), dtype=np.uint8)
    copies = np.zeros((TOKENS, parts * _BYTES), dtype=np.uint8)
    for n in range(len(chosen)):
        ahead = chosen[min(n + _AHEAD, len(chosen) - 1)]
        wanted, end = documents.signs[ahead], documents.signs[ahead] + documents.lengths[ahead] * row_bytes
        tokens, rows = documents.lengths[chosen[n]], documents.signs[chosen[n]]
        best[:] = 0
        token = 0
        while token < tokens:
            left = tokens - token
            blocks = 4 if left > 3 * TOKENS else 2 if left > TOKENS else 1
            # Prefetch as many bytes of a later document as this step reads; more at once would wait for each other.
            wanted = _fetch(wanted, min(end, wanted + blocks * TOKENS * row_bytes))
            for b in range(blocks):
                # The last block begins earlier, to have 32 tokens; comparing one twice does not change the maximum.
                first = max(0, min(token + b * TOKENS, tokens - TOKENS))
                _spread(rows + first * row_bytes, min(TOKENS, tokens), row_bytes, copies, groups, b, blocks)
            _compare(isa, groups, tables, blocks, words, best)
            token += blocks * TOKENS
        _fetch(wanted, end)
        total, best_at = np.float32(0), np.int64(best.ctypes.data)
        for i in range(len(units)):
            total += units[i] * np.float32(_highest(best_at + i * TOKENS))  # type: ignore[call-arg]
        # Units near the largest float can make the sum infinite, which the selection after this stage does not accept.
        scores[n] = total if total < np.inf else -np.inf


@kernel(inner=True)
def _spread(
    rows: int, count: int, row_bytes: int, copies: np.ndarray, groups: np.ndarray, block: int, blocks: int
) -> None:
    """Write the groups of bits of 32 rows into one of several blocks; with fewer rows, the last one is repeated."""
    stride, source = row_bytes, rows
    if count < TOKENS or copies.shape[1] > row_bytes:  # otherwise, 16 bytes at a time are within the rows
        stride, source = copies.shape[1], np.int64(copies.ctypes.data)
        for r in range(TOKENS):
            row = rows + min(r, count - 1) * row_bytes
            copy_bytes(source + r * stride, row, min(stride, row_bytes))  # type: ignore[call-arg]
    target_stride, target = TOKENS * blocks, np.int64(groups.ctypes.data) + TOKENS * block
    for part in range(copies.shape[1] // _BYTES):
        target_at = target + part * _WORDS * GROUPS * target_stride
        _transpose(source + part * _BYTES, stride, target_at, target_stride)  # type: ignore[call-arg]


@kernel(inner=True)
def _compare(
    isa: tuple[int, ...], groups: np.ndarray, tables: np.ndarray, blocks: int, words: int, best: np.ndarray
) -> None:
    """Update the maxima of all query tokens with the tokens of some blocks."""
    groups_at, tables_at, best_at = (
        np.int64(groups.ctypes.data),
        np.int64(tables.ctypes.data),
        np.int64(best.ctypes.data),
    )
    for pair in range(len(tables)):
        own_tables, own_best = tables_at + pair * words * GROUPS * 2 * TOKENS, best_at + pair * 2 * TOKENS
        if blocks == 4:
            _raise_by_four(isa, groups_at, own_tables, own_best, words)
        elif blocks == 2:
            _raise_by_two(isa, groups_at, own_tables, own_best, words)
        else:
            _raise_by_one(isa, groups_at, own_tables, own_best, words)


@kernel(inner=True)
def _fetch(address: int, end: int) -> int:
    """Prefetch the cache lines from an address to another, and return where the next one begins."""
    while address < end:
        prefetch(address)  # type: ignore[call-arg]
        address += 64
    return address
