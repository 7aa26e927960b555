"""Numba set-up.

The cache is beside the source, or in the user's cache folder if the installation cannot be written. If neither can be
written, as in a container with an unknown user, kernels are compiled anew in each process.

Python passes arrays, numbers and plain tuples of them to kernels: numba finds the types of these in C, but that of a
NamedTuple in Python, at each call. A kernel that reads fields by name makes the NamedTuple first:
``documents = CodedDocuments(*documents)``. Calls between kernels do not have this cost.

numba detects changes in the file of a kernel, but not in other files that it is compiled from: after a change to
`simd`, `conversion`, `instruction_sets`, `multiply`, the `bits`, `lookup` and `memory` of
`latelier.indexes.ivf.kernels`, or any kernel that a kernel of another file calls, delete the ``__pycache__`` of both
folders of kernels, or the folder that ``NUMBA_CACHE_DIR`` names.

Two threads may be the first to import kernels, such as a search and the thread that prepares them for later ones.
Python lets a thread import a part of a package, such as ``numba.core``, while another thread is still importing the
package itself; then both fail, and numba stays broken for the whole process. It does wait for a module that is imported
by its own name: for this one, which imports all of numba before its parts.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable

__all__ = ["cgutils", "intrinsic", "ir", "kernel", "llvm", "numba", "register_jitable", "types"]


def kernel(*fastmath: str, inner: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function when it is first called.

    `*fastmath`: transformations of floating-point code that LLVM may make, by LLVM's names: ``"contract"`` (fused
    multiply-add), ``"reassoc"`` (sums in another order). None by default. `inner`: only other kernels call it: it is
    compiled into each of them, which takes a third less time. Called from Python, it is interpreted. Returns: a
    decorator for numeric code on numpy arrays.
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


def _skip_unreadable_cache(compiled: Any) -> None:
    """Compile a kernel anew if its cache cannot be read, such as one that names a class of an older version.

    pip leaves the cache of the version that it replaces where it is, and numba unpickles an index before it compares
    the index with the source.
    """
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
