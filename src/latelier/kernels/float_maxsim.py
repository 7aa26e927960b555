"""Floating-point MaxSim in one pass: no matrix of similarities is ever written.

A matrix product as narrow as a query runs at half the processor's speed, and its result has to be read again for the
maxima. Here groups of sixteen query tokens fill the lanes of one or more registers, some document tokens (`Tile`) are
scored at a time, and only maxima leave the registers. Sums are float32 for every dtype.

Half-precision documents are widened to float32, the tokens of one tile while those before them are multiplied. Where
queries are bfloat16 too and the processor multiplies bfloat16 fast (AMD's, with AVX512_BF16), nothing is widened, and
it takes half the time; numbers below 1.2e-38 then count as zero.

Backward, the gradient of query token ``i`` is ``sum over d of g[q, d] * document[j(i, d)]``, and that of
``document[j(i, d)]`` grows by ``g[q, d] * query[i]``, where ``j(i, d)`` is document ``d``'s best token for ``i``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.kernels.conversion import BFLOAT16, FLOAT16, WORDS, convert_meanwhile, convert_rows
from latelier.kernels.jit import FLOATS, INTS, LANES, STEP, at, cgutils, constant, intrinsic, ir, kernel, splat, types
from latelier.kernels.multiply import instruction_set_of, multiply_floats, tile_groups, tile_rows

# The argument `positions` if the positions of the best tokens are not needed.
NO_POSITIONS = np.empty((0, 0), dtype=np.int32)


class Documents(NamedTuple):
    """Documents to score, at their addresses in memory, which the caller keeps alive.

    `addresses`, `lengths`: of each document's rows, ``(documents,)`` int64. `kind`: what a row holds: `WORDS` of the
    type of the queries' words; or `FLOAT16` or `BFLOAT16`, which are widened to float32. `numbers`: of a row.
    """

    addresses: np.ndarray
    lengths: np.ndarray
    kind: int
    numbers: int
    row_bytes: int


class Queries(NamedTuple):
    """Queries to score: `packed` comes from `pack_queries`."""

    packed: np.ndarray
    offsets: np.ndarray


def _max_of(of_tile: bool) -> Any:
    """Make the instruction sequence for a tile, or for only one group of query tokens at a time."""

    @intrinsic
    def max_of_rows(
        typing_context: Any,
        isa: Any,
        rows: Any,
        packed: Any,
        group: Any,
        best: Any,
        where: Any,
        first: Any,
        following: Any,
    ) -> Any:
        """``best[lane] = max(best[lane], <rows[r], query[lane]>)`` for the rows of a tile, the row in ``where[lane]``.

        `rows`, `best` and `where` are the addresses of the rows, of the maxima ``(groups, 16)`` float32 and of the
        numbers of their rows ``(groups, 16)`` int32. `packed` comes from `pack_queries`; `group` is the first group of
        it to use. `first` is the number of the first row. `following` holds the arguments `numbers` and `places` of
        `convert_meanwhile`, for the rows of the next tile.
        """
        number = types.int64
        signature = types.void(isa, number, packed, *[number] * 4, types.UniTuple(number, 4))
        tile = instruction_set_of(isa).tile
        tile = tile if of_tile else tile._replace(groups=1)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, rows, packed, group, best, where, first, following = arguments
            numbers, *places = cgutils.unpack_tuple(builder, following, 4)
            array = context.make_array(signature.args[2])(context, builder, packed)
            words = cgutils.unpack_tuple(builder, array.shape)[1]
            data = builder.ptrtoint(array.data, ir.IntType(64))
            query = builder.add(data, builder.mul(group, builder.mul(words, constant(4 * LANES))))
            meanwhile = convert_meanwhile(builder, (FLOAT16, BFLOAT16), numbers, tile.rows * STEP, tuple(places))
            bfloat16 = signature.args[2].dtype != types.float32
            sums = multiply_floats(builder, tile, rows, query, words, meanwhile, bfloat16=bfloat16)
            offset = builder.mul(group, constant(4 * LANES))
            number = splat(builder, builder.trunc(first, ir.IntType(32)), INTS)
            for g in range(tile.groups):
                place = builder.add(offset, constant(4 * LANES * g))
                best_at = at(builder, builder.add(best, place), FLOATS)
                where_at = at(builder, builder.add(where, place), INTS)
                highest = builder.load(best_at, align=4)
                found = builder.load(where_at, align=4)
                for r, totals in enumerate(sums):
                    higher = builder.fcmp_ordered(">", totals[g], highest)
                    highest = builder.select(higher, totals[g], highest)
                    found = builder.select(higher, builder.add(number, ir.Constant(INTS, [r] * LANES)), found)
                builder.store(highest, best_at, align=4)
                builder.store(found, where_at, align=4)
            return context.get_dummy_value()

        return signature, generate

    return max_of_rows


_max_of_tile = _max_of(True)
_max_of_group = _max_of(False)


def pack_queries(vectors: np.ndarray) -> np.ndarray:
    """Arrange query tokens as the kernel reads them: groups of 16 tokens, word by word, zeros where tokens are missing.

    `vectors`: ``(tokens, dim)`` float32, or bfloat16 as int16 with an even dim. Returns: ``(groups, words, 16)``
    float32, or int32, each two bfloat16; a multiple of `STEP` words, the last of them zeros if need be.
    """
    if vectors.dtype == np.float32:
        words = vectors
    else:
        words = np.ascontiguousarray(vectors).view(np.int32)
    tokens, dim = words.shape
    width = -(-dim // STEP) * STEP
    groups = max(1, -(-tokens // LANES))
    padded = np.zeros((groups * LANES, width), dtype=words.dtype)
    padded[:tokens, :dim] = words
    return np.ascontiguousarray(padded.reshape(groups, LANES, width).transpose(0, 2, 1))


@kernel()
def score_range(
    isa: tuple[int, ...],
    documents: Documents,
    queries: Queries,
    scores: np.ndarray,
    positions: np.ndarray,
    column: int,
) -> None:
    """Score documents against queries.

    `documents`, `queries`: `Documents` and `Queries`, as plain tuples. `scores`: ``(queries, n)`` float32, written from
    `column` on: minus infinity for a document without tokens, 0 from a query without tokens. `positions`:
    ``(query_tokens, n)`` int32, written: the best token in the document (the first of equal ones), -1 for a document
    without tokens; or `NO_POSITIONS`.
    """
    addresses, lengths, kind, numbers, row_bytes = documents
    packed, query_offsets = queries
    best = np.empty(packed.shape[0] * LANES, dtype=np.float32)
    where = np.empty(packed.shape[0] * LANES, dtype=np.int32)
    buffers = np.zeros((2, tile_rows(isa), packed.shape[1]), dtype=np.int32)
    for d in range(len(addresses)):
        tokens = lengths[d]
        next_document = addresses[min(d + 1, len(addresses) - 1)]
        best[:] = -np.inf
        where[:] = -1
        _maxima(isa, (addresses[d], tokens, next_document), (kind, numbers, row_bytes), packed, buffers, best, where)
        if positions.size > 0:
            for i in range(len(positions)):  # the assignment of a slice would take seconds to compile
                positions[i, column + d] = where[i]
        for q in range(len(query_offsets) - 1):
            total = 0.0
            for i in range(query_offsets[q], query_offsets[q + 1]):
                total += best[i]
            scores[q, column + d] = total if tokens > 0 else -np.inf


@kernel(inner=True)
def _maxima(
    isa: tuple[int, ...],
    document: tuple[int, int, int],
    row: tuple[int, int, int],
    packed: np.ndarray,
    buffers: np.ndarray,
    best: np.ndarray,
    where: np.ndarray,
) -> None:
    """Update the maxima ``best`` with a document: its address, its number of tokens, the next document's address."""
    address, tokens, next_document = document
    kind, numbers, row_bytes = row
    height = tile_rows(isa)
    width = tile_groups(isa)
    groups = packed.shape[0]
    best_at = best.ctypes.data
    where_at = where.ctypes.data
    padded = numbers < packed.shape[1]  # rows have to be copied, with zeros after them
    in_place = kind == WORDS and tokens >= height and not padded
    for token in range(0, tokens, height):
        # The last tile starts earlier, to have all its rows, and scores some rows twice, which changes no maximum.
        first = max(0, min(token, tokens - height))
        after = min(token + height, tokens - height)
        rows = address + first * row_bytes
        coming = address + after * row_bytes
        step = token // height % 2
        target = np.int64(buffers[1 - step].ctypes.data)
        if not in_place:
            if token == 0 or padded:
                convert_rows(rows, min(height, tokens), row, buffers[step])
            rows = np.int64(buffers[step].ctypes.data)
        if padded or token + height >= tokens:
            following = (WORDS, rows, target, next_document)
        else:
            following = (kind, coming, target, coming if in_place else coming + height * row_bytes)
        for g in range(0, groups - width + 1, width):
            _max_of_tile(isa, rows, packed, g, best_at, where_at, first, following)
            following = (WORDS, rows, target, rows)  # the first groups have converted them
        for g in range(groups - groups % width, groups):
            _max_of_group(isa, rows, packed, g, best_at, where_at, first, following)
            following = (WORDS, rows, target, rows)


class Packed(NamedTuple):
    """Texts one after the other.

    `vectors`: ``(tokens, dim)`` float32; `offsets`: ``(texts + 1,)`` int64.
    """

    vectors: np.ndarray
    offsets: np.ndarray


@kernel()
def add_query_gradients(
    gradients: np.ndarray,
    positions: np.ndarray,
    documents: Packed,
    query_offsets: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Add the gradients of the tokens of queries ``first`` to ``last - 1`` to `out`, ``(query_tokens, dim)`` float32.

    `gradients`: of the scores, ``(queries, documents)`` float32. `positions`: ``(query_tokens, documents)`` int32: each
    document's best token, -1 if it has no token. `documents`: `Packed`, as a plain tuple.
    """
    vectors, offsets = documents
    for q in range(first, last):
        for token in range(query_offsets[q], query_offsets[q + 1]):
            for d in range(gradients.shape[1]):
                weight = gradients[q, d]
                if positions[token, d] >= 0 and weight != 0:
                    row = vectors[offsets[d] + positions[token, d]]
                    for i in range(len(row)):
                        out[token, i] += weight * row[i]


@kernel()
def add_document_gradients(
    gradients: np.ndarray,
    positions: np.ndarray,
    queries: Packed,
    document_offsets: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Add the gradients of the tokens of documents ``first`` to ``last - 1`` to `out`, see `add_query_gradients`.

    No two ranges of documents touch the same row of `out`.
    """
    vectors, offsets = queries
    for d in range(first, last):
        for q in range(gradients.shape[0]):
            weight = gradients[q, d]
            for token in range(offsets[q], offsets[q + 1]):
                if positions[token, d] >= 0 and weight != 0:
                    place = document_offsets[d] + positions[token, d]
                    for i in range(vectors.shape[1]):
                        out[place, i] += weight * vectors[token, i]
