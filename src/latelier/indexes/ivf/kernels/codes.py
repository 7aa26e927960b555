"""Token vectors as codes of 8, 4, 2 or 1 bits, and back to the bytes that integer kernels multiply.

A document token is a vector of small integers times a scale. The signs of the integers are stored separately, as a sign
code of one bit per number, in words of 32 bits, since the sign stage of a search reads only signs. At 4 bits and
fewer, the sign is the highest bit of an integer's code and is not stored again.

=====  ==================================  ===========================================
bits   integers                            stored beside the sign code
=====  ==================================  ===========================================
8      -127 to 127                         a byte each, shifted by 128
4      odd, -15 to 15                      three bit planes
2      -3, -1, 1, 3                        one bit plane
1      -1, 1                               nothing
=====  ==================================  ===========================================

At 8 bits, ``scale = max(abs(vector)) / 127``. At fewer bits, the step between integers is the one with the least
squared error for normally distributed numbers, and the scale restores the norm of the token, since otherwise coarse
codes would lower every score. A scale is stored in 16 bits: the exponent of a float32 and 8 bits of its fraction
(``bits >> 15``; scales have no sign).

Array views are avoided, since numba takes seconds to compile their error paths. Addresses are not checked: the caller
must keep the memory alive and stay within it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.indexes.ivf.layout import CodedDocuments, CodeShape
from latelier.kernels import jit as vectors
from latelier.kernels.jit import ROWS, at, cgutils, constant, intrinsic, ir, kernel, types

_WORD = ir.IntType(32)
_BITS = ir.VectorType(ir.IntType(1), 32)
_BYTES = ir.VectorType(ir.IntType(8), 32)


@intrinsic
def take_plane(typing_context: Any, rows: Any, bit: Any, plane: Any, words: Any) -> Any:
    """Write bit `bit` of each byte at `rows` (``32 * words`` of them) to the `words` words at `plane`."""
    signature = types.void(*[types.int64] * 4)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        rows, bit, plane, words = arguments
        mask = _all(builder, builder.trunc(builder.shl(constant(1), bit), ir.IntType(8)))
        with cgutils.for_range(builder, words) as loop:
            source = builder.add(rows, builder.mul(loop.index, constant(32)))
            codes = builder.load(at(builder, source, _BYTES), align=1)
            found = builder.icmp_unsigned("!=", builder.and_(codes, mask), ir.Constant(_BYTES, [0] * 32))
            target = builder.add(plane, builder.mul(loop.index, constant(4)))
            builder.store(builder.bitcast(found, _WORD), at(builder, target, _WORD), align=4)
        return context.get_dummy_value()

    return signature, generate


def _merge_of(bits: int) -> Any:
    """Make the instruction sequence that merges `bits` planes."""

    @intrinsic
    def merge(typing_context: Any, signs: Any, low: Any, row: Any, words: Any) -> Any:
        """Write ``2 * code - (2 ** bits - 1) + 128`` for each code to the ``32 * words`` bytes at `row`.

        The highest plane is at `signs`, the others at `low`, one after the other from the highest.
        """
        signature = types.void(*[types.int64] * 4)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            signs, low, row, words = arguments
            offset = ir.Constant(_BYTES, [128 - (2**bits - 1)] * 32)
            stride = builder.mul(words, constant(4))
            with cgutils.for_range(builder, words) as loop:
                step = builder.mul(loop.index, constant(4))
                total = ir.Constant(_BYTES, [0] * 32)
                for plane in range(bits):
                    base = signs if plane == 0 else builder.add(low, builder.mul(stride, constant(plane - 1)))
                    word = builder.load(at(builder, builder.add(base, step), _WORD), align=4)
                    # A bit of plane p adds 2 ** (bits - p) to the doubled code.
                    weight = ir.Constant(_BYTES, [2 ** (bits - plane)] * 32)
                    zero = ir.Constant(_BYTES, [0] * 32)
                    total = builder.add(total, builder.select(builder.bitcast(word, _BITS), weight, zero))
                target = builder.add(row, builder.mul(loop.index, constant(32)))
                builder.store(builder.add(total, offset), at(builder, target, _BYTES), align=1)
            return context.get_dummy_value()

        return signature, generate

    return merge


_merge_1, _merge_2, _merge_4 = _merge_of(1), _merge_of(2), _merge_of(4)


@kernel(inner=True)
def merge_planes(bits: int, signs: int, low: int, row: int, words: int) -> None:
    """Merge the planes of a token's 1, 2 or 4-bit codes into bytes that kernels multiply.

    `bits`: 1, 2 or 4; `signs`, `low`: address of the highest plane, and of the other planes from the highest to the
    lowest; `row`: address of ``32 * words`` bytes, written: ``2 * code - (2 ** bits - 1)``, shifted by 128.
    """
    if bits == 4:
        _merge_4(signs, low, row, words)
    elif bits == 2:
        _merge_2(signs, low, row, words)
    else:
        _merge_1(signs, low, row, words)


def _all(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    undefined = ir.Constant(_BYTES, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_WORD, 32), [0] * 32))


@intrinsic
def lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Return the position of the lowest set bit of a mask that is not 0."""
    signature = types.int64(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return signature, generate


@intrinsic
def bits_of(typing_context: Any, number: Any) -> Any:
    """Return the bits of a float32 as uint32."""
    signature = types.uint32(types.float32)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return signature, generate


@intrinsic
def float_of(typing_context: Any, bits: Any) -> Any:
    """Return the float32 with the given bits, uint32."""
    signature = types.float32(types.uint32)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return signature, generate


_BYTE = ir.IntType(8)


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes from one address to another; the two do not overlap."""
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        target, source, count = arguments
        pointer = _BYTE.as_pointer()
        cgutils.raw_memcpy(
            builder, builder.inttoptr(target, pointer), builder.inttoptr(source, pointer), count, constant(1)
        )
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the cache line at an address; an invalid address is ignored."""
    signature = types.void(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        vectors.emit_prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return signature, generate


def _read(bits: int) -> Any:
    @intrinsic
    def read(typing_context: Any, address: Any) -> Any:
        """Return the unsigned integer at an address."""
        signature = types.uint32(types.int64)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            word = builder.load(vectors.at(builder, arguments[0], ir.IntType(bits)), align=1)
            return builder.zext(word, ir.IntType(32)) if bits < 32 else word

        return signature, generate

    return read


read_half, read_word = _read(16), _read(32)


# Steps of the uniform quantisers with 16 and 4 levels that have the least squared error for a normal distribution, in
# standard deviations.
_STEP_4, _STEP_2 = np.float32(0.3352), np.float32(0.9957)
# Adding this to a float32 in (-256, 256) rounds it to an integer; the lowest bits of the sum hold this integer + 128.
_ROUND = np.float32(1.5 * 2**23 + 128)
# The scale of very small numbers has no finite inverse, and that of very large ones an inexact one: tokens whose scale
# or norm is outside of these bounds are multiplied by 2**64 or 2**-64 before their numbers are divided by it.
_SMALL, _LARGE = np.float32(2**-64), np.float32(2**64)
# Stored scales from here on are infinity or NaN, and so are the bits of a float32 from there on.
_INFINITE, _INFINITY_BITS = np.uint32(0xFF00), np.uint32(0x7F800000)


class TokenAddresses(NamedTuple):
    """Addresses of a token's sign code, codes and scale."""

    signs: int
    codes: int
    scales: int


@kernel()
def encode_tokens(
    vectors: np.ndarray, bits: int, signs: np.ndarray, codes: np.ndarray, planes: np.ndarray, scales: np.ndarray
) -> None:
    """Write the codes of tokens.

    `vectors`: ``(tokens, dim)`` float32, contiguous. `bits`: 8, 4, 2 or 1. `signs`: ``(tokens, sign_words(dim))``
    uint32, written; a bit is set where the integer is not negative. `codes`: ``(tokens, dim)`` uint8, written at 8 bits
    only. `planes`: ``(tokens, bits - 1, sign_words(dim))`` uint32, highest plane first, written at fewer bits only.
    `scales`: ``(tokens,)`` uint16, written; 0xFF00 or above for a token that holds NaN or infinity.
    """
    dim, words = vectors.shape[1], signs.shape[1]
    row = np.zeros(32 * words, dtype=np.uint8)
    row_at, scaled = np.int64(row.ctypes.data), np.empty((1, dim), dtype=np.float32)
    for t in range(len(vectors)):
        if bits == 8:
            highest = _peak_bits(vectors[t])
            # Rounded up, so that the largest number is at most 127 * scale.
            peak = float_of(highest) / np.float32(127)  # type: ignore[call-arg]
            stored = (bits_of(peak) + np.uint32(0x7FFF)) >> np.uint32(15)
            scale = float_of(np.uint32(stored) << np.uint32(15))
            scales[t] = stored if highest < _INFINITY_BITS else _INFINITE
            if scale < _SMALL:
                _multiply(vectors[t], _LARGE, scaled[0])
                _round_to_bytes(scaled[0], scale * _LARGE, row)
            else:
                _round_to_bytes(vectors[t], scale, row)
            for i in range(dim):
                codes[t, i] = row[i]
            take_plane(row_at, 7, np.int64(signs[t].ctypes.data), words)
            continue
        norm = np.sqrt(_square(vectors[t]))
        if _SMALL <= norm <= _LARGE:
            coded = _quantise_uniformly(vectors[t], norm, bits, row)
        else:
            power = _LARGE if norm < _SMALL else _SMALL
            _multiply(vectors[t], power, scaled[0])
            coded = _quantise_uniformly(scaled[0], norm * power, bits, row)
        take_plane(row_at, bits - 1, np.int64(signs[t].ctypes.data), words)  # type: ignore[call-arg]
        for plane in range(bits - 1):
            take_plane(row_at, bits - 2 - plane, np.int64(planes[t, plane].ctypes.data), words)
        stored = (bits_of(np.float32(norm / np.sqrt(coded))) + np.uint32(0x4000)) >> np.uint32(15)
        # The largest numbers would be rounded up to infinity.
        scales[t] = min(stored, _INFINITE - np.uint32(1)) if norm < np.inf else _INFINITE


@kernel(inner=True)
def _multiply(vector: np.ndarray, factor: float, scaled: np.ndarray) -> None:
    for i in range(len(vector)):
        scaled[i] = vector[i] * factor


@kernel(inner=True)
def _round_to_bytes(vector: np.ndarray, scale: float, row: np.ndarray) -> None:
    """Write ``round(vector / scale) + 128`` as bytes; 128 if the scale is 0."""
    inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
    for i in range(len(vector)):
        row[i] = np.uint8(bits_of(vector[i] * inverse + _ROUND))  # type: ignore[call-arg]


@kernel(inner=True)
def _quantise_uniformly(vector: np.ndarray, norm: float, bits: int, row: np.ndarray) -> float:
    """Write a code ``c`` from 0 to ``2**bits - 1`` per number; return the sum of squares of ``2 * c - (2**bits - 1)``.

    The step is a multiple of the root mean square of the token's numbers, which are taken to be normally distributed.
    """
    half, most = np.float32(1 << (bits - 1)), np.float32((1 << bits) - 1)
    step = np.float32(norm / np.sqrt(len(vector))) * (_STEP_4 if bits == 4 else _STEP_2)
    inverse = np.float32(1) / step if step > 0 else np.float32(0)
    for i in range(len(vector)):
        x = vector[i] * inverse + half
        x = x if x > 0 else np.float32(0)
        row[i] = np.uint8(np.int32(x if x < most else most))
    total = 0
    for i in range(len(vector)):
        value = 2 * np.int32(row[i]) - np.int32((1 << bits) - 1)
        total += value * value
    return float(total)


@kernel(inner=True)
def _peak_bits(vector: np.ndarray) -> int:
    """Return the bits of the largest absolute number; non-negative floats are ordered like their bits."""
    largest = np.uint32(0)
    for i in range(len(vector)):
        size = np.uint32(bits_of(vector[i]) & np.uint32(0x7FFFFFFF))  # type: ignore[call-arg]
        largest = size if size > largest else largest
    return largest


@kernel("reassoc", "contract", inner=True)
def _square(vector: np.ndarray) -> float:
    total = 0.0
    for i in range(len(vector)):
        total += np.float64(vector[i]) * np.float64(vector[i])
    return total


@kernel(inner=True)
def load_rows(at: TokenAddresses, shape: CodeShape, count: int, rows: np.ndarray, scales: np.ndarray) -> None:
    """Read up to eight consecutive tokens in the form that kernels multiply.

    `count`: number of tokens, 1 to 8. `rows`: ``(8, byte_width(dim))`` uint8, written: integers + 128; bytes beyond the
    dim are undefined. Rows from `count` on are copies of the last token. `scales`: ``(8,)`` float32, written.
    """
    rows_at = np.int64(rows.ctypes.data)
    for r in range(ROWS):
        load_row(at, min(r, count - 1), shape, rows_at + r * rows.shape[1])
    load_scales(at.scales, count, scales)


@kernel(inner=True)
def load_row(at: TokenAddresses, token: int, shape: CodeShape, row: int) -> None:
    """Write a token to an address in the form that kernels multiply: integers + 128, and any bytes beyond the dim.

    `at`, `token`: addresses of a token, and how many tokens after it the wanted one is; `row`: address of
    `byte_width(dim)` bytes.
    """
    if shape.bits == 8:
        copy_bytes(row, at.codes + token * shape.dim, shape.dim)  # type: ignore[call-arg]
    else:
        signs_at, planes_at = at.signs + token * shape.sign_words * 4, at.codes + token * shape.code_bytes
        merge_planes(shape.bits, signs_at, planes_at, row, shape.sign_words)


@kernel(inner=True)
def load_scales(address: int, count: int, scales: np.ndarray) -> None:
    """Read the scales of consecutive tokens into float32; if there are less than eight, eight places get the last one.

    Infinity and NaN, which only a damaged file holds, are read as zero.
    """
    for r in range(max(count, ROWS)):
        bits = np.uint32(read_half(address + 2 * min(r, count - 1)))
        scales[r] = float_of((bits if bits < _INFINITE else np.uint32(0)) << np.uint32(15))  # type: ignore[call-arg]


@kernel()
def unpack_documents(
    documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape, rows: np.ndarray, scales: np.ndarray
) -> None:
    """Write the tokens of some documents, one document after the other, in the form that kernels multiply.

    `documents`, `chosen`, `shape`: as for `decode_documents`. `rows`: ``(tokens, byte_width(dim))`` uint8, written:
    integers + 128; beyond the dim 128, which stands for zero. `scales`: ``(tokens,)`` float32, written.
    """
    documents, shape = CodedDocuments(*documents), CodeShape(*shape)
    block = np.empty((ROWS, rows.shape[1]), dtype=np.uint8)
    block_scales = np.empty(ROWS, dtype=np.float32)
    done = 0
    for d in chosen:
        for first in range(0, documents.lengths[d], ROWS):
            count = min(ROWS, documents.lengths[d] - first)
            load_rows(token_addresses(documents, d, first, shape), shape, count, block, block_scales)
            for r in range(count):
                for i in range(rows.shape[1]):
                    rows[done, i] = block[r, i] if i < shape.dim else np.uint8(128)
                scales[done] = block_scales[r]
                done += 1


@kernel()
def unpack_tokens(
    documents: CodedDocuments,
    chosen: np.ndarray,
    offsets: np.ndarray,
    numbers: np.ndarray,
    shape: CodeShape,
    rows: np.ndarray,
    scales: np.ndarray,
) -> None:
    """Write some tokens of some documents in the form that kernels multiply.

    `documents`, `chosen`, `shape`: as for `decode_documents`. `offsets`: ``(n + 1,)`` int64, from 0: the number of the
    first token of each of these documents. `numbers`: ``(tokens,)`` int64: the tokens to write, ascending; with each
    step back all documents are passed again. `rows`, `scales`: as for `unpack_documents`.
    """
    documents, shape = CodedDocuments(*documents), CodeShape(*shape)
    count, width, rows_at = len(numbers), rows.shape[1], np.int64(rows.ctypes.data)
    places, block_scales = np.empty((3, count), dtype=np.int64), np.empty(ROWS, dtype=np.float32)
    i = 0
    for n in range(count):
        i = i if offsets[i] <= numbers[n] else 0
        while offsets[i + 1] <= numbers[n]:
            i += 1
        at = token_addresses(documents, chosen[i], numbers[n] - offsets[i], shape)
        places[0, n], places[1, n], places[2, n] = at.signs, at.codes, at.scales
    for n in range(count):
        ahead = min(n + ROWS, count - 1)
        _prefetch_token(places[0, ahead], places[1, ahead], places[2, ahead], shape)
        load_row(TokenAddresses(places[0, n], places[1, n], places[2, n]), 0, shape, rows_at + n * width)
        load_scales(places[2, n], 1, block_scales)
        scales[n] = block_scales[0]
        for j in range(shape.dim, width):
            rows[n, j] = np.uint8(128)


@kernel(inner=True)
def _prefetch_token(signs: int, codes: int, scales: int, shape: CodeShape) -> None:
    """Prefetch the numbers and the scale of a token."""
    prefetch(scales)  # type: ignore[call-arg]
    if shape.bits < 8:
        prefetch(signs)
    if shape.code_bytes > 0:
        for line in range(0, shape.code_bytes, 64):
            prefetch(codes + line)
        prefetch(codes + shape.code_bytes - 1)


@kernel()
def decode_documents(documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape, vectors: np.ndarray) -> None:
    """Write the decoded vectors of some documents, one document after the other.

    `documents`: `CodedDocuments`, as a plain tuple; `chosen`: ``(n,)`` int64: documents to decode; `shape`:
    `CodeShape`, as a plain tuple; `vectors`: ``(tokens, dim)`` float32, written.
    """
    documents, shape = CodedDocuments(*documents), CodeShape(*shape)
    block = np.empty((ROWS, 32 * shape.sign_words), dtype=np.uint8)
    block_scales = np.empty(ROWS, dtype=np.float32)
    done = 0
    for d in chosen:
        for first in range(0, documents.lengths[d], ROWS):
            count = min(ROWS, documents.lengths[d] - first)
            load_rows(token_addresses(documents, d, first, shape), shape, count, block, block_scales)
            for r in range(count):
                for i in range(shape.dim):
                    vectors[done, i] = np.float32(np.int32(block[r, i]) - 128) * block_scales[r]
                done += 1


@kernel(inner=True)
def token_addresses(documents: CodedDocuments, document: int, token: int, shape: CodeShape) -> TokenAddresses:
    """Return where a token of a document is in memory."""
    return TokenAddresses(
        documents.signs[document] + token * shape.sign_words * 4,
        documents.codes[document] + token * shape.code_bytes,
        documents.scales[document] + token * 2,
    )
