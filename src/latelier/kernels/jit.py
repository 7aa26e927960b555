"""How kernels are compiled: with the interpreter lock released, cached on disk where that works.

The cache lies beside the source, or in the user's own cache folder where the installation cannot be written. Where
neither can be, as in a container of an unknown user, numba refuses to cache at all: then kernels are compiled anew in
each process rather than not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["kernel"]


def kernel(*fastmath: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function when it is first called.

    Parameters
    ----------
    *fastmath
        Liberties that LLVM may take with floating-point numbers, by its own names: ``"contract"`` (fused
        multiply-add), ``"reassoc"`` (sums in another order). None by default.

    Returns
    -------
    callable
        A decorator for numeric code on numpy arrays.

    Examples
    --------
    >>> import numpy as np
    >>> @kernel()
    ... def total(values):
    ...     return values.sum()
    >>> total(np.arange(4))
    6
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        # numba finds what it cached by the file, and loads it as a function of the module that compiled it. A file that
        # is run by itself (python -m doctest ward.py) has another name, which no other process could import.
        cache = str(function.__module__).startswith("latelier.")
        try:
            return numba.njit(cache=cache, **options)(function)
        except RuntimeError:  # "cannot cache function: no locator available"
            return numba.njit(**options)(function)

    return decorate
