"""Floating-point MaxSim in one pass, for processors with AVX-512: no matrix of similarities is ever written.

A matrix product as narrow as a query runs at half the processor's speed, and its result has to be read again for the
maxima. Here sixteen query tokens fill the lanes of a register, eight document tokens are scored at a time, and the
running maximum stays in a register too. Sums are float32 for every dtype.

Half-precision documents are widened to float32 eight tokens at a time, while the eight before them are multiplied.
Where queries are bfloat16 too and the processor multiplies bfloat16 (AVX512_BF16), nothing is widened, and it takes
half the time; numbers below 1.2e-38 then count as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from latelier.kernels.conversion import BFLOAT16, FLOAT16, WORDS, convert_meanwhile, convert_rows
from latelier.kernels.jit import kernel
from latelier.kernels.simd import FLOATS, INTS, LANES, ROWS, at, constant, declare, splat

__all__ = ["Documents", "Queries", "pack_queries", "score_range"]


class _BFloat(ir.Type):
    """LLVM's bfloat16, a type that llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


# LLVM 16 declares the operands of the dot product as bfloat16, earlier releases as 32-bit words.
_PAIRS = ir.VectorType(_BFloat(), 2 * LANES) if llvm.llvm_version_info[0] >= 16 else INTS


class Documents(NamedTuple):
    """Documents to score, at their addresses in memory, which the caller keeps alive.

    Parameters
    ----------
    addresses
        Address of each document's rows ``(tokens, dim)``: ``(documents,)`` int64.
    lengths
        Number of rows of each document, ``(documents,)`` int64.
    row_bytes
        Bytes per row.
    numbers
        What a row holds: `WORDS`, words of the same type as those of the queries; or `FLOAT16` or `BFLOAT16`, which are
        widened to float32, the type of the queries then.
    """

    addresses: np.ndarray
    lengths: np.ndarray
    row_bytes: int
    numbers: int


class Queries(NamedTuple):
    """Queries to score.

    Parameters
    ----------
    packed
        From `pack_queries`.
    offsets
        ``(queries + 1,)`` int64.
    """

    packed: np.ndarray
    offsets: np.ndarray


def _max_of(groups: int) -> Any:
    """Make the instruction sequence for `groups` registers of query tokens at a time."""

    @intrinsic
    def max_of_rows(
        typing_context: Any, rows: Any, packed: Any, group: Any, best: Any, where: Any, first: Any, following: Any
    ) -> Any:
        """``best[lane] = max(best[lane], <rows[r], query[lane]>)`` for eight rows, and its number in ``where[lane]``.

        `rows`, `best` and `where` are the addresses of the rows, of the maxima ``(groups, 16)`` float32 and of the
        numbers of their rows ``(groups, 16)`` int32. `packed` comes from `pack_queries`; `group` is the first group of
        it to use. `first` is the number of the first row. `following` holds the arguments `numbers` and `places` of
        `convert_meanwhile`, for the next eight rows.
        """
        number = types.int64
        signature = types.void(number, packed, *[number] * 4, types.UniTuple(number, 4))

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            rows, packed, group, best, where, first, following = arguments
            numbers, *places = cgutils.unpack_tuple(builder, following, 4)
            array = context.make_array(signature.args[1])(context, builder, packed)
            words = cgutils.unpack_tuple(builder, array.shape)[1]
            data = builder.ptrtoint(array.data, ir.IntType(64))
            query = builder.add(data, builder.mul(group, builder.mul(words, constant(4 * LANES))))
            begin = [ir.Constant(FLOATS, [0.0] * LANES)] * groups
            float32 = signature.args[1].dtype == types.float32
            sums = _dot_products(
                builder,
                _Tile(rows, query, words),
                begin,
                ir.FloatType() if float32 else ir.IntType(32),
                _multiply_floats(builder) if float32 else _multiply_pairs(builder),
                convert_meanwhile(builder, (FLOAT16, BFLOAT16), numbers, places),
            )
            offset = builder.mul(group, constant(4 * LANES))
            number = splat(builder, builder.trunc(first, ir.IntType(32)), INTS)
            for g in range(groups):
                place = builder.add(offset, constant(4 * LANES * g))
                best_at = at(builder, builder.add(best, place), FLOATS)
                where_at = at(builder, builder.add(where, place), INTS)
                highest, found = builder.load(best_at, align=4), builder.load(where_at, align=4)
                for r, totals in enumerate(sums):
                    higher = builder.fcmp_ordered(">", totals[g], highest)
                    highest = builder.select(higher, totals[g], highest)
                    found = builder.select(higher, builder.add(number, ir.Constant(INTS, [r] * LANES)), found)
                builder.store(highest, best_at, align=4)
                builder.store(found, where_at, align=4)
            return context.get_dummy_value()

        return signature, generate

    return max_of_rows


def _multiply_floats(builder: ir.IRBuilder) -> Any:
    fma = declare(builder.module, "llvm.fma.v16f32", [FLOATS] * 3, FLOATS)
    return lambda total, row, lanes: builder.call(fma, [row, lanes, total])


def _multiply_pairs(builder: ir.IRBuilder) -> Any:
    dot = declare(builder.module, "llvm.x86.avx512bf16.dpbf16ps.512", [FLOATS, _PAIRS, _PAIRS], FLOATS)
    return lambda total, row, lanes: builder.call(
        dot, [total, builder.bitcast(row, _PAIRS), builder.bitcast(lanes, _PAIRS)]
    )


_max_of_one, _max_of_two = _max_of(1), _max_of(2)


class _Tile(NamedTuple):
    """Eight rows and some groups of query tokens, as 64-bit integers of the program that is emitted.

    Parameters
    ----------
    rows
        Address of eight rows of `words` words.
    query
        Address of groups of packed query tokens, ``(groups, words, 16)`` words.
    words
        Words of a row.
    """

    rows: ir.Value
    query: ir.Value
    words: ir.Value


def _dot_products(
    builder: ir.IRBuilder,
    tile: _Tile,
    start: Sequence[ir.Value],
    word: ir.Type,
    multiply: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
    meanwhile: Callable[[ir.Value], None],
) -> list[list[ir.Value]]:
    """Emit the dot products of eight rows with one or two groups of sixteen query tokens: one loop over the words.

    A word of four bytes is one float32 or two bfloat16. A row's word is copied to all lanes and multiplied by the same
    word of sixteen query tokens, so no sum goes across lanes. Two groups at a time need half as many copies.

    Parameters
    ----------
    builder
        Emits the instructions.
    tile
        The rows and query tokens.
    start
        For each group of query tokens the initial sums, a vector of 16.
    word
        Type of a word, four bytes.
    multiply
        From sums, a row's word in all lanes and a word of each query token, returns the sums with the products added.
    meanwhile
        Emits what else to do for each word, from the number of the word: prefetch the next rows, since reading them
        from memory takes as long as the multiplication.

    Returns
    -------
    list of list
        For each of the eight rows and each group, the sums.
    """
    lanes_type = ir.VectorType(word, LANES)
    sums = [[cgutils.alloca_once_value(builder, value) for value in start] for _ in range(ROWS)]
    row_bytes, group_bytes = builder.mul(tile.words, constant(4)), builder.mul(tile.words, constant(4 * LANES))
    with cgutils.for_range(builder, tile.words) as loop:
        here = builder.add(tile.query, builder.mul(loop.index, constant(4 * LANES)))
        lanes = []
        for _ in start:
            lanes.append(builder.load(at(builder, here, lanes_type), align=4))
            here = builder.add(here, group_bytes)
        meanwhile(loop.index)
        place = builder.add(tile.rows, builder.mul(loop.index, constant(4)))
        for totals in sums:
            row = splat(builder, builder.load(at(builder, place, word), align=4), lanes_type)
            for total, tokens in zip(totals, lanes, strict=True):
                builder.store(multiply(builder.load(total), row, tokens), total)
            place = builder.add(place, row_bytes)
    return [[builder.load(total) for total in totals] for totals in sums]


def pack_queries(vectors: np.ndarray) -> np.ndarray:
    """Arrange query tokens as the kernel reads them: groups of 16 tokens, word by word, zeros where tokens are missing.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32, or bfloat16 as int16 with an even dim.

    Returns
    -------
    numpy.ndarray
        ``(groups, dim, 16)`` float32, or ``(groups, dim / 2, 16)`` int32, each two bfloat16.

    Examples
    --------
    >>> pack_queries(np.array([[1, 2, 3], [4, 5, 6]], dtype="float32"))[0, :, :3]
    array([[1., 4., 0.],
           [2., 5., 0.],
           [3., 6., 0.]], dtype=float32)
    """
    words = vectors if vectors.dtype == np.float32 else np.ascontiguousarray(vectors).view(np.int32)
    tokens, width = words.shape
    groups = max(1, -(-tokens // LANES))
    padded = np.zeros((groups * LANES, width), dtype=words.dtype)
    padded[:tokens] = words
    return np.ascontiguousarray(padded.reshape(groups, LANES, width).transpose(0, 2, 1))


@kernel()
def score_range(documents: Documents, queries: Queries, scores: np.ndarray, positions: np.ndarray, column: int) -> None:
    """Score documents against queries.

    Parameters
    ----------
    documents, queries
        `Documents` and `Queries`, as plain tuples.
    scores
        ``(queries, n)`` float32, written in place.
    positions
        ``(query_tokens, n)`` int32, written in place, or `NO_POSITIONS`: see `segment_max_sum`.
    column
        Column of the first document in `scores` and `positions`.
    """
    addresses, lengths, row_bytes, numbers = documents
    packed, query_offsets = queries
    best = np.empty(packed.shape[0] * LANES, dtype=np.float32)
    where = np.empty(packed.shape[0] * LANES, dtype=np.int32)
    buffers = np.empty((2, ROWS, packed.shape[1]), dtype=np.int32)
    for d in range(len(addresses)):
        tokens, next_document = lengths[d], addresses[min(d + 1, len(addresses) - 1)]
        best[:] = -np.inf
        where[:] = -1
        _maxima((addresses[d], tokens, next_document), (row_bytes, numbers), packed, buffers, best, where)
        if positions.size > 0:
            positions[:, column + d] = where[: len(positions)]
        for q in range(len(query_offsets) - 1):
            total = 0.0
            for i in range(query_offsets[q], query_offsets[q + 1]):
                total += best[i]
            scores[q, column + d] = total if tokens > 0 else -np.inf


@kernel()
def _maxima(
    document: tuple[int, int, int],
    form: tuple[int, int],
    packed: np.ndarray,
    buffers: np.ndarray,
    best: np.ndarray,
    where: np.ndarray,
) -> None:
    """Update the maxima ``best`` with a document: its address, its number of tokens, the next document's address."""
    address, tokens, next_document = document
    row_bytes, numbers = form
    groups, best_at, where_at = packed.shape[0], best.ctypes.data, where.ctypes.data
    in_place = numbers == WORDS and tokens >= ROWS
    for token in range(0, tokens, ROWS):
        # The last step starts eight rows before the end and scores some rows twice, which changes no maximum.
        first, after = max(0, min(token, tokens - ROWS)), min(token + ROWS, tokens - ROWS)
        rows, coming = address + first * row_bytes, address + after * row_bytes
        step = token // ROWS % 2
        target = np.int64(buffers[1 - step].ctypes.data)
        if not in_place:
            if token == 0:
                convert_rows(rows, min(ROWS, tokens), numbers, rows, buffers[0])
            rows = np.int64(buffers[step].ctypes.data)
        if token + ROWS >= tokens:
            following = (WORDS, rows, target, next_document)
        else:
            following = (numbers, coming, target, coming if in_place else coming + ROWS * row_bytes)
        for g in range(0, groups - 1, 2):
            _max_of_two(rows, packed, g, best_at, where_at, first, following)
            following = (WORDS, rows, target, rows)  # the first pair of groups has converted them
        if groups % 2 == 1:
            _max_of_one(rows, packed, groups - 1, best_at, where_at, first, following)
