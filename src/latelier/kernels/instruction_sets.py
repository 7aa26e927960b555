"""The instruction sets that kernels are written for, and the choice of one; no other module chooses.

`instruction_set` returns the best one that the processor has and numba may compile for. ``NUMBA_CPU_FEATURES`` and
``NUMBA_CPU_NAME=generic`` exclude instructions, so that compiled kernels can be shared between machines; LLVM ends the
process when a kernel asks for an excluded one. A kernel that multiplies bytes takes `InstructionSet.argument`, whose
numba type differs between instruction sets: the kernel is compiled, and cached on disk, once for each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeAlias

from llvmlite import ir
from numba.core import types

from latelier.errors import InvalidArgumentError
from latelier.kernels.multiply import avx512vnni, generic

__all__ = ["INSTRUCTION_SETS", "InstructionSet", "instruction_set", "multiply_bytes_of", "supported"]

# See `latelier.kernels.multiply`.
_MultiplyBytes: TypeAlias = Callable[..., list[ir.Value]]
_VARIABLE = "LATELIER_KERNELS"


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set, with its multiplication of bytes.

    Parameters
    ----------
    name
        As in the environment variable ``LATELIER_KERNELS``.
    number
        An integer from 1, unique and never reused: the cache on disk tells compiled kernels apart by it.
    features
        The processor features it needs, by LLVM's names.
    multiply_bytes
        Emits the multiplication, see `latelier.kernels.multiply`.
    has_one_pass
        Whether MaxSim in one pass (`float_maxsim`, `int8_maxsim`) is written for it. Elsewhere scores are matrix
        products in blocks, then `segment_max_sum`.
    """

    name: str
    number: int
    features: tuple[str, ...]
    multiply_bytes: _MultiplyBytes = field(repr=False)
    has_one_pass: bool = False

    @cached_property
    def argument(self) -> tuple[int, ...]:
        """The argument that tells a kernel the instruction set: a tuple of `number` zeros, whose length is in its type.

        numba finds the type of a plain tuple in C, but that of other objects in Python, at each call of a kernel.
        """
        return (0,) * self.number

    @property
    def is_supported(self) -> bool:
        """Whether the processor has the instructions and numba may use them."""
        return _has(*self.features)

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether `float_maxsim` can multiply bfloat16 without widening it: twice as fast as float32."""
        return self.has_one_pass and _has("avx512bf16")


# The best one first. A new one is a module in `multiply` and a line here.
INSTRUCTION_SETS = {
    known.name: known
    for known in (
        InstructionSet(
            "avx512vnni", 2, ("avx512f", "avx512bw", "avx512vnni"), avx512vnni.multiply_bytes, has_one_pass=True
        ),
        InstructionSet("generic", 1, (), generic.multiply_bytes),
    )
}


def instruction_set() -> InstructionSet:
    """Return the instruction set that kernels are to use: the best one that the processor supports.

    The environment variable ``LATELIER_KERNELS`` forces another by its name, to compare them.

    Raises
    ------
    InvalidArgumentError
        If the variable names an instruction set that is unknown, or that this processor does not support.

    Examples
    --------
    >>> instruction_set().name in INSTRUCTION_SETS
    True
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
    """Return the instruction sets that this processor can run, the best one first.

    Examples
    --------
    >>> supported()[-1].name
    'generic'
    """
    return tuple(known for known in INSTRUCTION_SETS.values() if known.is_supported)


@cache
def _has(*features: str) -> bool:
    """Whether the processor has these features and numba may use them."""
    import llvmlite.binding as llvm
    import numba

    allowed = vars(numba.config).get("CPU_FEATURES")  # such as "+avx2,+fma,-avx512f"; None: all that the processor has
    try:
        found = {name for name, has in llvm.get_host_cpu_features().items() if has}
    except RuntimeError:  # LLVM does not know the features on this platform
        return not features
    return found.issuperset(features) and (
        allowed is None or {f"+{name}" for name in features} <= {*allowed.split(",")}
    )


def multiply_bytes_of(argument: types.BaseTuple) -> _MultiplyBytes:
    """Return the multiplication of an instruction set, given the numba type of its `InstructionSet.argument`.

    Examples
    --------
    >>> from numba import typeof
    >>> chosen = instruction_set()
    >>> multiply_bytes_of(typeof(chosen.argument)) is chosen.multiply_bytes
    True
    """
    return _BY_NUMBER[len(argument)].multiply_bytes


_BY_NUMBER = {known.number: known for known in INSTRUCTION_SETS.values()}
