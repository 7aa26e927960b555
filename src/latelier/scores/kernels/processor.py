"""Which kernels this processor can run."""

from __future__ import annotations

import os
from functools import cache

from latelier.errors import InvalidArgumentError

__all__ = ["KERNELS", "choose_kernel"]

KERNELS = ("avx512", "portable")
_VARIABLE = "LATELIER_KERNELS"


@cache
def _detected() -> str:
    import llvmlite.binding as llvm

    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on this platform
        return "portable"
    usable = all(features.get(name, False) for name in ("avx512f", "avx512bw", "avx512vnni"))
    return "avx512" if usable else "portable"


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
