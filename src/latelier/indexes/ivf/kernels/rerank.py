"""Reranking: MaxSim of document codes with a query, whose numbers are taken in 8 bits, then in single precision.

The products in 8 bits are wrong by a bounded amount, so only few document tokens can have the highest product with a
query token, and only these are multiplied with all digits of its numbers: first the one with the highest product in 8
bits, then those that may exceed it. The scores in single precision are those of all products with all digits, and equal
for all instruction sets. They are computed for the documents with the best scores in 8 bits, while the products in 8
bits are at hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latelier.indexes.ivf.kernels.centroids import BASE, DIGITS, QuantisedQuery, as_multiplied, quantise_query
from latelier.indexes.ivf.kernels.codes import (
    TokenAddresses,
    load_leads,
    load_row,
    load_rows,
    load_scales,
    lowest_bit,
    prefetch,
    prefetch_cells,
    token_addresses,
)
from latelier.indexes.ivf.layout import CodedDocuments, CodeShape
from latelier.kernels.int8_maxsim import emit_maxima, widen
from latelier.kernels.jit import (
    FLOATS,
    LANES,
    ROWS,
    at,
    cgutils,
    constant,
    declare,
    intrinsic,
    ir,
    kernel,
    splat,
    types,
)
from latelier.kernels.multiply import has_wide_rows, instruction_set_of, multiply_pairs

# Groups of query tokens whose products with a document are kept at a time; limits the memory for long queries.
_GROUPS = 4
_UNIT = np.float32(1 / BASE)
# Numbers that are multiplied at a time for one product.
_NUMBERS = 32


def _raise_maxima_of(lanes: int) -> Any:
    """Make the instruction sequence for groups of which only some lanes hold a query token."""

    @intrinsic
    def raise_maxima(typing_context: Any, isa: Any, places: Any, words: Any, stride: Any) -> Any:
        """Raise the maxima of sixteen query tokens by eight rows, see `emit_maxima`, and keep the products.

        `places` are eight addresses: of the rows from `as_multiplied`, of their scales ``(8,)`` float32, of the maxima
        ``(16,)`` float32, of the leads of the rows ``(8,)`` and of the query tokens ``(16,)`` float32, of the query
        tokens ``(words, 16, 4)`` int8, or int16 if rows are wide, of their starting sums ``(16,)`` int32, and of the
        products ``(8, 16)`` float32, whose rows are `stride` bytes apart.
        """
        signature = types.void(isa, types.UniTuple(types.int64, 8), types.int64, types.int64)
        wide = instruction_set_of(isa).products.wide_rows

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, places, words, stride = arguments
            rows, scales, best, *leads, query, start, kept = cgutils.unpack_tuple(builder, places)
            own = (rows, scales, best)
            groups = [(query, start)]
            both = (leads[0], leads[1])
            products = emit_maxima(builder, isa, own, groups, words, lanes=lanes, widened=wide, leads=both)
            for r, product in enumerate(products):
                place = builder.add(kept, builder.mul(stride, constant(r)))
                builder.store(product, at(builder, place, FLOATS), align=4)
            return context.get_dummy_value()

        return signature, generate

    return raise_maxima


_raise_four, _raise_eight, _raise_twelve, _raise_all = map(_raise_maxima_of, (4, 8, 12, LANES))


@intrinsic
def _lanes_reaching(typing_context: Any, products: Any, edges: Any, margins: Any, scale: Any) -> Any:
    """Return a bit for each of sixteen lanes: whether ``product + margin * scale >= edge``.

    The first three are addresses of sixteen float32.
    """
    signature = types.int64(types.int64, types.int64, types.int64, types.float32)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        products, edges, margins = (builder.load(at(builder, place, FLOATS), align=4) for place in arguments[:3])
        most = builder.fadd(products, builder.fmul(margins, splat(builder, arguments[3], FLOATS)))
        reaching = builder.bitcast(builder.fcmp_ordered(">=", most, edges), ir.IntType(LANES))
        return builder.zext(reaching, ir.IntType(64))

    return signature, generate


@intrinsic
def _dots(typing_context: Any, row: Any, digits: Any, stride: Any, width: Any) -> Any:
    """Return the dot products of a row, ``(width,)`` uint8, with the three digits of a query token, int16.

    The digits are `stride` bytes apart.
    """
    signature = types.UniTuple(types.int32, DIGITS)(*[types.int64] * 4)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        row, digits, stride, width = arguments
        octets = ir.VectorType(ir.IntType(8), _NUMBERS)
        word = ir.IntType(32)
        shorts = ir.VectorType(ir.IntType(16), _NUMBERS)
        words = ir.VectorType(word, _NUMBERS // 2)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(words, [0] * words.count)) for _ in range(DIGITS)]
        with cgutils.for_range_slice(builder, constant(0), width, constant(_NUMBERS), inc=True) as (index, _):
            codes = builder.zext(builder.load(at(builder, builder.add(row, index), octets), align=1), shorts)
            for digit, total in enumerate(sums):
                place = builder.add(
                    builder.add(digits, builder.mul(index, constant(2))), builder.mul(stride, constant(digit))
                )
                factors = builder.load(at(builder, place, shorts), align=2)
                builder.store(builder.add(builder.load(total), multiply_pairs(builder, codes, factors)), total)
        add = declare(builder.module, f"llvm.vector.reduce.add.v{words.count}i32", [words], word)
        totals = [builder.call(add, [builder.load(total)]) for total in sums]
        return context.make_tuple(builder, signature.return_type, totals)

    return signature, generate


@kernel()
def rerank_scores(
    isa: tuple[int, ...],
    documents: CodedDocuments,
    chosen: np.ndarray,
    shape: CodeShape,
    vectors: np.ndarray,
    query_leads: np.ndarray,
    highest: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Write the MaxSim of the chosen documents' codes with one query in 8 bits, and of the best in single precision.

    `isa`: `InstructionSet.argument`. `documents`: `CodedDocuments`, as a plain tuple. `chosen`: ``(n,)`` int64:
    documents to score. The earlier the best ones come, the fewer others are scored twice. `shape`: `CodeShape`, as a
    plain tuple. `vectors`: ``(tokens, dim)`` float32: the rotated rests of the query; `query_leads`: ``(tokens,)``
    float32. `highest`: ``(most,)`` float32, minus infinity before the first call for a query: the highest scores in 8
    bits so far. A document is scored in single precision if its score in 8 bits is among them. With `most` 0, all are.
    `scores`: ``(n, 2)`` float32, written: in 8 bits, and in single precision, NaN if the document is not scored so.
    Minus infinity for a document without tokens.
    """
    documents = CodedDocuments(*documents)
    shape = CodeShape(*shape)
    query = quantise_query(vectors, query_leads)
    widened = widen(query.packed[0], has_wide_rows(isa))
    groups = query.packed.shape[1]
    longest = ROWS
    for d in chosen:
        longest = max(longest, documents.lengths[d])
    scales = np.empty(longest, dtype=np.float32)
    leads = np.empty(longest, dtype=np.float32)
    best = np.empty(groups * LANES, dtype=np.float32)
    products = np.empty((longest, min(groups, _GROUPS) * LANES), dtype=np.float32)
    row = np.empty(32 * shape.sign_words, dtype=np.uint8)
    edges = np.empty(products.shape[1], dtype=np.float32)
    margins = _margins(query)
    no_margins = np.zeros(products.shape[1], dtype=np.float32)
    for n in range(len(chosen)):
        d = chosen[n]
        ahead = chosen[min(n + 1, len(chosen) - 1)]
        tokens = documents.lengths[d]
        for line in range(0, 2 * documents.lengths[ahead], 64):
            prefetch(documents.scales[ahead] + line)  # type: ignore[call-arg]
            prefetch(documents.leads[ahead] + line)
            prefetch((documents.cells if shape.bits < 4 else documents.scales)[ahead] + line)
        best[:] = -np.inf
        if tokens > 0:
            load_scales(documents.scales[d], tokens, scales)
            load_leads(documents.leads[d], tokens, leads)
        for first in range(0, groups, _GROUPS):
            some = (first, min(_GROUPS, groups - first))
            _raise_by_document(isa, documents, (d, ahead), shape, query, widened, some, (scales, leads), products, best)
        score = _add_up(best, query.scales)
        scores[n, 0] = score
        scores[n, 1] = np.nan
        if not _enters(highest, score):
            continue
        for first in range(0, groups if tokens > 0 else 0, _GROUPS):
            count = min(_GROUPS, groups - first)
            if groups > _GROUPS:  # these products were overwritten
                _raise_by_document(
                    isa, documents, (d, d), shape, query, widened, (first, count), (scales, leads), products, best
                )
            for i in range(count * LANES):
                t = first * LANES + i
                is_token = t < len(query.scales)
                if is_token:
                    edges[i] = best[t]
                    best[t] = -np.inf
                else:
                    edges[i] = np.inf
                    best[t] = np.inf
            here = token_addresses(documents, d, 0, shape)
            own = (scales[:tokens], leads[:tokens])
            some_best = best[first * LANES :]
            some_margins = margins[first * LANES :]
            # The tokens with the highest products in 8 bits, which are then the edges of the others.
            _multiply_all_digits(here, shape, query, first, own, products, (row, edges, no_margins), some_best)
            _multiply_all_digits(here, shape, query, first, own, products, (row, some_best, some_margins), some_best)
        scores[n, 1] = _add_up(best, query.scales)


@kernel(inner=True)
def _enters(highest: np.ndarray, score: float) -> bool:
    """Whether a score is among the highest, of which it then replaces the lowest; always for an empty array."""
    if len(highest) > 0:
        lowest = 0
        for i in range(1, len(highest)):
            lowest = i if highest[i] < highest[lowest] else lowest
        if score < highest[lowest]:
            return False
        highest[lowest] = score
    return True


@kernel(inner=True)
def _add_up(best: np.ndarray, scales: np.ndarray) -> float:
    """Return the score of a document, given the highest product of each query token."""
    total = np.float32(0)
    for i in range(len(scales)):
        total += best[i] * scales[i]
    # The selection of the best does not accept NaN, the score of a document without tokens or with damaged scales.
    if total == total:
        return total
    return np.float32(-np.inf)


@kernel(inner=True)
def _margins(query: QuantisedQuery) -> np.ndarray:
    """Return how far a product in 8 bits can be below the product with all digits, for a row's scale of 1."""
    tokens, dim = query.vectors.shape
    margins = np.zeros(query.packed.shape[1] * LANES, dtype=np.float32)
    for t in range(tokens):
        # The numbers of a row are at most 128. Rounding both products to float32 adds less than this first term.
        total = dim / 128
        for i in range(dim):
            low = abs(np.float64(query.digits[2, t, i])) / BASE
            total += 128 / BASE * (abs(np.float64(query.digits[1, t, i])) + low)
        margins[t] = total
    return margins


@kernel(inner=True)
def _raise_by_document(
    isa: tuple[int, ...],
    documents: CodedDocuments,
    pair: tuple[int, int],
    shape: CodeShape,
    query: QuantisedQuery,
    widened: np.ndarray,
    some: tuple[int, int],
    own: tuple[np.ndarray, np.ndarray],
    products: np.ndarray,
    best: np.ndarray,
) -> None:
    """Write the products in 8 bits of a document with some groups of query tokens, and raise their maxima in `best`.

    `pair` are the document and the next one, which is prefetched; `widened` the query from `widen`; `some` the first
    group and the number of groups; `own` the scales and leads of the document's tokens.
    """
    (d, ahead) = pair
    (first_group, groups) = some
    (scales, leads) = own
    tokens = documents.lengths[d]
    more = documents.lengths[ahead]
    width = 32 * shape.sign_words
    stride = products.shape[1] * 4
    rows = np.empty((ROWS, width), dtype=np.uint8)
    wide = np.empty(ROWS * width, dtype=np.uint16)
    row_scales = np.empty(ROWS, dtype=np.float32)
    packed_at = np.int64(query.packed.ctypes.data)
    if has_wide_rows(isa):
        packed_at = np.int64(widened.ctypes.data)
    start_at = np.int64(query.start.ctypes.data)
    best_at = np.int64(best.ctypes.data)
    scales_at = np.int64(scales.ctypes.data)
    leads_at = np.int64(leads.ctypes.data)
    query_leads_at = np.int64(query.leads.ctypes.data)
    products_at = np.int64(products.ctypes.data)
    in_place = shape.bits == 8 and shape.dim == width  # codes can be multiplied without copying them
    for token in range(0, max(tokens, more), ROWS):
        # Prefetch as many bytes of the next document as this step reads; more at once would wait for each other.
        for line in range(token * shape.code_bytes, min(token + ROWS, more) * shape.code_bytes, 64):
            prefetch(documents.codes[ahead] + line)  # type: ignore[call-arg]
        if token >= tokens:
            continue
        prefetch_cells(documents.cells[d] + 2 * (token + ROWS), min(ROWS, tokens - token - ROWS), shape)
        # The last step begins earlier, to have eight rows; scoring a row twice does not change the maximum.
        first = max(0, min(token, tokens - ROWS))
        count = min(ROWS, tokens - first)
        here = token_addresses(documents, d, first, shape)
        block_at = here.codes
        if not in_place or count < ROWS:
            load_rows(here, shape, count, rows, row_scales)
            block_at = np.int64(rows.ctypes.data)
        block_at = as_multiplied(isa, block_at, wide)
        for g in range(first_group, first_group + groups):
            step = 4 * LANES * g
            ours = (block_at, scales_at + 4 * first, best_at + step, leads_at + 4 * first, query_leads_at + step)
            kept = products_at + stride * first + 4 * LANES * (g - first_group)
            places = (*ours, packed_at + step // 4 * width * (1 + has_wide_rows(isa)), start_at + step, kept)
            # Only the sets with wide rows multiply fewer lanes in less time.
            if has_wide_rows(isa):
                lanes = len(query.scales) - LANES * g
            else:
                lanes = LANES
            if lanes <= 4:
                _raise_four(isa, places, width // 4, stride)
            elif lanes <= 8:
                _raise_eight(isa, places, width // 4, stride)
            elif lanes <= 12:
                _raise_twelve(isa, places, width // 4, stride)
            else:
                _raise_all(isa, places, width // 4, stride)


@kernel(inner=True)
def _multiply_all_digits(
    document: TokenAddresses,
    shape: CodeShape,
    query: QuantisedQuery,
    first: int,
    own: tuple[np.ndarray, np.ndarray],
    products: np.ndarray,
    limits: tuple[np.ndarray, np.ndarray, np.ndarray],
    best: np.ndarray,
) -> None:
    """Raise the maxima `best` by products of a document's tokens with all digits of some groups of query tokens.

    Only tokens whose product in 8 bits may reach the edge of a query token are multiplied, and each once: their
    products in 8 bits become minus infinity. The groups are those from group `first`. `own` holds the scales and leads
    of the tokens, `limits` memory for a token's codes, the edges, which may be `best`, and the margins of the products.
    """
    (scales, leads) = own
    (row, edges, margins) = limits
    width = len(row)
    columns = products.shape[1]
    in_place = shape.bits == 8 and shape.dim == width
    digits_at = np.int64(query.digits.ctypes.data)
    stride = query.digits.shape[1] * width * 2
    products_at = np.int64(products.ctypes.data)
    edges_at = np.int64(edges.ctypes.data)
    margins_at = np.int64(margins.ctypes.data)
    groups = min(columns // LANES, query.packed.shape[1] - first)
    for r in range(len(scales)):
        row_at = np.int64(row.ctypes.data)
        loaded = False
        for g in range(groups):
            lanes = 4 * LANES * g
            kept = products_at + 4 * columns * r + lanes
            mask: int = _lanes_reaching(kept, edges_at + lanes, margins_at + lanes, scales[r])  # type: ignore[call-arg]
            while mask != 0:
                lane = lowest_bit(mask)
                mask &= mask - 1
                if in_place:
                    row_at = document.codes + r * width
                elif not loaded:
                    load_row(document, r, shape, row_at)
                    loaded = True
                t = (first + g) * LANES + lane
                sums = _dots(row_at, digits_at + t * width * 2, stride, width)
                value = np.float32(sums[2] + query.start[2, first + g, lane])
                value = value * _UNIT + np.float32(sums[1] + query.start[1, first + g, lane])
                value = value * _UNIT + np.float32(sums[0] + query.start[0, first + g, lane])
                value = value * scales[r] + leads[r] * query.leads[t]
                best[g * LANES + lane] = max(best[g * LANES + lane], value)
                products[r, g * LANES + lane] = -np.inf
