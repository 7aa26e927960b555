"""Triton kernels of the search of codes: sums of imputed scores, MaxSim that decodes as it multiplies, and decoding.

`latelier.indexes.ivf.gpu` has the same operations in torch. Importing this module needs triton.
"""

from __future__ import annotations

import torch

from latelier.indexes.ivf.layout import SIZE_BITS, CodeShape, DeviceCodes, DeviceQueries
from latelier.scores.triton_kernels import launch, shared_memory
from latelier.utils.misc import needs_extra

with needs_extra("Fused scoring of codes", "gpu"):
    import triton
    import triton.language as tl

# Entries of a list that are read at a time, tokens that are decoded at a time, and documents of a program.
_ENTRIES = 256
_TOKENS = 64
_COLUMNS = 8
# Query tokens of a program, at most; words of 32 numbers that are multiplied at a time.
_ROWS = 128
_WORDS = 4


def add_imputed(
    lists: torch.Tensor, excess: torch.Tensor, offsets: torch.Tensor, entries: torch.Tensor, words: torch.Tensor
) -> None:
    """Add, for each query token, the excess of the best list that holds a document to the sum of the document.

    `lists`, `excess`: ``(queries, tokens, nprobe)`` int32, best first, -1 for none, of at most 32 tokens. `offsets`,
    `entries`: the documents of list ``i`` are ``entries[offsets[i]:offsets[i + 1]]``. `words`: ``(queries, documents,
    2)`` int32: a bit for each token that has added, zero at first, and the sum.
    """
    queries, tokens, nprobe = lists.shape
    given = (lists, excess, offsets, entries, words, words.shape[1], tokens, nprobe)
    launch(_add_imputed, (queries, tokens, 1), given, (_ENTRIES,), num_warps=4)


def score_codes(
    codes: DeviceCodes, shape: CodeShape, queries: DeviceQueries, documents: torch.Tensor, *, rounded: bool
) -> torch.Tensor:
    """Return MaxSim of queries with coded documents, ``(queries, documents)`` float32.

    `documents`: int64, ``(n,)`` for all queries, or ``(queries, n)``. A document without tokens scores minus infinity.
    `rounded`: leave out `DeviceQueries.low`.
    """
    count, length, _ = queries.high.shape
    share = documents.shape[-1]
    is_own = documents.ndim == 2
    rows = min(_ROWS, length if is_own else max(length, 1 << (count * length - 1).bit_length()))
    blocks = -(-count * length // rows)
    parts = max(1, length // rows)
    scores = torch.empty((parts, count, share), device=documents.device)
    if scores.numel():
        given = (
            *codes,
            *queries,
            documents,
            scores,
            count,
            share,
            share if is_own else 0,
            blocks,
            codes.codes.stride(0),
        )
        words = shape.sign_words
        compiled = (shape.bits, shape.dim, words, length, rows, _TOKENS, min(_WORDS, 1 << (words - 1).bit_length()))
        grid = (blocks * -(-share // _COLUMNS), 1, 1)
        # Loading tokens ahead takes memory of the chip, of which many GPUs have 99 KiB.
        options = {"num_warps": 4, "num_stages": 3 if shared_memory(documents.device) > 128 << 10 else 1}
        launch(_score_codes, grid, given, (*compiled, _COLUMNS, SIZE_BITS, rounded), **options)
    return scores[0] if parts == 1 else scores.sum(dim=0)


def write_decoded(codes: DeviceCodes, shape: CodeShape, rows: torch.Tensor, unit: float, out: torch.Tensor) -> None:
    """Write tokens in half precision: the numbers of a rotated rest, and the lead, both times `unit`.

    `rows`: ``(n,)`` int64. `out`: ``(n, columns)`` float16, with more columns than numbers: the lead follows them.
    """
    if len(rows):
        words = shape.sign_words
        given = (*codes[2:], rows, out, len(rows), out.shape[1], unit, codes.codes.stride(0))
        compiled = (shape.bits, shape.dim, words, _TOKENS, min(_WORDS, 1 << (words - 1).bit_length()), SIZE_BITS)
        launch(_write_decoded, (-(-len(rows) // _TOKENS), 1, 1), given, compiled, num_warps=4)


@triton.jit(do_not_specialize=["documents", "tokens", "nprobe"])
def _add_imputed(
    lists: tl.tensor,
    excess: tl.tensor,
    offsets: tl.tensor,
    entries: tl.tensor,
    words: tl.tensor,
    documents: tl.tensor,
    tokens: tl.tensor,
    nprobe: tl.tensor,
    width: tl.constexpr,
) -> None:
    """One program: the lists of one query token, best first; only its first list that holds a document adds."""
    query = tl.program_id(0)
    token = tl.program_id(1)
    bit = 1 << token
    j = tl.arange(0, width)
    row = (query * tokens + token) * nprobe
    own = words + tl.cast(query, tl.int64) * documents * 2
    for place in range(nprobe):
        number = tl.load(lists + row + place)
        added = tl.load(excess + row + place)
        begin = tl.load(offsets + number, mask=number >= 0, other=0)
        end = tl.load(offsets + number + 1, mask=number >= 0, other=0)
        for at in range(begin, end, width):
            inside = at + j < end
            word = own + tl.load(entries + at + j, mask=inside, other=0).to(tl.int64) * 2
            before = tl.atomic_or(word, bit, mask=inside, sem="relaxed")
            tl.atomic_add(word + 1, added, mask=inside & ((before & bit) == 0), sem="relaxed")
        tl.debug_barrier()  # the next list is not as good


@triton.jit
def _bits(plane: tl.tensor, inside: tl.tensor, tile: tl.constexpr, words: tl.constexpr) -> tl.tensor:
    """Return the bits of words, ``(tile, words)``, as ``(tile, 32 * words)`` booleans."""
    loaded = tl.load(plane, mask=inside, other=0)
    bits = (loaded[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1
    return tl.reshape(bits, [tile, 32 * words]) != 0


@triton.jit
def _decode(
    signs: tl.tensor,
    codes: tl.tensor,
    codebook: tl.tensor,
    sizes: tl.tensor,
    cell: tl.tensor,
    rows: tl.tensor,
    code_stride: tl.tensor,
    at: tl.tensor,
    bits: tl.constexpr,
    dim: tl.constexpr,
    all_words: tl.constexpr,
    tile: tl.constexpr,
    words: tl.constexpr,
    size_bits: tl.constexpr,
) -> tl.tensor:
    """Return some integers of tokens, ``(tile, 32 * words)`` float16: those of the words from `at` on."""
    k = at * 32 + tl.arange(0, 32 * words)
    if bits == 8:
        loaded = tl.load(codes + rows[:, None] * code_stride + k[None, :], mask=(k < dim)[None, :], other=128)
        integers = loaded.to(tl.int32) - 128
    else:
        w = at + tl.arange(0, words)
        inside = (w < all_words)[None, :] & (rows >= 0)[:, None]
        positive = _bits(signs + rows[:, None] * all_words + w[None, :], inside, tile, words)
        planes = codes + rows[:, None] * code_stride + w[None, :]
        if bits == 4:
            high = _bits(planes, inside, tile, words)
            middle = _bits(planes + all_words, inside, tile, words)
            low = _bits(planes + 2 * all_words, inside, tile, words)
            above = tl.where(middle, tl.where(low, 127, 96), tl.where(low, 75, 58))
            below = tl.where(middle, tl.where(low, 44, 30), tl.where(low, 18, 6))
            size = tl.where(high, above, below)
            integers = tl.where(positive, size, -size)
        else:
            number = cell & ((1 << size_bits) - 1)
            if bits == 2:
                small = tl.load(sizes + 16 + number)[:, None]
                large = tl.load(sizes + 32 + number)[:, None]
                size = tl.where(_bits(planes, inside, tile, words), large, small)
            else:
                size = tl.load(sizes + number)[:, None] + tl.zeros([tile, 32 * words], tl.int32)
            center = (cell >> size_bits)[:, None] * (32 * all_words) + k[None, :]
            beside = tl.load(codebook + center, mask=(k < 32 * all_words)[None, :], other=0).to(tl.int32)
            integers = beside + tl.where(positive, size, -size)
            integers = tl.minimum(tl.maximum(integers, -128), 127)
    return integers.to(tl.float16)


@triton.jit
def _terms(scales: tl.tensor, leads: tl.tensor, cells: tl.tensor, rows: tl.tensor) -> tl.tuple:
    """Return the scales and the leads of tokens, float32, 0 if only a damaged file can hold them, and their cells."""
    scale = tl.load(scales + rows).to(tl.int32) & 0xFFFF
    scale = (tl.where(scale < 0xFF00, scale, 0) << 15).to(tl.float32, bitcast=True)
    lead = tl.load(leads + rows * 3).to(tl.int32) << 8
    lead |= (tl.load(leads + rows * 3 + 1).to(tl.int32) << 16) | (tl.load(leads + rows * 3 + 2).to(tl.int32) << 24)
    lead = tl.where((lead & 0x7F800000) != 0x7F800000, lead, 0).to(tl.float32, bitcast=True)
    return scale, lead, tl.load(cells + rows).to(tl.int32) & 0xFFFF


@triton.jit(do_not_specialize=["count", "share", "step", "blocks", "code_stride"])
def _score_codes(
    doc_first: tl.tensor,
    doc_lengths: tl.tensor,
    signs: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    leads: tl.tensor,
    cells: tl.tensor,
    codebook: tl.tensor,
    sizes: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    query_leads: tl.tensor,
    query_scales: tl.tensor,
    documents: tl.tensor,
    scores: tl.tensor,
    count: tl.tensor,
    share: tl.tensor,
    step: tl.tensor,
    blocks: tl.tensor,
    code_stride: tl.tensor,
    bits: tl.constexpr,
    dim: tl.constexpr,
    all_words: tl.constexpr,
    length: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    words: tl.constexpr,
    columns: tl.constexpr,
    size_bits: tl.constexpr,
    rounded: tl.constexpr,
) -> None:
    """One program: `rows` query tokens, of several queries or of a part of one, against `columns` documents."""
    block = tl.program_id(0) % blocks
    start = tl.program_id(0) // blocks * columns
    position = block * rows + tl.arange(0, rows)
    valid = position < count * length
    k = tl.arange(0, 32 * words)
    width: tl.constexpr = 32 * all_words
    q_rows = position.to(tl.int64)[None, :] * width
    if all_words <= words:
        inside = valid[None, :] & (k < width)[:, None]
        left = tl.load(high + q_rows + k[:, None], mask=inside, other=0.0)
        if not rounded:
            rest = tl.load(low + q_rows + k[:, None], mask=inside, other=0.0)
    q_leads = tl.load(query_leads + position, mask=valid, other=0.0)
    q_scales = tl.load(query_scales + position, mask=valid, other=0.0)
    several: tl.constexpr = rows // length if rows > length else 1
    query = block * rows // length + tl.arange(0, several)
    part = block * rows % length // rows
    j = tl.arange(0, tile)
    for column in range(start, tl.minimum(start + columns, share)):
        document = tl.load(documents + (block * rows // length).to(tl.int64) * step + column)
        first = tl.load(doc_first + document)
        tokens = tl.load(doc_lengths + document).to(tl.int32)
        best = tl.full([rows], float("-inf"), tl.float32)
        for offset in range(0, tokens, tile):
            own = first + tl.minimum(offset + j, tokens - 1)  # beyond the end the last token is repeated
            scale, lead, cell = _terms(scales, leads, cells, own)
            dots = tl.zeros([tile, rows], tl.float32)
            for at in tl.static_range(0, all_words, words):
                integers = _decode(
                    signs, codes, codebook, sizes, cell, own, code_stride, at,
                    bits, dim, all_words, tile, words, size_bits,
                )  # fmt: skip
                if all_words > words:
                    inside = valid[None, :] & (at * 32 + k < width)[:, None]
                    left = tl.load(high + q_rows + at * 32 + k[:, None], mask=inside, other=0.0)
                    if not rounded:
                        rest = tl.load(low + q_rows + at * 32 + k[:, None], mask=inside, other=0.0)
                dots = tl.dot(integers, left, dots)
                if not rounded:
                    dots = tl.dot(integers, rest, dots)
            similarities = dots * scale[:, None] + lead[:, None] * q_leads[None, :]
            best = tl.maximum(best, tl.max(similarities, axis=0))
        best = tl.where(q_scales > 0, best * q_scales, 0.0)
        sums = tl.sum(tl.reshape(best, [several, rows // several]), axis=1)
        out = scores + (part * count + query).to(tl.int64) * share + column
        tl.store(out, tl.where(tokens > 0, sums, float("-inf")), mask=query < count)


@triton.jit(do_not_specialize=["count", "columns", "unit", "code_stride"])
def _write_decoded(
    signs: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    leads: tl.tensor,
    cells: tl.tensor,
    codebook: tl.tensor,
    sizes: tl.tensor,
    tokens: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    columns: tl.tensor,
    unit: tl.tensor,
    code_stride: tl.tensor,
    bits: tl.constexpr,
    dim: tl.constexpr,
    all_words: tl.constexpr,
    tile: tl.constexpr,
    words: tl.constexpr,
    size_bits: tl.constexpr,
) -> None:
    """One program: `tile` tokens."""
    j = tl.program_id(0) * tile + tl.arange(0, tile)
    own = tl.load(tokens + j, mask=j < count, other=0)
    scale, lead, cell = _terms(scales, leads, cells, own)
    written = out + j.to(tl.int64) * columns
    k = tl.arange(0, 32 * words)
    for at in tl.static_range(0, all_words, words):
        integers = _decode(
            signs, codes, codebook, sizes, cell, own, code_stride, at,
            bits, dim, all_words, tile, words, size_bits,
        )  # fmt: skip
        numbers = integers.to(tl.float32) * (scale * unit)[:, None]
        inside = (j < count)[:, None] & (at * 32 + k < 32 * all_words)[None, :]
        tl.store(written[:, None] + (at * 32 + k)[None, :], numbers.to(tl.float16), mask=inside)
    tl.store(written + 32 * all_words, (lead * unit).to(tl.float16), mask=j < count)
