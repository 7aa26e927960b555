"""Instructions that multiply: floats on any processor, and bytes by a class for each kind of instruction.

`multiply_floats`: a word of four bytes is one float32 or two bfloat16. A row's word is copied to all lanes and
multiplied by the same word of sixteen query tokens, so no sum goes across lanes. All sums of a `Tile` stay in
registers.

`Vnni`, `Pairs` and `DotProduct` have one interface, `multiply`; integer sums are exact and equal.

`instruction_set` returns the best one that the processor has and numba may compile for. A kernel takes
`InstructionSet.argument`, whose numba type differs between instruction sets: the kernel is compiled, and cached on
disk, once for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias

from latelier.errors import InvalidArgumentError
from latelier.kernels.jit import (
    FLOATS,
    INTS,
    LANES,
    STEP,
    at,
    cgutils,
    constant,
    declare,
    has_fast_bfloat16,
    has_features,
    intrinsic,
    ir,
    llvm,
    load_words,
    shuffle,
    splat,
    types,
)

# Addresses of packed vectors and of their starting sums.
Group: TypeAlias = tuple[ir.Value, ir.Value]
# Emits what else to do in each step of a multiplication, from the number of the step.
Meanwhile: TypeAlias = Callable[[ir.Value], None]


class Tile(NamedTuple):
    """How many sums of floats are computed together: as many as registers hold, beside what they are computed from.

    `by_element`: whether a multiplication can take one element of a register, so that four words of a row are loaded at
    once. Elsewhere each word is loaded into all lanes.
    """

    rows: int
    groups: int = 1
    by_element: bool = False


class _BFloat(ir.Type):
    """LLVM's bfloat16, a type that llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


# LLVM 16 declares the operands of the dot product as bfloat16, earlier releases as 32-bit words.
if llvm.llvm_version_info[0] >= 16:
    _BFLOAT_PAIRS = ir.VectorType(_BFloat(), 2 * LANES)
else:
    _BFLOAT_PAIRS = INTS


def multiply_floats(
    builder: ir.IRBuilder,
    tile: Tile,
    rows: ir.Value,
    query: ir.Value,
    words: ir.Value,
    meanwhile: Meanwhile | None = None,
    *,
    bfloat16: bool = False,
) -> list[list[ir.Value]]:
    """Emit the dot products of the rows of a tile with its query tokens: for each row and group, sixteen float32.

    `rows`, `query`: addresses of the rows, and of the groups of packed query tokens ``(groups, words, 16)``; `words`:
    words of a row, a multiple of `STEP`; `meanwhile` is called once per `STEP` words. `bfloat16`: whether a word is two
    bfloat16, which only AVX512_BF16 multiplies.
    """
    word = ir.IntType(32) if bfloat16 else ir.FloatType()
    lanes_type = ir.VectorType(word, LANES)
    some = ir.VectorType(word, STEP)
    zero = ir.Constant(FLOATS, [0.0] * LANES)
    add_product = _adding_product(builder, bfloat16)
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(tile.groups)] for _ in range(tile.rows)]
    row_bytes = builder.mul(words, constant(4))
    group_bytes = builder.mul(words, constant(4 * LANES))
    with cgutils.for_range(builder, builder.udiv(words, constant(STEP))) as loop:
        if meanwhile:
            meanwhile(loop.index)
        starts = [builder.add(rows, builder.mul(loop.index, constant(4 * STEP)))]
        for _ in range(1, tile.rows):
            starts.append(builder.add(starts[-1], row_bytes))
        if tile.by_element:
            loaded = [builder.load(at(builder, start, some), align=4) for start in starts]
        else:
            loaded = []
        for step in range(STEP):
            column = builder.add(builder.mul(loop.index, constant(STEP)), constant(step))
            here = builder.add(query, builder.mul(column, constant(4 * LANES)))
            lanes = []
            for _ in range(tile.groups):
                lanes.append(builder.load(at(builder, here, lanes_type), align=4))
                here = builder.add(here, group_bytes)
            for r, totals in enumerate(sums):
                if tile.by_element:
                    row = shuffle(builder, loaded[r], [step] * LANES)
                else:
                    place = at(builder, builder.add(starts[r], constant(4 * step)), word)
                    row = splat(builder, builder.load(place, align=4), lanes_type)
                for total, tokens in zip(totals, lanes, strict=True):
                    builder.store(add_product(builder.load(total), row, tokens), total)
    return [[builder.load(total) for total in totals] for totals in sums]


def _adding_product(builder: ir.IRBuilder, bfloat16: bool) -> Callable[[ir.Value, ir.Value, ir.Value], ir.Value]:
    """Return what emits sums with products added, from sums, a row's word in all lanes and a word of each token."""
    if bfloat16:
        operands = [FLOATS, _BFLOAT_PAIRS, _BFLOAT_PAIRS]
        dot = declare(builder.module, "llvm.x86.avx512bf16.dpbf16ps.512", operands, FLOATS)
        pairs = _BFLOAT_PAIRS
        return lambda total, row, lanes: builder.call(
            dot, [total, builder.bitcast(row, pairs), builder.bitcast(lanes, pairs)]
        )
    # Fused where the processor has it; a fused multiplication in software would take a hundred times as long.
    multiply = declare(builder.module, "llvm.fmuladd.v16f32", [FLOATS] * 3, FLOATS)
    return lambda total, row, lanes: builder.call(multiply, [row, lanes, total])


class Factors(NamedTuple):
    """What is multiplied: the address of `height` rows ``(words * 4)``, and the groups of packed vectors.

    A group has the addresses of sixteen packed vectors ``(words, 16, 4)`` int8 and of their starting sums ``(16,)``
    int32, what the shift has to be corrected by. `words`: a multiple of `STEP`. `meanwhile` is called once per word, in
    the first loop. Only wide rows make use of `lanes`, from which on the vectors of each group are zeros, and of
    `widened`, which says that the vectors are int16.
    """

    rows: ir.Value
    groups: Sequence[Group]
    words: ir.Value
    height: int
    meanwhile: Meanwhile | None = None
    lanes: int = LANES
    widened: bool = False


@dataclass(frozen=True)
class Vnni:
    """``vpdpbusd`` adds four products to each 32-bit lane: of 512 bits, or 256 (AVX-VNNI).

    `width`: lanes of a register. `sums`: registers for sums; the others hold what is multiplied.
    """

    width: int
    sums: int
    wide_rows: ClassVar[bool] = False

    def multiply(self, builder: ir.IRBuilder, factors: Factors) -> list[ir.Value]:
        """Emit the dot products, sixteen int32 for each row: all rows of the first group, then of the next."""
        rows, groups, words, count, meanwhile, *_ = factors
        parts = LANES // self.width
        some_rows = min(count, self.sums // parts)
        some_groups = max(1, self.sums // (parts * some_rows))
        results: list[ir.Value] = []
        for g in range(0, len(groups), some_groups):
            block = groups[g : g + some_groups]
            by_group: list[list[ir.Value]] = [[] for _ in block]
            for first in range(0, count, some_rows):
                here = builder.add(rows, builder.mul(words, constant(4 * first)))
                found = self._multiply_block(builder, here, block, words, min(some_rows, count - first), meanwhile)
                meanwhile = None  # done by the first loop
                for totals, new in zip(by_group, found, strict=True):
                    totals.extend(new)
            results.extend(total for totals in by_group for total in totals)
        return results

    def _multiply_block(
        self,
        builder: ir.IRBuilder,
        rows: ir.Value,
        groups: Sequence[Group],
        words: ir.Value,
        count: int,
        meanwhile: Meanwhile | None,
    ) -> list[list[ir.Value]]:
        """Emit the dot products of as many rows and groups as fit into registers, in one loop over the words."""
        ints = ir.VectorType(ir.IntType(32), self.width)
        # LLVM 21 declares the operands of the dot product as bytes, earlier releases as 32-bit words.
        if llvm.llvm_version_info[0] >= 21:
            operand = ir.VectorType(ir.IntType(8), 4 * self.width)
        else:
            operand = ints
        dot = declare(builder.module, f"llvm.x86.avx512.vpdpbusd.{32 * self.width}", [ints, operand, operand], ints)
        parts = [constant(4 * self.width * part) for part in range(LANES // self.width)]
        sums = []
        for _, start in groups:
            begin = [builder.load(at(builder, builder.add(start, part), ints), align=4) for part in parts]
            sums.append([[cgutils.alloca_once_value(builder, value) for value in begin] for _ in range(count)])
        with cgutils.for_range(builder, words) as loop:
            if meanwhile:
                meanwhile(loop.index)
            packed = []
            for vectors, _ in groups:
                column = builder.add(vectors, builder.mul(loop.index, constant(4 * LANES)))
                places = [at(builder, builder.add(column, part), ints) for part in parts]
                packed.append([builder.bitcast(builder.load(place, align=4), operand) for place in places])
            for r, word in enumerate(load_words(builder, rows, words, loop.index, count)):
                row = builder.bitcast(splat(builder, word, ints), operand)
                for of_group, totals in zip(packed, sums, strict=True):
                    for part, total in zip(of_group, totals[r], strict=True):
                        builder.store(builder.call(dot, [builder.load(total), row, part]), total)
        return [[self._join(builder, list(map(builder.load, total))) for total in totals] for totals in sums]

    @staticmethod
    def _join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
        if len(parts) == 1:
            return parts[0]
        return shuffle(builder, parts[0], range(LANES), parts[1])


@dataclass(frozen=True)
class Pairs:
    """16-bit numbers multiplied, added in pairs of neighbours and added to 32-bit sums: exact, on any processor.

    LLVM makes one instruction of a pair's multiplication where the processor has it: ``pmaddwd`` on x86, of 128, 256 or
    512 bits. ``pmaddubsw``, which multiplies bytes, would need as many instructions: its 16-bit sums of two products
    have no room for a third, and one factor must be made positive first. `width`: numbers of 16 bits in a register.
    """

    width: int
    wide_rows: ClassVar[bool] = True
    # Sums of one loop, a register each; the other half of 16 registers is for the operands. Four rows share a load of
    # the vectors, which has to widen them to 16 bits.
    _SUMS: ClassVar[int] = 8
    _ROWS: ClassVar[int] = 4

    def multiply(self, builder: ir.IRBuilder, factors: Factors) -> list[ir.Value]:
        """Emit the dot products, sixteen int32 for each row: all rows of the first group, then of the next."""
        rows, groups, words, count, meanwhile, lanes, widened = factors
        width = self.width
        part_lanes = width // 4  # vectors of which a register holds one word
        parts = -(-lanes // part_lanes)
        all_parts = LANES // part_lanes
        missing = [ir.Constant(ir.VectorType(ir.IntType(32), width // 2), [0] * (width // 2))] * (all_parts - parts)
        results: list[ir.Value] = []
        for vectors, start in groups:
            begin = builder.load(at(builder, start, INTS), align=4)
            sums: list[list[ir.Value]] = [[] for _ in range(count)]
            for block in self._blocks(count, parts, all_parts):
                here = builder.add(rows, builder.mul(words, constant(8 * block.first_row)))
                column = builder.add(vectors, constant(width * block.first_part * (1 + widened)))
                found = self._multiply_block(builder, here, column, words, block, widened, meanwhile)
                meanwhile = None  # done by the first loop
                for r, new in enumerate(found, block.first_row):
                    sums[r].extend(new)
            results.extend(builder.add(_join_pairs(builder, row + missing), begin) for row in sums)
        return results

    def _blocks(self, count: int, parts: int, all_parts: int) -> Iterator[_PairsBlock]:
        usual = min(all_parts, self._SUMS // min(count, self._ROWS))
        whole = parts - parts % usual
        for row in range(0, count, self._ROWS):
            for part in range(0, whole, usual):
                yield _PairsBlock(row, min(self._ROWS, count - row), part, usual)
        if whole < parts:  # with fewer parts, the registers hold the sums of more rows
            most = self._SUMS // (parts - whole)
            for row in range(0, count, most):
                yield _PairsBlock(row, min(most, count - row), whole, parts - whole)

    def _multiply_block(
        self,
        builder: ir.IRBuilder,
        rows: ir.Value,
        vectors: ir.Value,
        words: ir.Value,
        block: _PairsBlock,
        widened: bool,
        meanwhile: Meanwhile | None,
    ) -> list[list[ir.Value]]:
        """Emit one loop; return two sums per vector, side by side."""
        width = self.width
        short = ir.IntType(16)
        word_type = ir.IntType(32)
        shorts = ir.VectorType(short, width)
        pairs = ir.VectorType(word_type, width // 2)
        zero = ir.Constant(pairs, [0] * pairs.count)
        sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(block.parts)] for _ in range(block.rows)]
        stride = builder.mul(words, constant(8))
        with cgutils.for_range(builder, words) as loop:
            if meanwhile:
                meanwhile(loop.index)
            column = builder.add(vectors, builder.mul(loop.index, constant(4 * LANES * (1 + widened))))
            packed = []
            for part in range(block.parts):
                place = builder.add(column, constant(width * part * (1 + widened)))
                if widened:
                    packed.append(builder.load(at(builder, place, shorts), align=2))
                else:
                    octets = ir.VectorType(ir.IntType(8), width)
                    packed.append(builder.sext(builder.load(at(builder, place, octets), align=1), shorts))
            place = builder.add(rows, builder.mul(loop.index, constant(8)))
            for totals in sums:
                word = builder.load(at(builder, place, ir.VectorType(short, 4)), align=1)
                row = shuffle(builder, word, [0, 1, 2, 3] * (width // 4))
                for part, total in zip(packed, totals, strict=True):
                    builder.store(builder.add(builder.load(total), multiply_pairs(builder, row, part)), total)
                place = builder.add(place, stride)
        return [[builder.load(total) for total in totals] for totals in sums]


class _PairsBlock(NamedTuple):
    """What one loop of `Pairs` multiplies; a part is the vectors of a group that fill a register."""

    first_row: int
    rows: int
    first_part: int
    parts: int


def multiply_pairs(builder: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Emit the products of 16-bit numbers, added in pairs of neighbours: half as many 32-bit numbers."""
    wide = ir.VectorType(ir.IntType(32), left.type.count)
    return _add_neighbours(builder, builder.mul(builder.sext(left, wide), builder.sext(right, wide)))


def _add_neighbours(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    even, odd = (shuffle(builder, numbers, range(first, numbers.type.count, 2)) for first in range(2))
    return builder.add(even, odd)


def _join_pairs(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """Emit sixteen sums from the parts of a group, which hold two numbers for each vector."""
    joined = [_add_neighbours(builder, part) for part in parts]
    while len(joined) > 1:
        joined = [
            shuffle(builder, first, range(2 * first.type.count), second)
            for first, second in zip(joined[::2], joined[1::2], strict=True)
        ]
    return joined[0]


class DotProduct:
    """``sdot`` of AArch64 adds four products to each of four 32-bit lanes.

    It multiplies a register by one word of another register, so four words of a row are loaded at once. Both factors
    are signed: rows are shifted back, which takes one instruction for sixteen multiplications, and the starting sums
    are not needed.
    """

    wide_rows: ClassVar[bool] = False
    # Rows of one loop: 16 of the 32 registers hold their sums.
    _ROWS: ClassVar[int] = 4

    def multiply(self, builder: ir.IRBuilder, factors: Factors) -> list[ir.Value]:
        """Emit the dot products, sixteen int32 for each row: all rows of the first group, then of the next."""
        rows, groups, words, count, meanwhile, *_ = factors
        results = []
        for vectors, _ in groups:
            for first in range(0, count, self._ROWS):
                here = builder.add(rows, builder.mul(words, constant(4 * first)))
                some = min(self._ROWS, count - first)
                results.extend(self._multiply_rows(builder, here, vectors, words, some, meanwhile))
                meanwhile = None  # done by the first loop
        return results

    def _multiply_rows(
        self,
        builder: ir.IRBuilder,
        rows: ir.Value,
        vectors: ir.Value,
        words: ir.Value,
        count: int,
        meanwhile: Meanwhile | None,
    ) -> list[ir.Value]:
        """Emit the dot products of up to four rows with one group of vectors."""
        ints = ir.VectorType(ir.IntType(32), 4)
        octets = ir.VectorType(ir.IntType(8), 16)
        dot = declare(builder.module, "llvm.aarch64.neon.sdot.v4i32.v16i8", [ints, octets, octets], ints)
        parts = range(LANES // 4)
        zero = ir.Constant(ints, [0] * 4)
        sums = [[cgutils.alloca_once_value(builder, zero) for _ in parts] for _ in range(count)]
        stride = builder.mul(words, constant(4))
        with cgutils.for_range_slice(builder, constant(0), words, constant(STEP), inc=True) as (index, _):
            place = builder.add(rows, builder.mul(index, constant(4)))
            signed = []
            for _ in range(count):
                shifted = builder.load(at(builder, place, octets), align=1)
                row = builder.xor(shifted, ir.Constant(octets, [-128] * 16))
                signed.append(builder.bitcast(row, ints))
                place = builder.add(place, stride)
            for word in range(STEP):
                number = builder.add(index, constant(word))
                if meanwhile:
                    meanwhile(number)
                column = builder.add(vectors, builder.mul(number, constant(4 * LANES)))
                for part in parts:
                    packed = builder.load(at(builder, builder.add(column, constant(16 * part)), octets), align=1)
                    for row, totals in zip(signed, sums, strict=True):
                        element = builder.bitcast(shuffle(builder, row, [word] * 4), octets)
                        total = builder.call(dot, [builder.load(totals[part]), packed, element])
                        builder.store(total, totals[part])
        return [self._join(builder, list(map(builder.load, totals))) for totals in sums]

    @staticmethod
    def _join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
        halves = [shuffle(builder, parts[i], range(8), parts[i + 1]) for i in (0, 2)]
        return shuffle(builder, halves[0], range(LANES), halves[1])


# Their `wide_rows` says whether rows hold 16-bit numbers rather than bytes; both are shifted by 128, to 0 to 255.
ByteProducts: TypeAlias = Vnni | Pairs | DotProduct

_VARIABLE = "LATELIER_KERNELS"


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set, and what the kernels for it are made of.

    `number`: an integer from 1, unique and never reused: the cache on disk tells compiled kernels apart by it;
    `features`: the processor features it needs, by LLVM's names; `tile`: sums of `float_maxsim` computed together.
    """

    name: str
    number: int
    features: tuple[str, ...]
    products: ByteProducts = field(repr=False)
    tile: Tile

    @cached_property
    def argument(self) -> tuple[int, ...]:
        """The argument that tells a kernel the instruction set: a tuple of `number` zeros, whose length is in its type.

        numba finds the type of a plain tuple in C, but that of other objects in Python, at each call of a kernel.
        """
        return (0,) * self.number

    @property
    def is_supported(self) -> bool:
        """Whether the processor has the instructions and numba may use them."""
        return has_features(*self.features)

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether `float_maxsim` is faster if it multiplies bfloat16 without widening it."""
        return "avx512f" in self.features and has_fast_bfloat16()


_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = ("avx512f", "avx512bw")

# The best one of a processor first. AVX-512 has 32 registers, AVX2 has 16: of 24 sums, each step of a loop reads one
# group for eight rows at most.
INSTRUCTION_SETS = {
    known.name: known
    for known in (
        InstructionSet("avx512vnni", 2, (*_AVX512, "avx512vnni"), Vnni(width=16, sums=24), Tile(8, 2)),
        InstructionSet("avx512", 3, _AVX512, Pairs(width=32), Tile(8, 2)),
        InstructionSet("avxvnni", 4, (*_AVX2, "avxvnni"), Vnni(width=8, sums=8), Tile(6)),
        InstructionSet("avx2", 5, _AVX2, Pairs(width=16), Tile(6)),
        InstructionSet("dotprod", 6, ("neon", "dotprod"), DotProduct(), Tile(4, by_element=True)),
        InstructionSet("neon", 7, ("neon",), Pairs(width=8), Tile(4, by_element=True)),
        InstructionSet("generic", 1, (), Pairs(width=8), Tile(2)),
    )
}
_BY_NUMBER = {known.number: known for known in INSTRUCTION_SETS.values()}


def instruction_set() -> InstructionSet:
    """Return the instruction set that kernels are to use: the best one that the processor supports.

    The environment variable ``LATELIER_KERNELS`` forces another by its name, to compare them.
    """
    return _choose(os.environ.get(_VARIABLE))


@cache
def _choose(name: str | None) -> InstructionSet:
    if name is None:
        return supported()[0]
    known = {each.name: each for each in supported()}
    if name not in known:
        raise InvalidArgumentError(f"{_VARIABLE}={name!r}; this processor supports {', '.join(known)}; or unset it.")
    return known[name]


@cache
def supported() -> tuple[InstructionSet, ...]:
    """Return the instruction sets that this processor can run, the best one first."""
    return tuple(known for known in INSTRUCTION_SETS.values() if known.is_supported)


def instruction_set_of(argument: types.BaseTuple) -> InstructionSet:
    """Return an instruction set, given the numba type of its `InstructionSet.argument`."""
    return _BY_NUMBER[len(argument)]


def _constant(read: Callable[[InstructionSet], int]) -> Any:
    """Make the function that a kernel reads a number of its instruction set with; it costs no time when it runs."""

    @intrinsic
    def number(typing_context: Any, isa: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return constant(read(instruction_set_of(isa)))

        return types.int64(isa), generate

    return number


# Of the instruction set with the argument `isa`: rows and groups of its tile; whether rows of bytes are wide.
tile_rows = _constant(lambda isa: isa.tile.rows)
tile_groups = _constant(lambda isa: isa.tile.groups)
has_wide_rows = _constant(lambda isa: int(isa.products.wide_rows))
