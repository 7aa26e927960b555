"""The instruction sets that kernels are written for, and the choice of one; no other module chooses.

`instruction_set` returns the best one that the processor has and numba may compile for. A kernel takes
`InstructionSet.argument`, whose numba type differs between instruction sets: the kernel is compiled, and cached on
disk, once for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.kernels.jit import has_fast_bfloat16, has_features, intrinsic, types
from latelier.kernels.multiply import ByteProducts, DotProduct, Pairs, Tile, Vnni
from latelier.kernels.simd import constant

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
    if name not in INSTRUCTION_SETS:
        raise InvalidArgumentError(f"{_VARIABLE}={name!r}; expected one of {', '.join(INSTRUCTION_SETS)}, or unset.")
    if not INSTRUCTION_SETS[name].is_supported:
        needed = ", ".join(INSTRUCTION_SETS[name].features)
        raise InvalidArgumentError(f"{_VARIABLE}={name!r}, but this processor does not have {needed}; unset it.")
    return INSTRUCTION_SETS[name]


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
