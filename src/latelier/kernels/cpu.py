"""Which kernels this processor can run, as far as numba may compile for it.

``NUMBA_CPU_FEATURES``, and ``NUMBA_CPU_NAME=generic``, keep numba from instructions that the processor has, so that
compiled kernels can be shared between machines. LLVM ends the process when a kernel asks for one of them all the same.
"""

from __future__ import annotations

import os
from functools import cache

from latelier.errors import InvalidArgumentError

__all__ = ["KERNELS", "choose_kernel", "multiplies_bfloat16"]

KERNELS = ("avx512", "portable")
_VARIABLE = "LATELIER_KERNELS"


@cache
def _has(*features: str) -> bool:
    import llvmlite.binding as llvm
    import numba

    allowed = vars(numba.config).get("CPU_FEATURES")  # such as "+avx2,+fma,-avx512f"; None: all that the processor has
    try:
        found = {name for name, has in llvm.get_host_cpu_features().items() if has}
    except RuntimeError:  # LLVM cannot tell on this platform
        return False
    return found.issuperset(features) and (
        allowed is None or {f"+{name}" for name in features} <= {*allowed.split(",")}
    )


def _detected() -> str:
    return "avx512" if _has("avx512f", "avx512bw", "avx512vnni") else "portable"


def multiplies_bfloat16() -> bool:
    """Return whether the kernels of `choose_kernel` can multiply bfloat16 as it is, twice as fast as float32.

    Examples
    --------
    >>> multiplies_bfloat16() in (True, False)
    True
    """
    return choose_kernel() == "avx512" and _has("avx512bf16")


def choose_kernel() -> str:
    """Return ``"avx512"`` where the processor multiplies int8 in vectors (VNNI), ``"portable"`` elsewhere.

    The environment variable ``LATELIER_KERNELS`` forces one of them, to compare; both give the same numbers.

    Raises
    ------
    InvalidArgumentError
        If the variable names another kernel, or one that this processor cannot run.

    Examples
    --------
    >>> choose_kernel() in KERNELS
    True
    """
    asked = os.environ.get(_VARIABLE)
    if asked is None:
        return _detected()
    if asked not in KERNELS:
        raise InvalidArgumentError(f"{_VARIABLE}={asked!r}; expected one of {', '.join(KERNELS)}, or unset.")
    if asked == "avx512" and _detected() != "avx512":
        raise InvalidArgumentError(f"{_VARIABLE}={asked!r}, but this processor has no AVX-512 VNNI; unset it.")
    return asked
