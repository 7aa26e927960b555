"""Triton kernels of MaxSim for CUDA: no similarity ever reaches memory, forward or backward.

A program of the forward kernel keeps the tokens of several queries on the chip and reads documents one after the
other, so that each document is read once for all of them. Where a gradient is needed, it stores the position of each
best token; the backward kernel adds the rows at those positions, as on the CPU (`kernels.float_maxsim`).

Dot products are in the dtype of the vectors with float32 sums. float32 vectors are multiplied as float32 (three
products of TF32 parts), or as TF32 where `torch.set_float32_matmul_precision` allows it. Offsets are 64-bit, so the
number of tokens is bounded by memory alone. `cuda` imports this module on first
use.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from latelier.utils.misc import needs_extra

with needs_extra("Fused scoring", "gpu"):
    import triton
    import triton.language as tl

# Vectors of up to so many numbers are read whole, and those of a program's queries stay on the chip.
_WIDEST = 128
# Documents per program, if that leaves several programs for each of the GPU's processors.
_DOCUMENTS = 16
_PROGRAMS = 4096
# Query tokens and documents of a program of the backward pass.
_ROWS = 16
_COLUMNS = 32


class _Tile(NamedTuple):
    """The size of a program of the forward pass: tokens of queries and of documents, numbers of each, and threads."""

    queries: int
    documents: int
    width: int
    num_warps: int
    num_stages: int

    def bytes(self, itemsize: int) -> int:
        """Return how much shared memory the program needs, about."""
        return itemsize * self.width * (self.queries + self.num_stages * self.documents)


class Rows(NamedTuple):
    """The tokens of texts, packed or padded.

    Packed: text ``i`` has the rows ``offsets[i]`` to ``offsets[i + 1] - 1`` of `vectors`. Padded: it has `longest`
    rows, of which those count where `mask` is not 0.
    """

    vectors: torch.Tensor  # (..., dim), contiguous, floating
    offsets: torch.Tensor | None  # (texts + 1,) int64
    mask: torch.Tensor | None  # (texts, longest) uint8, contiguous
    texts: int
    longest: int  # no text has more rows


def best_tokens(
    queries: Rows, documents: Rows, share: int, step: int, *, positions: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Score query ``q`` against documents ``q * step`` to ``q * step + share - 1``.

    `queries`, `documents`: both sides, of one dtype and dim, on one device. `share`, `step`: ``d, 0`` for all pairs of
    queries and ``d`` documents; ``n, n`` for groups of ``n`` documents. `positions`: whether to return the positions of
    the best tokens. Returns: scores ``(queries, share)`` float32: minus infinity for empty documents, else 0 for empty
    queries. The place of each best token in its document, -1 where there is none, ``(share, query_rows)`` int32 with a
    power of two of query rows per query; or None.
    """
    texts = queries.texts
    vectors = queries.vectors
    length = _padded_length(queries, grouped=step > 0)
    if step:  # each query has documents of its own
        rows = length
    else:
        rows = max(16, power_of_two(texts * length))
    tile = _tile(rows, vectors.shape[-1], vectors.element_size(), vectors.device, positions=positions)
    blocks = -(-texts * length // tile.queries)
    parts = max(1, length // tile.queries)  # programs for the tokens of one query
    scores = torch.empty((texts, share) if parts == 1 else (parts, texts, share), device=vectors.device)
    places = None
    if positions:
        places = torch.empty((share, blocks * tile.queries), dtype=torch.int32, device=vectors.device)
    if scores.numel():
        columns = max(1, min(_DOCUMENTS, blocks * share // _PROGRAMS))
        mask_width = 1 if documents.mask is None else power_of_two(documents.longest)
        given = (*queries, *documents, scores, places, share, step, blocks, columns)
        compiled = (vectors.shape[-1], length, *tile[:3], mask_width, _precision())
        grid = (blocks * -(-share // columns), 1, 1)
        launch(_forward, grid, given, compiled, num_warps=tile.num_warps, num_stages=tile.num_stages)
    return scores if parts == 1 else scores.sum(dim=0), places


def add_gradients(
    queries: Rows, documents: Rows, gradients: torch.Tensor, positions: torch.Tensor, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of both sides' vectors, in their dtype.

    `queries`, `documents`: as in `best_tokens`. `gradients`: of the scores, ``(queries, share)`` float32, contiguous.
    `positions`: what `best_tokens` returned. `step`: as in `best_tokens`. Returns: as `vectors` of both sides, zero in
    rows that are no token's. They are added in float32 by atomic operations, so the last digit depends on their order.
    """
    share = gradients.shape[1]
    sides = (queries.vectors, documents.vectors)
    dim = sides[0].shape[-1]
    # one allocation, filled once and converted once, since each takes a launch
    both = torch.zeros(sum(side.numel() for side in sides), device=gradients.device)
    if gradients.numel() and positions.numel():
        length = _padded_length(queries, grouped=step > 0)
        width = min(_WIDEST, power_of_two(dim))
        left, right = both.split([side.numel() for side in sides])
        given = (*queries, *documents, gradients, positions, left, right, share, step, _COLUMNS, positions.shape[1])
        grid = (positions.shape[1] // _ROWS, -(-share // _COLUMNS), -(-dim // width))
        launch(_backward, grid, given, (dim, length, _ROWS, width))
    parts = both.to(sides[0].dtype).split([side.numel() for side in sides])
    return parts[0].view(sides[0].shape), parts[1].view(sides[1].shape)


_compiled: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, int, int], given: tuple[Any, ...], compiled: tuple[Any, ...], **options: int
) -> None:
    """Run a kernel with its arguments, of which the last, `compiled`, are constants.

    Triton takes longer to find the kernel that it has compiled for such arguments than a small call takes on the GPU.
    So kernels are kept here by what they are compiled for: constants, dtypes, absent tensors, and whether addresses are
    multiples of 16.
    """
    key: list[Any] = [kernel, *compiled, *options.values()]
    for value in given:
        if isinstance(value, torch.Tensor):
            key += (value.dtype, value.data_ptr() % 16 == 0)
        else:
            key.append(value is None)
    key.append(given[0].device)
    known = _compiled.get(tuple(key))
    if known is not None:
        known[grid](*given, *compiled)
        return
    made = kernel[grid](*given, *compiled, **options)
    if made is not None:  # not by the interpreter
        _compiled[tuple(key)] = made


def power_of_two(number: int) -> int:
    """Return the least power of two that is at least a positive number."""
    return 1 << (number - 1).bit_length()


def _padded_length(queries: Rows, *, grouped: bool) -> int:
    """Return the number of rows of one query in a program: a power of two, as is that of the program."""
    length = power_of_two(max(1, queries.longest))
    # a program has one query then, and a product 16 rows at least
    if grouped:
        return max(16, length)
    return length


@cache
def _tile(rows: int, dim: int, itemsize: int, device: torch.device, *, positions: bool) -> _Tile:
    """Return the size of a program for so many query rows; the sizes were the fastest of some thirty on an H100."""
    if itemsize > 2:
        tile = _Tile(128, 64, 32, 4, 3)
    else:
        tile = _Tile(128, 128, 64, 8, 3)
    if dim <= _WIDEST:
        width = max(16, power_of_two(dim))
        if itemsize > 2:
            whole = _Tile(128, 64, width, 8, 2)
        else:
            whole = _Tile(256, 64, width, 8, 2 if positions else 3)
        small = _Tile(128, 64, width, 4, 2)
        tile = next((t for t in (whole, small) if t.bytes(itemsize) < shared_memory(device)), tile)
    if rows >= tile.queries:
        return tile
    return _Tile(rows, 64, tile.width, 4, 3)


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program may have, less what triton adds."""
    if device.type != "cuda":
        return 99 << 10  # what every GPU of compute capability 8.0 or later has
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(properties["max_shared_mem"]) - 2048


def _precision() -> str:
    if torch.get_float32_matmul_precision() == "highest":
        return "tf32x3"
    return "tf32"


# Numbers that differ from batch to batch: a kernel is not compiled again for those that are 1 or multiples of 16.
_VARYING = [
    "texts", "longest_query", "document_texts", "longest_document", "share", "step", "blocks", "columns", "query_rows",
]  # fmt: skip


@triton.jit
def _token_rows(
    offsets: tl.tensor,
    mask: tl.tensor,
    texts: tl.tensor,
    longest: tl.tensor,
    position: tl.tensor,
    length: tl.constexpr,
) -> tl.tuple:
    """Return the row, the query and the validity of query tokens; a `position` is ``query * length + token``."""
    text = position // length
    token = position % length
    if mask is None:
        row = tl.load(offsets + text, mask=text < texts, other=0) + token
        valid = row < tl.load(offsets + text + 1, mask=text < texts, other=0)
    else:
        row = text.to(tl.int64) * longest + token
        valid = tl.load(mask + row, mask=(text < texts) & (token < longest), other=0) != 0
    return row, text, valid


@triton.jit
def _document_rows(
    offsets: tl.tensor, mask: tl.tensor, longest: tl.tensor, document: tl.tensor, width: tl.constexpr
) -> tl.tuple:
    """Return the first row of a document, and the row after its last one or, if it is padded, which rows count."""
    if mask is None:
        row = tl.load(offsets + document)
        end = tl.load(offsets + document + 1)
    else:
        row = document.to(tl.int64) * longest
        token = tl.arange(0, width)
        end = tl.load(mask + row + token, mask=token < longest, other=0)
    return row, end


@triton.jit
def _count(mask: tl.tensor, row: tl.tensor, end: tl.tensor, width: tl.constexpr) -> tl.tuple:
    """Return how many rows a document has up to its last token, and whether some do not count."""
    if mask is None:
        rows = (end - row).to(tl.int32)
        has_holes = rows < 0
    else:
        rows = tl.max(tl.where(end != 0, tl.arange(0, width) + 1, 0), axis=0)
        has_holes = tl.sum((end != 0).to(tl.int32), axis=0) < rows
    return rows, has_holes


@triton.jit(do_not_specialize=_VARYING)
def _forward(
    query_vectors: tl.tensor,
    query_offsets: tl.tensor,
    query_mask: tl.tensor,
    texts: tl.tensor,
    longest_query: tl.tensor,
    document_vectors: tl.tensor,
    document_offsets: tl.tensor,
    document_mask: tl.tensor,
    document_texts: tl.tensor,
    longest_document: tl.tensor,
    scores: tl.tensor,
    positions: tl.tensor,
    share: tl.tensor,
    step: tl.tensor,
    blocks: tl.tensor,
    columns: tl.tensor,
    dim: tl.constexpr,
    length: tl.constexpr,
    tile: tl.constexpr,
    document_tile: tl.constexpr,
    width: tl.constexpr,
    mask_width: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """One program: `tile` query tokens against `columns` documents."""
    block = tl.program_id(0) % blocks
    start = tl.program_id(0) // blocks * columns
    r = tl.arange(0, tile)
    rows, _, valid = _token_rows(query_offsets, query_mask, texts, longest_query, block * tile + r, length)
    q_rows = query_vectors + rows[:, None] * dim
    k = tl.arange(0, width)
    if dim <= width:
        left = tl.load(q_rows + k[None, :], mask=valid[:, None] & (k < dim)[None, :], other=0.0)
    # The queries of this program: several, or a part of one.
    several: tl.constexpr = tile // length if tile > length else 1
    query = block * tile // length + tl.arange(0, several)
    part = block * tile % length // tile
    out = scores + (part * texts + query).to(tl.int64) * share
    j = tl.arange(0, document_tile)
    stop = tl.minimum(start + columns, share)
    base = (block * tile // length) * step
    ahead, end = _document_rows(document_offsets, document_mask, longest_document, base + start, mask_width)
    for column in range(start, stop):
        first = ahead
        tokens, has_holes = _count(document_mask, first, end, mask_width)
        # read while this document is scored, so that the next one need not wait
        following = base + tl.minimum(column + 1, stop - 1)
        ahead, end = _document_rows(document_offsets, document_mask, longest_document, following, mask_width)
        best = tl.full([tile], float("-inf"), tl.float32)
        place = tl.full([tile], -1, tl.int32)
        for offset in range(0, tokens, document_tile):
            # Beyond the end the last token is repeated, which changes no maximum.
            d = first + tl.minimum(offset + j, tokens - 1)
            d_rows = document_vectors + d[None, :] * dim
            if dim <= width:
                right = tl.load(d_rows + k[:, None], mask=(k < dim)[:, None], other=0.0)
                similarities = tl.dot(left, right, input_precision=precision)
            else:
                similarities = tl.zeros([tile, document_tile], tl.float32)
                for at in range(0, dim, width):
                    inside = at + k < dim
                    piece = tl.load(q_rows + (at + k)[None, :], mask=valid[:, None] & inside[None, :], other=0.0)
                    right = tl.load(d_rows + (at + k)[:, None], mask=inside[:, None], other=0.0)
                    similarities = tl.dot(piece, right, similarities, input_precision=precision)
            if document_mask is not None:  # noqa: SIM102 - decided when the kernel is compiled
                if has_holes:
                    counts = tl.load(document_mask + d) != 0
                    similarities = tl.where(counts[None, :], similarities, float("-inf"))
            if positions is None:
                best = tl.maximum(best, tl.max(similarities, axis=1))
            else:
                highest, which = tl.max(similarities, axis=1, return_indices=True)
                better = highest > best  # of equal similarities the first token stays
                best = tl.where(better, highest, best)
                place = tl.where(better, offset + which, place)
        sums = tl.sum(tl.reshape(tl.where(valid, best, 0.0), [several, tile // several]), axis=1)
        tl.store(out + column, tl.where(tokens > 0, sums, float("-inf")), mask=query < texts)
        if positions is not None:
            place = tl.where(valid, tl.minimum(place, tokens - 1), -1)
            tl.store(positions + (tl.cast(column, tl.int64) * blocks + block) * tile + r, place)


@triton.jit(do_not_specialize=_VARYING)
def _backward(
    query_vectors: tl.tensor,
    query_offsets: tl.tensor,
    query_mask: tl.tensor,
    texts: tl.tensor,
    longest_query: tl.tensor,
    document_vectors: tl.tensor,
    document_offsets: tl.tensor,
    document_mask: tl.tensor,
    document_texts: tl.tensor,
    longest_document: tl.tensor,
    gradients: tl.tensor,
    positions: tl.tensor,
    query_out: tl.tensor,
    document_out: tl.tensor,
    share: tl.tensor,
    step: tl.tensor,
    columns: tl.tensor,
    query_rows: tl.tensor,
    dim: tl.constexpr,
    length: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """One program: `rows` query tokens, `columns` documents of each, `width` numbers of each vector."""
    start = tl.program_id(1) * columns
    k = tl.program_id(2) * width + tl.arange(0, width)
    position = tl.program_id(0) * rows + tl.arange(0, rows)
    q, query, valid = _token_rows(query_offsets, query_mask, texts, longest_query, position, length)
    q_cells = q[:, None] * dim + k[None, :]
    inside = valid[:, None] & (k < dim)[None, :]
    vectors = tl.load(query_vectors + q_cells, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([rows, width], tl.float32)
    for column in range(start, tl.minimum(start + columns, share)):
        place = tl.load(positions + tl.cast(column, tl.int64) * query_rows + position)
        weight = tl.load(gradients + query.to(tl.int64) * share + column, mask=query < texts, other=0.0)
        taken = (place >= 0) & (weight != 0.0)
        document = query * step + column
        if document_mask is None:
            d = tl.load(document_offsets + document, mask=taken, other=0) + place
        else:
            d = document.to(tl.int64) * longest_document + place
        cells = d[:, None] * dim + k[None, :]
        mask = taken[:, None] & (k < dim)[None, :]
        total += weight[:, None] * tl.load(document_vectors + cells, mask=mask, other=0.0).to(tl.float32)
        tl.atomic_add(document_out + cells, weight[:, None] * vectors, mask=mask, sem="relaxed")
    tl.atomic_add(query_out + q_cells, total, mask=inside, sem="relaxed")
