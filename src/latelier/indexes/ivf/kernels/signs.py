"""The binary stage of a query: documents are compared by the signs of their vectors.

The dot product of a unit vector with the signs of another is about ``0.8 * sqrt(dim)`` times their cosine. MaxSim of
these products ranks documents well enough to discard nearly all before their codes are read, and is more precise than
Hamming distances (Gao and Long, 2024, *RaBitQ*).

Four signs have only sixteen values, so a product is a sum of lookups in the tables of `fill_sign_tables`, one for every
four dims, and one instruction looks up 16 to 64 document tokens (Andre et al., 2017, *Accelerated nearest neighbor
search with Quick ADC*). For that, the bits of 32 tokens are transposed first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from latelier.indexes.ivf.kernels.codes import CodedDocuments, copy_bytes, prefetch
from latelier.indexes.ivf.layout import CELLS, SIZE_BITS
from latelier.kernels.jit import at, cgutils, constant, declare, intrinsic, ir, kernel, shuffle, splat, types
from latelier.kernels.multiply import instruction_set_of

# Neighbouring dims whose absolute integers add up to at most 15: all sums of their products with signs fit five bits.
GROUP = 4
_MOST = 15
# Rounding adds at most half a unit to the absolute value of each.
_ROOM = _MOST + 0.5 - GROUP / 2
_LARGEST = float(np.finfo(np.float32).max)


@kernel()
def round_to_integers(vectors: np.ndarray, integers: np.ndarray, units: np.ndarray) -> None:
    """Round the first dims of a query, ``(tokens, dim)`` float32, to about ``unit * integers``.

    `integers`: ``(tokens, 32 * words)`` int8, zeros before the call, of which each four, from the first, get absolute
    values that add up to at most 15; `units`: ``(tokens,)`` float32, the largest sum of four absolute numbers / 13.5.
    """
    dims = min(vectors.shape[1], integers.shape[1])
    for t in range(len(vectors)):
        largest = 0.0
        for first in range(0, dims, GROUP):
            total = 0.0
            for i in range(first, min(first + GROUP, dims)):
                total += abs(np.float64(vectors[t, i]))
            largest = max(largest, total)
        unit = largest / _ROOM
        for i in range(dims):
            integers[t, i] = np.floor(vectors[t, i] / max(unit, 1e-300) + 0.5)
        units[t] = min(unit, _LARGEST)


# Document tokens in one row of table positions, one byte each.
TOKENS = 32
_HALF = 16


class Lookup(NamedTuple):
    """How an instruction set looks up bytes.

    `width`: bytes looked up together: 32, those of one query token, or 64, those of two. `emit`: emits the lookup,
    ``emit(builder, table, rows)``: address of a table of 16 bytes, `width` bytes which repeat it, or for two query
    tokens repeat the table of each in 32 bytes; and addresses of rows of `TOKENS` positions, 0 to 15 each. Returns
    `width` bytes for each row.
    """

    width: int
    emit: Callable[[ir.IRBuilder, ir.Value, Sequence[ir.Value]], list[ir.Value]]


def lookup_of(isa: types.BaseTuple) -> Lookup:
    """Return the lookup of an instruction set, given the numba type of its `InstructionSet.argument`."""
    features = instruction_set_of(isa).features
    return next(lookup for feature, lookup in _LOOKUPS.items() if feature in features or feature == "")


def _bytes(count: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(8), count)


def _load(builder: ir.IRBuilder, address: ir.Value, count: int) -> ir.Value:
    return builder.load(at(builder, address, _bytes(count)), align=1)


def _avx512(builder: ir.IRBuilder, table: ir.Value, rows: Sequence[ir.Value]) -> list[ir.Value]:
    kind = _bytes(2 * TOKENS)
    look_up = declare(builder.module, "llvm.x86.avx512.pshuf.b.512", [kind, kind], kind)
    tables = _load(builder, table, 2 * TOKENS)
    found = []
    for row in rows:
        places = _load(builder, row, TOKENS)
        twice = shuffle(builder, places, [*range(TOKENS)] * 2)
        found.append(builder.call(look_up, [tables, twice]))
    return found


def _avx2(builder: ir.IRBuilder, table: ir.Value, rows: Sequence[ir.Value]) -> list[ir.Value]:
    kind = _bytes(TOKENS)
    look_up = declare(builder.module, "llvm.x86.avx2.pshuf.b", [kind, kind], kind)
    tables = _load(builder, table, TOKENS)
    return [builder.call(look_up, [tables, _load(builder, row, TOKENS)]) for row in rows]


def _neon(builder: ir.IRBuilder, table: ir.Value, rows: Sequence[ir.Value]) -> list[ir.Value]:
    kind = _bytes(_HALF)
    look_up = declare(builder.module, "llvm.aarch64.neon.tbl1.v16i8", [kind, kind], kind)
    tables = _load(builder, table, _HALF)
    found = []
    for row in rows:
        halves = [
            builder.call(look_up, [tables, _load(builder, builder.add(row, constant(first)), _HALF)])
            for first in (0, _HALF)
        ]
        found.append(shuffle(builder, halves[0], range(TOKENS), halves[1]))
    return found


def _generic(builder: ir.IRBuilder, table: ir.Value, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Emit a lookup without a shuffle instruction, for tables in which each bit of a position adds a number.

    The byte at position p is ``table[0] + sum of (table[1 << b] - table[0]) over the set bits b of p``, modulo 256.
    """
    kind = _bytes(TOKENS)
    byte = ir.IntType(8)

    def entry(position: int) -> ir.Value:
        return builder.load(at(builder, builder.add(table, constant(position)), byte), align=1)

    first = entry(0)
    found = []
    steps = [(1 << b, splat(builder, builder.sub(entry(1 << b), first), kind)) for b in range(4)]
    for row in rows:
        places = _load(builder, row, TOKENS)
        total = splat(builder, first, kind)
        for bit, step in steps:
            is_set = builder.icmp_unsigned(
                "!=", builder.and_(places, ir.Constant(kind, [bit] * TOKENS)), ir.Constant(kind, [0] * TOKENS)
            )
            total = builder.add(total, builder.select(is_set, step, ir.Constant(kind, [0] * TOKENS)))
        found.append(total)
    return found


# By a feature of the instruction set; the last one is for all others.
_LOOKUPS = {
    "avx512bw": Lookup(2 * TOKENS, _avx512),
    "avx2": Lookup(TOKENS, _avx2),
    "neon": Lookup(TOKENS, _neon),
    "": Lookup(TOKENS, _generic),
}


# Groups of four dims in a word of 32 signs. A table holds 0 to 30, so the sum of a word's lookups, at most 240, fits a
# byte.
GROUPS = 8


@kernel()
def fill_sign_tables(integers: np.ndarray, tables: np.ndarray) -> None:
    """Write the tables of a query, ``(pairs, groups, 2, 32)`` uint8, zeros before the call.

    For pairs of query tokens and groups of four dims: ``(sum of integer * sign) + (sum of absolute integers)`` for each
    value of four bits, twice. A set bit is the sign +1, the lowest bit that of the first dim. The last table stays 0 if
    the number of tokens is odd.
    """
    for t in range(len(integers)):
        for g in range(tables.shape[1]):
            table = tables[t >> 1, g, t & 1]
            lowest = 0  # the entry of four signs of -1
            for b in range(GROUP):
                number = np.int32(integers[t, g * GROUP + b])
                lowest += abs(number) - number
            table[0] = lowest
            for b in range(GROUP):
                step = 2 * np.int32(integers[t, g * GROUP + b])
                for i in range(1 << b):
                    table[(1 << b) + i] = np.int32(table[i]) + step
            for i in range(1 << GROUP):
                table[(1 << GROUP) + i] = table[i]


# Bytes of a row that are transposed together, and the words in them.
_BYTES = 16
_WORDS = 4
# Blocks of 32 document tokens that are compared with a query token at a time, at most.
_BLOCKS = 4
# How many documents ahead memory is prefetched.
_AHEAD = 2


def _transpose_of(has_cells: bool) -> Any:
    """Make the instruction sequence for rows that are the binary codes, or to which those of cells are added."""

    @intrinsic
    def transpose(typing_context: Any, rows: Any, target: Any, target_stride: Any, cells: Any, masks: Any) -> Any:
        """Write the groups of four bits of 16 bytes of 32 rows, as 32 rows of 32 bytes: one row per group.

        `rows` are the address of the rows and the bytes from one to the next. `cells`, `masks`: what each row stores of
        its cell, and for each cell, 16 bytes of bits on which it decides, and 16 of those of them that it sets.
        """
        signature = types.void(types.UniTuple(types.int64, 2), *[types.int64] * 4)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            address, target, target_stride, cells, masks = arguments
            rows, stride = cgutils.unpack_tuple(builder, address)
            row_type = ir.VectorType(ir.IntType(8), _BYTES)
            whole = ir.VectorType(ir.IntType(8), TOKENS)

            def load(row: int) -> ir.Value:
                place = builder.add(rows, builder.mul(stride, constant(row)))
                signs = builder.load(at(builder, place, row_type), align=1)
                if not has_cells:
                    return signs
                stored = builder.load(at(builder, builder.add(cells, constant(2 * row)), ir.IntType(16)), align=1)
                cell = builder.and_(builder.zext(stored, ir.IntType(64)), constant(-1 << SIZE_BITS))
                mask = builder.add(masks, builder.mul(cell, constant(2 * _BYTES >> SIZE_BITS)))
                decided = builder.load(at(builder, mask, row_type), align=4)
                positive = builder.load(at(builder, builder.add(mask, constant(_BYTES)), row_type), align=4)
                return builder.or_(builder.and_(signs, builder.not_(decided)), positive)

            # Two tokens to a vector. Interleaving vectors i and i + 8 four times transposes both halves of 16 x 16
            # bytes.
            vectors = [shuffle(builder, load(row), range(TOKENS), load(row + _BYTES)) for row in range(_BYTES)]
            lower = [half + i // 2 + TOKENS * (i % 2) for half in (0, _BYTES) for i in range(_BYTES)]
            upper = [place + _BYTES // 2 for place in lower]
            for _ in range(4):
                pairs = list(zip(vectors[: _BYTES // 2], vectors[_BYTES // 2 :], strict=True))
                vectors = [shuffle(builder, x, places, y) for x, y in pairs for places in (lower, upper)]
            four = ir.Constant(whole, [4] * TOKENS)
            mask = ir.Constant(whole, [15] * TOKENS)
            for i, vector in enumerate(vectors):
                for part, group in enumerate((builder.and_(vector, mask), builder.lshr(vector, four))):
                    place = builder.add(target, builder.mul(target_stride, constant(2 * i + part)))
                    builder.store(group, at(builder, place, whole), align=1)
            return context.get_dummy_value()

        return signature, generate

    return transpose


_transpose = _transpose_of(False)
_transpose_with_cells = _transpose_of(True)


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
            if g:
                totals = [builder.add(total, more) for total, more in zip(totals, found, strict=True)]
            else:
                totals = found
        for total, (even, odd) in zip(totals, sums, strict=True):
            both = builder.bitcast(total, shorts)
            builder.store(builder.add(builder.load(even), builder.and_(both, mask)), even)
            builder.store(builder.add(builder.load(odd), builder.lshr(both, eight)), odd)
    place = at(builder, best, shorts)
    highest = builder.load(place, align=2)
    for total in (builder.load(part) for parts in sums for part in parts):
        highest = builder.select(builder.icmp_unsigned(">", total, highest), total, highest)
    builder.store(highest, place, align=2)


_raise_by_four = _raise_of(4)
_raise_by_two = _raise_of(2)
_raise_by_one = _raise_of(1)


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
    masks: np.ndarray,
    query: tuple[np.ndarray, np.ndarray],
    scores: np.ndarray,
) -> None:
    """Write ``sum over query tokens of unit * largest sum of lookups`` for each chosen document.

    Up to a constant, this is the MaxSim of the query, in the integers of its tables, and the signs of the document.
    `isa`: `InstructionSet.argument`. `documents`: `CodedDocuments`, as a plain tuple. `chosen`: ``(n,)`` int64:
    documents to score, with at least one token each. `masks`: `Cells.masks`, empty if codes have no cells.
    `query`: tables and units of the query, see `fill_sign_tables` and `round_to_integers`. The tables may have fewer
    words than the binary codes; then the first dims are scored. `scores`: ``(n,)`` float32, written; minus infinity
    where the sum is not finite.
    """
    documents = CodedDocuments(*documents)
    tables, units = query
    words = tables.shape[1] // GROUPS
    parts = -(-words // _WORDS)  # of 16 bytes
    best = np.empty((2 * len(tables), TOKENS // 2), dtype=np.uint16)
    groups = np.empty((parts * _WORDS * GROUPS, _BLOCKS * TOKENS), dtype=np.uint8)
    copies = np.zeros((TOKENS + _HALF, parts * _BYTES), dtype=np.uint8)
    if len(masks) > 0:
        masks_at = np.int64(masks.ctypes.data)
    else:
        masks_at = np.int64(0)
    for n in range(len(chosen)):
        ahead = chosen[min(n + _AHEAD, len(chosen) - 1)]
        wanted = documents.signs[ahead]
        end = documents.signs[ahead] + documents.lengths[ahead] * row_bytes
        tokens = documents.lengths[chosen[n]]
        rows = documents.signs[chosen[n]]
        cells = documents.cells[chosen[n]]
        if masks_at != 0:
            _fetch(documents.cells[ahead], documents.cells[ahead] + 2 * documents.lengths[ahead])
        best[:] = 0
        token = 0
        while token < tokens:
            left = tokens - token
            if left > 3 * TOKENS:
                blocks = 4
            elif left > TOKENS:
                blocks = 2
            else:
                blocks = 1
            # Prefetch as many bytes of a later document as this step reads; more at once would wait for each other.
            wanted = _fetch(wanted, min(end, wanted + blocks * TOKENS * row_bytes))
            for b in range(blocks):
                # The last block begins earlier, to have 32 tokens; comparing one twice does not change the maximum.
                first = max(0, min(token + b * TOKENS, tokens - TOKENS))
                here = rows + first * row_bytes, cells + 2 * first
                _spread(here, min(TOKENS, tokens), row_bytes, copies, masks_at, groups, b, blocks)
            _compare(isa, groups, tables, blocks, words, best)
            token += blocks * TOKENS
        _fetch(wanted, end)
        total = np.float32(0)
        best_at = np.int64(best.ctypes.data)
        for i in range(len(units)):
            total += units[i] * np.float32(_highest(best_at + i * TOKENS))  # type: ignore[call-arg]
        # Units near the largest float can make the sum infinite, which the selection after this stage does not accept.
        if total < np.inf:
            scores[n] = total
        else:
            scores[n] = -np.inf


@kernel(inner=True)
def _spread(
    here: tuple[int, int],
    count: int,
    row_bytes: int,
    copies: np.ndarray,
    masks: int,
    groups: np.ndarray,
    block: int,
    blocks: int,
) -> None:
    """Write the groups of bits of 32 rows into one of several blocks; with fewer rows, the last one is repeated.

    `here`: addresses of the rows and of their cells; `copies`: memory for copies of rows, and then of their cells;
    `masks`: address of the masks of cells, 0 if there are none.
    """
    (source, cells) = here
    stride = row_bytes
    if count < TOKENS or copies.shape[1] > row_bytes:  # otherwise, 16 bytes at a time are within the rows
        stride = copies.shape[1]
        source = np.int64(copies.ctypes.data)
        cells = source + stride * TOKENS
        for r in range(TOKENS):
            row = here[0] + min(r, count - 1) * row_bytes
            copy_bytes(source + r * stride, row, min(stride, row_bytes))  # type: ignore[call-arg]
            if masks != 0:
                copy_bytes(cells + 2 * r, here[1] + 2 * min(r, count - 1), 2)
    target_stride = TOKENS * blocks
    target = np.int64(groups.ctypes.data) + TOKENS * block
    for part in range(copies.shape[1] // _BYTES):
        target_at = target + part * _WORDS * GROUPS * target_stride
        rows = source + part * _BYTES, stride
        if masks != 0:
            _transpose_with_cells(rows, target_at, target_stride, cells, masks + part * 2 * _BYTES * CELLS)
        else:
            _transpose(rows, target_at, target_stride, 0, 0)


@kernel(inner=True)
def _compare(
    isa: tuple[int, ...], groups: np.ndarray, tables: np.ndarray, blocks: int, words: int, best: np.ndarray
) -> None:
    """Update the maxima of all query tokens with the tokens of some blocks."""
    groups_at = np.int64(groups.ctypes.data)
    tables_at = np.int64(tables.ctypes.data)
    best_at = np.int64(best.ctypes.data)
    for pair in range(len(tables)):
        own_tables = tables_at + pair * words * GROUPS * 2 * TOKENS
        own_best = best_at + pair * 2 * TOKENS
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


@kernel("reassoc", "contract")
def product_variance(vectors: np.ndarray, dims: int, rows: np.ndarray) -> float:
    """Return the sum over pairs of query tokens of ``norm_i * norm_j * max(0, cosine_ij) ** 8``, by the first dims.

    `vectors`: ``(tokens, dim)`` float32. `rows`: from `variance_rows`: the tokens to compare with all; with a part of
    them, the result is an estimate.
    """
    tokens = len(vectors)
    directions = np.empty((tokens, dims), dtype=np.float32)
    norms = np.empty(tokens)
    for t in range(tokens):
        square = 0.0
        for i in range(dims):
            square += np.float64(vectors[t, i]) ** 2
        norms[t] = np.sqrt(square)
        inverse = 1 / norms[t] if square > 0 else 0.0
        for i in range(dims):
            directions[t, i] = vectors[t, i] * inverse
    everything = len(rows) == tokens
    total = 0.0
    for row in rows:
        # With all rows, each pair is computed once and counted twice.
        part = 0.0
        for t in range(row + 1 if everything else 0, tokens):
            cosine = np.float32(0)
            for i in range(dims):
                cosine += directions[row, i] * directions[t, i]
            part += norms[t] * max(cosine, np.float32(0)) ** 8
        total += norms[row] * (norms[row] + 2 * part if everything else part)
    return total * tokens / max(1, len(rows))
