"""Token vectors as codes of 8, 4, 2 or 1 bits, and back to the bytes that integer kernels multiply.

The token vectors of many models lie in a narrow cone. So each index has an *axis*, a unit vector u along which its
tokens point, and the component ``d . u`` of a token is stored as a number, its *lead*. The rest, ``d - (d . u) u``, is
rotated and coded; the same rotation of the query gives ``q . d = (q . u) (d . u) + rest(q) . rest(d)``. The rotation
(random signs and Hadamard transforms) makes the numbers of the rest nearly normal and alike, which a few levels fit.

The rest is a vector of small integers times a scale. The signs of the integers are stored separately, as a binary code
of one bit per number, in words of 32 bits, since the binary stage of a search reads only signs. At 4 bits and fewer,
the sign is the highest bit of an integer's code and is not stored again.

=====  ==================================  ===========================================
bits   integers                            stored beside the binary code
=====  ==================================  ===========================================
8      -127 to 127                         a byte each, shifted by 128
4      16 of -127 to 127                   three bit planes
2      cell + (-b, -a, a or b)             one bit plane; the cell
1      cell + (-a or a)                    the cell
=====  ==================================  ===========================================

At 8 bits, ``scale = max(abs(rest)) / 127``. At fewer bits, the levels are those with the least squared error for
normally distributed numbers (Max, 1960), and the scale makes the product of the
code with the rest its square, so that products with other vectors are unbiased (RaBitQ, Gao and Long, 2024,
https://arxiv.org/abs/2405.12497; for several bits https://arxiv.org/abs/2409.09913). A scale is stored in 16 bits: the
exponent of a float32 and 8 bits of its fraction (``bits >> 15``; scales have no sign); a lead in 24, ``bits >> 8``.

At 2 and 1 bits, the integers are those of one of the 4,096 *cells* of the index's codebook, directions near which many
rests lie, and sizes with the signs of what is left, one of 16 sizes per token. So 16 bits per token hold the number of
its cell and, in the lowest four, that of its size. Cell 0 is zero: tokens that were coded before there was a codebook
are in it.

Array views are avoided, since numba takes seconds to compile their error paths. Addresses are not checked: the caller
must keep the memory alive and stay within it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.indexes.ivf.layout import (
    DEVIATIONS,
    EDGES,
    LARGE_2,
    SIZE_BITS,
    SIZE_MASK,
    SIZES,
    SMALL_1,
    SMALL_2,
    STEPS,
    CodedDocuments,
    CodeShape,
)
from latelier.kernels import jit as vectors
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
    shuffle,
    types,
)

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
    def merge(
        typing_context: Any, signs: Any, low: Any, row: Any, words: Any, cell: Any, small: Any, large: Any
    ) -> Any:
        """Write the integer of each code + 128 to the ``32 * words`` bytes at `row`.

        The plane of signs is at `signs`, those of the number of the size at `low`, one after the other, highest first.
        At 2 and 1 bits, the sizes are `small` and `large`, and the integers of the cell at `cell` are added.
        """
        signature = types.void(*[types.int64] * 7)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            signs, low, row, words, cell, *given = arguments
            stride = builder.mul(words, constant(4))
            zero = ir.Constant(_BYTES, [128] * 32)
            add, subtract = (
                declare(builder.module, f"llvm.u{name}.sat.v32i8", [_BYTES, _BYTES], _BYTES) for name in ("add", "sub")
            )
            given = [_all(builder, builder.trunc(size, ir.IntType(8))) for size in given[:bits]]
            with cgutils.for_range(builder, words) as loop:
                step = builder.mul(loop.index, constant(4))

                def load(plane: ir.Value) -> ir.Value:
                    place = at(builder, builder.add(plane, step), _WORD)
                    return builder.bitcast(builder.load(place, align=4), _BITS)

                here = builder.mul(loop.index, constant(32))
                base = zero
                if bits < 4:
                    sizes = given
                else:
                    sizes = [ir.Constant(_BYTES, [size] * 32) for size in SIZES[bits]]
                if bits < 4:
                    center = builder.load(at(builder, builder.add(cell, here), _BYTES), align=1)
                    base = builder.xor(center, zero)
                for plane in reversed(range(bits - 1)):  # of each two neighbours, the lowest plane chooses one
                    bit = load(builder.add(low, builder.mul(stride, constant(plane))))
                    sizes = [builder.select(bit, *pair) for pair in zip(sizes[1::2], sizes[::2], strict=True)]
                above, below = (builder.call(each, [base, sizes[0]]) for each in (add, subtract))
                target = at(builder, builder.add(row, here), _BYTES)
                builder.store(builder.select(load(signs), above, below), target, align=1)
            return context.get_dummy_value()

        return signature, generate

    return merge


_merge_1 = _merge_of(1)
_merge_2 = _merge_of(2)
_merge_4 = _merge_of(4)


@kernel(inner=True)
def merge_planes(bits: int, planes: tuple[int, int], row: int, words: int, codebook: int, cell: int) -> None:
    """Merge the planes of a token's 1, 2 or 4-bit codes into bytes that kernels multiply.

    `bits`: 1, 2 or 4; `planes`: address of the highest plane, and of the other planes from the highest to the lowest;
    `row`: address of ``32 * words`` bytes, written: the integers, shifted by 128; `codebook`, `cell`: its address, and
    what a token stores of its cell, used at 1 and 2 bits only.
    """
    (signs, low) = planes
    size = cell & SIZE_MASK
    center = codebook + (cell >> SIZE_BITS) * 32 * words
    if bits == 4:
        _merge_4(signs, low, row, words, 0, 0, 0)
    elif bits == 2:
        _merge_2(signs, low, row, words, center, SMALL_2[size], LARGE_2[size])
    else:
        _merge_1(signs, low, row, words, center, SMALL_1[size], 0)


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
            if bits < 32:
                return builder.zext(word, ir.IntType(32))
            return word

        return signature, generate

    return read


read_byte = _read(8)
read_half = _read(16)
read_word = _read(32)


_SIZES_4 = np.array(SIZES[4], "float32")
_EDGES_4, _EDGES_2, _EDGES_1 = (np.array(EDGES[bits], "float32") for bits in (4, 2, 1))
# Adding this to a float32 in (-256, 256) rounds it to an integer; the lowest bits of the sum hold this integer + 128.
_ROUND = np.float32(1.5 * 2**23 + 128)
# The scale of very small numbers has no finite inverse, and that of very large ones an inexact one: tokens whose scale
# or norm is outside of these bounds are multiplied by 2**64 or 2**-64 before their numbers are divided by it.
_SMALL = np.float32(2**-64)
_LARGE = np.float32(2**64)
# Stored scales from here on are infinity or NaN, and so are the bits of a float32 from there on.
_INFINITE = np.uint32(0xFF00)
_INFINITY_BITS = np.uint32(0x7F800000)


class TokenAddresses(NamedTuple):
    """Addresses of a token's binary code, codes, scale, lead and cell."""

    signs: int
    codes: int
    scales: int
    leads: int
    cells: int


def _mix_of(count: int) -> Any:
    """Make the instruction sequence for `count` vectors of sixteen numbers, a power of two, which stay in registers."""

    @intrinsic
    def mix(typing_context: Any, address: Any) -> Any:
        """Replace the float32 at an address by their Hadamard transform."""
        signature = types.void(types.int64)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            places = [at(builder, builder.add(arguments[0], constant(4 * LANES * i)), FLOATS) for i in range(count)]
            # times 1 or -1
            numbers = [builder.load(place, align=4) for place in places]
            exact = ("contract",)
            for step in (1, 2, 4, 8):
                signs = ir.Constant(FLOATS, [-1.0 if lane & step else 1.0 for lane in range(LANES)])
                swapped = [shuffle(builder, each, [lane ^ step for lane in range(LANES)]) for each in numbers]
                signed = [builder.fmul(each, signs, flags=exact) for each in numbers]
                numbers = [builder.fadd(*pair, flags=exact) for pair in zip(signed, swapped, strict=True)]
            step = 1
            while step < count:
                pairs = [(numbers[i & ~step], numbers[i | step], i & step) for i in range(count)]
                numbers = [builder.fsub(x, y) if upper else builder.fadd(x, y) for x, y, upper in pairs]
                step *= 2
            for number, place in zip(numbers, places, strict=True):
                builder.store(number, place, align=4)
            return context.get_dummy_value()

        return signature, generate

    return mix


_BLOCK = 8 * LANES
_mix_lanes = _mix_of(1)
_mix_block = _mix_of(_BLOCK // LANES)


@intrinsic
def _mix_pair(typing_context: Any, address: Any, other: Any) -> Any:
    """Replace sixteen float32 each, x and y at two addresses, by x + y and x - y."""
    signature = types.void(types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        places = [at(builder, argument, FLOATS) for argument in arguments]
        x, y = (builder.load(place, align=4) for place in places)
        builder.store(builder.fadd(x, y), places[0], align=4)
        builder.store(builder.fsub(x, y), places[1], align=4)
        return context.get_dummy_value()

    return signature, generate


@kernel(inner=True)
def _transform(vector: np.ndarray, begin: int, size: int) -> None:
    """Replace `size` numbers, a power of two, by their Hadamard transform."""
    start = np.int64(vector.ctypes.data) + 4 * begin
    if size >= LANES:
        step = _BLOCK if size >= _BLOCK else LANES
        for first in range(0, size, step):
            if step == _BLOCK:
                _mix_block(start + 4 * first)
            else:
                _mix_lanes(start + 4 * first)
        while step < size:
            for first in range(0, size, 2 * step):
                for i in range(first, first + step, LANES):
                    _mix_pair(start + 4 * i, start + 4 * (i + step))  # type: ignore[call-arg]
            step *= 2
    else:
        step = 1
        while step < size:
            for first in range(begin, begin + size, 2 * step):
                for i in range(first, first + step):
                    x = vector[i]
                    y = vector[i + step]
                    vector[i] = x + y
                    vector[i + step] = x - y
            step *= 2


@kernel("reassoc", "contract", inner=True)
def _dot(vector: np.ndarray, other: np.ndarray) -> float:
    total = np.float32(0)
    for i in range(len(vector)):
        total += vector[i] * other[i]
    return total


@kernel(inner=True)
def _rotate(vector: np.ndarray, axis: np.ndarray, flips: np.ndarray, rest: np.ndarray) -> float:
    """Write the rotated rest of a vector; return its lead. `flips`: see `Codec.rotation`."""
    lead = _dot(vector, axis)
    size = flips.shape[1]
    for i in range(size):
        rest[i] = (vector[i] - lead * axis[i]) * flips[0, i]
    for i in range(size, len(vector)):
        rest[i] = vector[i] - lead * axis[i]
    _transform(rest, 0, size)
    if len(flips) > 1:
        begin = len(vector) - size
        for i in range(size):
            rest[begin + i] *= flips[1, i]
        _transform(rest, begin, size)
    return lead


@kernel()
def rotate_rows(rows: np.ndarray, axis: np.ndarray, flips: np.ndarray, rests: np.ndarray, leads: np.ndarray) -> None:
    """Write the rotated rest of each row, ``(n, dim)`` float32, and its lead, ``(n,)`` float32."""
    for r in range(len(rows)):
        leads[r] = _rotate(rows[r], axis, flips, rests[r])


@kernel()
def restore_rows(rows: np.ndarray, axis: np.ndarray, flips: np.ndarray, leads: np.ndarray) -> None:
    """Replace rotated rests by the vectors that they and their leads come from."""
    size = flips.shape[1]
    for n in range(len(rows)):
        row = rows[n]
        for turn in range(len(flips)):
            r = len(flips) - 1 - turn
            begin = r * (len(row) - size)
            _transform(row, begin, size)
            for i in range(size):
                row[begin + i] *= flips[r, i]
        missing = leads[n] - _dot(row, axis)  # the code of a rest has a small component along the axis
        for i in range(len(row)):
            row[i] += missing * axis[i]


@kernel()
def encode_tokens(
    vectors: np.ndarray,
    rotation: tuple[np.ndarray, np.ndarray],
    bits: int,
    signs: np.ndarray,
    codes: np.ndarray,
    planes: np.ndarray,
    scales: np.ndarray,
    leads: np.ndarray,
    cells: np.ndarray,
    codebook: np.ndarray,
) -> None:
    """Write the codes of tokens.

    `vectors`: ``(tokens, dim)`` float32, contiguous. `rotation`: the axis and the flips, see `Codec.rotation`. `bits`:
    8, 4, 2 or 1. `signs`: ``(tokens, sign_words(dim))`` uint32, written; a bit is set where the integer is positive or
    zero. `codes`: ``(tokens, dim)`` uint8, written at 8 bits only. `planes`: ``(tokens, bits - 1, sign_words(dim))``
    uint32, highest plane first, written at fewer bits only. `scales`: ``(tokens,)`` uint16, written; 0xFF00 or above
    for a token that holds NaN or infinity. `leads`: ``(tokens, 3)`` uint8, written, lowest byte first. `cells`:
    ``(tokens,)`` uint16: the number of the cell of each token, to which that of its size is added; a token to which no
    cell is near goes to cell 0. `codebook`: see `CodeShape`, as an array. These two are used at 2 and 1 bits only.
    """
    dim = vectors.shape[1]
    words = signs.shape[1]
    row = np.zeros(32 * words, dtype=np.uint8)
    (axis, flips) = rotation
    row_at = np.int64(row.ctypes.data)
    rest = np.empty(dim, np.float32)
    scaled = np.empty(dim, np.float32)
    merged = np.empty(32 * words, dtype=np.uint8)  # not the row, whose bytes beyond the dim stay zero
    for t in range(len(vectors)):
        lead: Any = bits_of(np.float32(_rotate(vectors[t], axis, flips, rest)))  # type: ignore[call-arg]
        lead = np.uint32(lead + (np.uint32(0x80) if lead & _INFINITY_BITS < _INFINITY_BITS else np.uint32(0)))
        for i in range(3):
            leads[t, i] = np.uint8(lead >> np.uint32(8 * i + 8))
        if bits == 8:
            highest = _peak_bits(rest)
            # Rounded up, so that the largest number is at most 127 * scale.
            peak = float_of(highest) / np.float32(127)
            stored = (bits_of(peak) + np.uint32(0x7FFF)) >> np.uint32(15)
            scale = float_of(np.uint32(stored) << np.uint32(15))
            if highest < _INFINITY_BITS:
                scales[t] = stored
            else:
                scales[t] = _INFINITE
            if scale < _SMALL:
                _multiply(rest, _LARGE, scaled)
                _round_to_bytes(scaled, scale * _LARGE, row)
            else:
                _round_to_bytes(rest, scale, row)
            for i in range(dim):
                codes[t, i] = row[i]
            take_plane(row_at, 7, np.int64(signs[t].ctypes.data), words)
            continue
        norm = np.sqrt(_square(rest))
        power = np.float32(1)
        if not _SMALL <= norm <= _LARGE:
            power = _LARGE if norm < _SMALL else _SMALL
            _multiply(rest, power, rest)
        if bits == 4:
            product = _quantise(rest, norm * power, bits, row)
        else:
            cells[t], deviation = _leave(rest, norm * power, codebook, np.int64(cells[t]), scaled)
            _quantise(scaled, deviation * np.sqrt(dim), bits, row)
        signs_at = np.int64(signs[t].ctypes.data)
        planes_at = np.int64(planes[t:].ctypes.data)
        take_plane(row_at, bits - 1, signs_at, words)
        for plane in range(bits - 1):
            take_plane(row_at, bits - 2 - plane, planes_at + 4 * words * plane, words)
        if bits < 4:
            places = (signs_at, planes_at)
            codebook_at = np.int64(codebook.ctypes.data)
            merge_planes(bits, places, np.int64(merged.ctypes.data), words, codebook_at, np.int64(cells[t]))
            product = _product(merged, rest)
        if product > 0:
            scale = (norm * power) ** 2 / product / power
        else:
            scale = 0.0
        stored = (bits_of(np.float32(scale)) + np.uint32(0x4000)) >> np.uint32(15)
        # The largest numbers would be rounded up to infinity.
        if norm < np.inf:
            scales[t] = min(stored, _INFINITE - np.uint32(1))
        else:
            scales[t] = _INFINITE


@kernel(inner=True)
def _multiply(vector: np.ndarray, factor: float, scaled: np.ndarray) -> None:
    for i in range(len(vector)):
        scaled[i] = vector[i] * factor


@kernel(inner=True)
def _round_to_bytes(vector: np.ndarray, scale: float, row: np.ndarray) -> None:
    """Write ``round(vector / scale) + 128`` as bytes; 128 if the scale is 0."""
    if scale > 0:
        inverse = np.float32(1) / scale
    else:
        inverse = np.float32(0)
    for i in range(len(vector)):
        row[i] = np.uint8(bits_of(vector[i] * inverse + _ROUND))  # type: ignore[call-arg]


@kernel("reassoc", "contract", inner=True)
def _quantise(vector: np.ndarray, norm: float, bits: int, row: np.ndarray) -> float:
    """Write a code per number: its sign in the highest bit, and the number of its size.

    Returns the product of the integers with the numbers, at 4 bits.
    Edges are multiples of the root mean square of the token's numbers, which are taken to be normally distributed.
    """
    sizes = _SIZES_4
    if bits == 4:
        edges = _EDGES_4
    elif bits == 2:
        edges = _EDGES_2
    else:
        edges = _EDGES_1
    # of the integers with the numbers
    deviation = np.float32(norm / np.sqrt(len(vector)))
    product = np.float32(0)
    sign = np.uint8(1 << (bits - 1))
    for i in range(len(vector)):
        row[i] = sign if vector[i] >= 0 else np.uint8(0)
        product += sizes[0] * abs(vector[i])
    for n in range(len(edges)):
        edge = edges[n] * deviation
        step = sizes[n + 1] - sizes[n]
        for i in range(len(vector)):
            if abs(vector[i]) >= edge:
                row[i] += np.uint8(1)
            else:
                row[i] += np.uint8(0)
            if abs(vector[i]) >= edge:
                product += step * abs(vector[i])
            else:
                product += np.float32(0)
    return product


@kernel("reassoc", "contract", inner=True)
def _leave(rest: np.ndarray, norm: float, codebook: np.ndarray, cell: int, left: np.ndarray) -> tuple[int, float]:
    """Write what a cell leaves of a rest, in integers; return the cell with the number of its size, and its deviation.

    Where the cell leaves more than the largest size, it is cell 0.
    """
    dim = len(rest)
    product = np.float32(0)
    square = np.float32(0)
    for i in range(dim):
        center = np.float32(codebook[cell, i])
        product += center * rest[i]
        square += center * center
    if product > 0:
        factor = square / product
        remaining = np.float32(0)
        for i in range(dim):
            left[i] = rest[i] * factor - np.float32(codebook[cell, i])
            remaining += left[i] * left[i]
        deviation = np.sqrt(remaining / dim)
        if deviation <= DEVIATIONS[SIZE_MASK]:
            steps = STEPS * np.log2(max(deviation, np.float32(1)) / DEVIATIONS[SIZE_MASK])
            size = max(np.int64(SIZE_MASK + 0.5 + steps), 0)
            return cell << SIZE_BITS | size, np.float64(DEVIATIONS[size])
    if norm > 0:
        factor = np.float32(DEVIATIONS[SIZE_MASK] * np.sqrt(dim) / norm)
    else:
        factor = np.float32(0)
    for i in range(dim):
        left[i] = rest[i] * factor
    return SIZE_MASK, np.float64(DEVIATIONS[SIZE_MASK])


@kernel("reassoc", "contract", inner=True)
def _product(row: np.ndarray, rest: np.ndarray) -> float:
    total = np.float32(0)
    for i in range(len(rest)):
        total += np.float32(np.int32(row[i]) - 128) * rest[i]
    return total


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
        signs_at = at.signs + token * shape.sign_words * 4
        planes_at = at.codes + token * shape.code_bytes
        if shape.bits < 4:
            cell = np.int64(read_half(at.cells + 2 * token))
        else:
            cell = np.int64(0)
        merge_planes(shape.bits, (signs_at, planes_at), row, shape.sign_words, shape.codebook, cell)


@kernel(inner=True)
def load_scales(address: int, count: int, scales: np.ndarray) -> None:
    """Read the scales of consecutive tokens into float32; if there are less than eight, eight places get the last one.

    Infinity and NaN, which only a damaged file holds, are read as zero.
    """
    for r in range(max(count, ROWS)):
        bits = np.uint32(read_half(address + 2 * min(r, count - 1)))
        scales[r] = float_of((bits if bits < _INFINITE else np.uint32(0)) << np.uint32(15))  # type: ignore[call-arg]


@kernel(inner=True)
def load_leads(address: int, count: int, leads: np.ndarray) -> None:
    """Read the leads of consecutive tokens like their scales."""
    for r in range(max(count, ROWS)):
        place = address + 3 * min(r, count - 1)
        bits = np.uint32(read_half(place)) << np.uint32(8) | np.uint32(read_byte(place + 2)) << np.uint32(24)
        finite = bits & _INFINITY_BITS < _INFINITY_BITS
        leads[r] = float_of(bits if finite else np.uint32(0))  # type: ignore[call-arg]


@kernel()
def unpack_documents(
    documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape, rows: np.ndarray, scales: np.ndarray
) -> None:
    """Write the tokens of some documents, one document after the other, in the form that kernels multiply.

    `documents`, `chosen`, `shape`: as for `decode_documents`. `rows`: ``(tokens, byte_width(dim))`` uint8, written:
    integers + 128; beyond the dim 128, which stands for zero. `scales`: ``(tokens,)`` float32, written.
    """
    documents = CodedDocuments(*documents)
    shape = CodeShape(*shape)
    block = np.empty((ROWS, rows.shape[1]), dtype=np.uint8)
    block_scales = np.empty(ROWS, dtype=np.float32)
    done = 0
    for d in chosen:
        for first in range(0, documents.lengths[d], ROWS):
            count = min(ROWS, documents.lengths[d] - first)
            load_rows(token_addresses(documents, d, first, shape), shape, count, block, block_scales)
            for r in range(count):
                for i in range(rows.shape[1]):
                    if i < shape.dim:
                        rows[done, i] = block[r, i]
                    else:
                        rows[done, i] = np.uint8(128)
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
    documents = CodedDocuments(*documents)
    shape = CodeShape(*shape)
    count = len(numbers)
    width = rows.shape[1]
    rows_at = np.int64(rows.ctypes.data)
    places = np.empty((4, count), dtype=np.int64)
    block_scales = np.empty(ROWS, dtype=np.float32)
    i = 0
    for n in range(count):
        i = i if offsets[i] <= numbers[n] else 0
        while offsets[i + 1] <= numbers[n]:
            i += 1
        at = token_addresses(documents, chosen[i], numbers[n] - offsets[i], shape)
        places[0, n] = at.signs
        places[1, n] = at.codes
        places[2, n] = at.scales
        places[3, n] = at.cells
    for n in range(count):
        ahead = min(n + ROWS, count - 1)
        _prefetch_token(places[0, ahead], places[1, ahead], places[2, ahead], places[3, ahead], shape)
        at = TokenAddresses(places[0, n], places[1, n], places[2, n], 0, places[3, n])
        load_row(at, 0, shape, rows_at + n * width)
        load_scales(places[2, n], 1, block_scales)
        scales[n] = block_scales[0]
        for j in range(shape.dim, width):
            rows[n, j] = np.uint8(128)


@kernel(inner=True)
def _prefetch_token(signs: int, codes: int, scales: int, cells: int, shape: CodeShape) -> None:
    """Prefetch the numbers, the scale and the cell of a token."""
    prefetch(scales)  # type: ignore[call-arg]
    if shape.bits < 4:
        prefetch(cells)
    if shape.bits < 8:
        prefetch(signs)
    if shape.code_bytes > 0:
        for line in range(0, shape.code_bytes, 64):
            prefetch(codes + line)
        prefetch(codes + shape.code_bytes - 1)


@kernel(inner=True)
def prefetch_cells(cells: int, count: int, shape: CodeShape) -> None:
    """Prefetch the integers of the cells of some tokens, at 2 and 1 bits."""
    width = 32 * shape.sign_words
    for r in range(count if shape.bits < 4 else 0):
        first = shape.codebook + np.int64(read_half(cells + 2 * r) >> SIZE_BITS) * width
        for line in range(0, width, 64):
            prefetch(first + line)  # type: ignore[call-arg]


@kernel()
def decode_documents(
    documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape, vectors: np.ndarray, leads: np.ndarray
) -> None:
    """Write the decoded rests and leads of some documents, one document after the other.

    `documents`: `CodedDocuments`, as a plain tuple; `chosen`: ``(n,)`` int64: documents to decode; `shape`:
    `CodeShape`, as a plain tuple; `vectors`: ``(tokens, dim)`` float32, and `leads`, ``(tokens,)`` float32, written.
    """
    documents = CodedDocuments(*documents)
    shape = CodeShape(*shape)
    block = np.empty((ROWS, 32 * shape.sign_words), dtype=np.uint8)
    block_scales = np.empty(ROWS, dtype=np.float32)
    block_leads = np.empty(ROWS, dtype=np.float32)
    done = 0
    for d in chosen:
        for first in range(0, documents.lengths[d], ROWS):
            count = min(ROWS, documents.lengths[d] - first)
            here = token_addresses(documents, d, first, shape)
            load_rows(here, shape, count, block, block_scales)
            load_leads(here.leads, count, block_leads)
            for r in range(count):
                for i in range(shape.dim):
                    vectors[done, i] = np.float32(np.int32(block[r, i]) - 128) * block_scales[r]
                leads[done] = block_leads[r]
                done += 1


@kernel(inner=True)
def token_addresses(documents: CodedDocuments, document: int, token: int, shape: CodeShape) -> TokenAddresses:
    """Return where a token of a document is in memory."""
    return TokenAddresses(
        documents.signs[document] + token * shape.sign_words * 4,
        documents.codes[document] + token * shape.code_bytes,
        documents.scales[document] + token * 2,
        documents.leads[document] + token * 3,
        documents.cells[document] + token * 2,
    )
