"""How kernels are compiled: numba's settings, the processor's features, and helpers for SIMD.

Python passes arrays, numbers and plain tuples of them to kernels: numba finds the types of these in C, but that of a
NamedTuple in Python, at each call. A kernel that reads fields by name makes the NamedTuple first:
``documents = CodedDocuments(*documents)``. Calls between kernels do not have this cost.

numba detects changes in the file of a kernel, but not in other files that it is compiled from: after a change to
`jit`, `conversion`, `multiply`, or any kernel that a kernel of another file calls, delete the ``__pycache__`` of both
folders of kernels, or the folder that ``NUMBA_CACHE_DIR`` names.

All of numba is imported here, before its parts: two threads may import kernels first, and a part such as ``numba.core``
that is imported while another thread still imports numba fails in both.
"""

from __future__ import annotations

import pickle
import platform
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils as cgutils
from numba.core import types as types
from numba.core.compiler_lock import global_compiler_lock as global_compiler_lock
from numba.extending import intrinsic as intrinsic
from numba.extending import register_jitable

# Everything of numba and LLVM that kernels need is imported from here.


def kernel(*fastmath: str, inner: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function when it is first called.

    `fastmath`: what LLVM may do to floating-point code: ``"contract"`` (fused multiply-add), ``"reassoc"`` (sums in
    another order). `inner`: only other kernels call it: it is compiled into each of them, which takes a third less
    time. Called from Python, it is interpreted.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}
    options |= {"no_cpython_wrapper": inner, "no_cfunc_wrapper": True}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inner:
            return register_jitable(**options)(function)
        # numba looks up its cache by file, and loads an entry as a function of the module that compiled it. A file run
        # by itself (python -m doctest ward.py) has another module name, which other processes could not import.
        cache = str(function.__module__).startswith("latelier.")
        try:
            compiled = numba.njit(cache=cache, **options)(function)
        except RuntimeError:  # "cannot cache function: no locator available"
            return numba.njit(**options)(function)
        _skip_unreadable_cache(compiled)
        return compiled

    return decorate


def is_cached(compiled: Any) -> bool:
    """Whether a kernel was compiled on this machine before, so that it is loaded within a fraction of a second."""
    file = getattr(compiled._cache, "_cache_file", None)
    return file is not None and bool(file._load_index())


def _skip_unreadable_cache(compiled: Any) -> None:
    """Compile a kernel anew if its cache cannot be read, such as one that names a class of an older version."""
    file = getattr(compiled._cache, "_cache_file", None)
    if file is None:
        return
    load = file._load_index

    def load_index() -> dict[Any, Any]:
        try:
            return dict(load())
        except (AttributeError, ImportError, EOFError, pickle.UnpicklingError):
            return {}

    file._load_index = load_index


# LLVM does not list the dot product among the features of every system; by the processor's name, it knows that these
# have it: Apple's M1 and later, Arm's server processors since 2019, and the Raspberry Pi 5.
_WITH_DOT_PRODUCT = ("apple-m", "neoverse-", "cortex-a76")


@cache
def has_features(*names: str) -> bool:
    """Return whether the processor has all of these features, by LLVM's names, and numba may use them.

    ``NUMBA_CPU_FEATURES`` and ``NUMBA_CPU_NAME=generic`` exclude instructions, so that compiled kernels can be shared
    between machines; LLVM ends the process when a kernel asks for an excluded one.
    """
    try:
        found = {name for name, has in llvm.get_host_cpu_features().items() if has}
    except RuntimeError:  # LLVM does not know the features on this platform, such as macOS on Apple's processors
        found = set()
    if platform.machine().lower() in ("aarch64", "arm64"):
        found.add("neon")  # each of them has it
        if llvm.get_host_cpu_name().startswith(_WITH_DOT_PRODUCT):
            found.add("dotprod")
    allowed = vars(numba.config).get("CPU_FEATURES")  # such as "+avx2,+fma,-avx512f"; None: all that the processor has
    return found.issuperset(names) and (allowed is None or {f"+{name}" for name in names} <= {*allowed.split(",")})


@cache
def has_fast_bfloat16() -> bool:
    """Return whether the processor multiplies two bfloat16 in the time of one float32 (``vdpbf16ps``).

    AMD's processors do. On Intel's the instruction takes more than twice as long as the float32 one, so it is slower
    than to widen the numbers (0.127 instead of 0.075 ms on a Xeon with AMX).
    """
    return has_features("avx512bf16") and llvm.get_host_cpu_name().startswith("znver")


LANES = 16  # lanes of a vector: query tokens
ROWS = 8  # document tokens that are scored together where numbers are integers
STEP = 4  # rows are padded to a multiple of this many words, so that loops are unrolled without a remainder

INTS = ir.VectorType(ir.IntType(32), LANES)
FLOATS = ir.VectorType(ir.FloatType(), LANES)


def constant(value: int) -> ir.Constant:
    """Return a 64-bit integer."""
    return ir.Constant(ir.IntType(64), value)


def declare(module: ir.Module, name: str, operands: list[ir.Type], result: ir.Type) -> ir.Function:
    """Return an intrinsic function of LLVM, declared once per module."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, operands), name)


def at(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """Return a pointer to `kind` from an address."""
    return builder.inttoptr(address, kind.as_pointer())


def splat(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Return a vector with the same value in every lane."""
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return shuffle(builder, single, [0] * kind.count)


def shuffle(builder: ir.IRBuilder, first: ir.Value, places: Sequence[int], second: ir.Value | None = None) -> ir.Value:
    """Return the elements at `places` of a vector, or of two vectors one after the other."""
    if second is None:
        second = ir.Constant(first.type, ir.Undefined)
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places)))


def load_words(builder: ir.IRBuilder, rows: ir.Value, words: ir.Value, index: ir.Value, count: int) -> list[ir.Value]:
    """Return word `index` of each of `count` rows; `rows` is their address, and each has `words` words."""
    word = ir.IntType(32)
    column = builder.add(rows, builder.mul(index, constant(4)))
    stride = builder.mul(words, constant(4))
    places = [builder.add(column, builder.mul(stride, constant(r))) for r in range(count)]
    return [builder.load(at(builder, place, word), align=1) for place in places]


def emit_prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line at an address; the processor ignores an address that cannot be read."""
    pointer = ir.IntType(8).as_pointer()
    word = ir.IntType(32)
    # LLVM 15 and later rename it to llvm.prefetch.p0.
    fetch = declare(builder.module, "llvm.prefetch.p0i8", [pointer, word, word, word], ir.VoidType())
    # The constants: for reading, into the first-level cache, data.
    builder.call(fetch, [builder.inttoptr(address, pointer), *(ir.Constant(word, n) for n in (0, 3, 1))])
