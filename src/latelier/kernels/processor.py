"""What the processor can do, as far as numba may use it.

``NUMBA_CPU_FEATURES`` and ``NUMBA_CPU_NAME=generic`` exclude instructions, so that compiled kernels can be shared
between machines; LLVM ends the process when a kernel asks for an excluded one.
"""

from __future__ import annotations

import platform
from functools import cache

__all__ = ["has_fast_bfloat16", "has_features"]

# LLVM does not list the dot product among the features of every system; by the processor's name, it knows that these
# have it: Apple's M1 and later, Arm's server processors since 2019, and the Raspberry Pi 5.
_WITH_DOT_PRODUCT = ("apple-m", "neoverse-", "cortex-a76")


@cache
def has_features(*names: str) -> bool:
    """Return whether the processor has all of these features and numba may use them.

    `*names`: features by LLVM's names, such as ``"avx2"`` or ``"neon"``.
    """
    import numba

    allowed = vars(numba.config).get("CPU_FEATURES")  # such as "+avx2,+fma,-avx512f"; None: all that the processor has
    return _found().issuperset(names) and (allowed is None or {f"+{name}" for name in names} <= {*allowed.split(",")})


@cache
def has_fast_bfloat16() -> bool:
    """Return whether the processor multiplies two bfloat16 in the time of one float32 (``vdpbf16ps``).

    AMD's processors do. On Intel's the instruction takes more than twice as long as the float32 one, so it is slower
    than to widen the numbers (0.127 instead of 0.075 ms on a Xeon with AMX).

    Examples
    --------
    >>> has_fast_bfloat16() in (True, False)
    True
    """
    import llvmlite.binding as llvm

    return has_features("avx512bf16") and llvm.get_host_cpu_name().startswith("znver")


def _found() -> frozenset[str]:
    """Return the features of the processor that LLVM names or that its name implies."""
    import llvmlite.binding as llvm

    try:
        found = {name for name, has in llvm.get_host_cpu_features().items() if has}
    except RuntimeError:  # LLVM does not know the features on this platform, such as macOS on Apple's processors
        found = set()
    if platform.machine().lower() in ("aarch64", "arm64"):
        found.add("neon")  # each of them has it
        if llvm.get_host_cpu_name().startswith(_WITH_DOT_PRODUCT):
            found.add("dotprod")
    return frozenset(found)
