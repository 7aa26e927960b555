"""The kernels' C library: loaded once, and called with the functions of the best instruction set.

`csrc` has its source, `hatch_build.py` compiles it. A `Kernel` is a function of it, and a call of one releases the
interpreter lock. Where the library cannot be loaded, or ``LATELIER_KERNELS=numpy`` forces it, each module of kernels
answers with plain numpy: the naive functions that tests compare the kernels with.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.misc import warn_caller

LANES = 16  # of a vector: query tokens

_VARIABLE = "LATELIER_KERNELS"
NUMPY = "numpy"
_FILES = {"win32": "kernels.dll", "darwin": "kernels.dylib"}


@cache
def _library() -> ctypes.CDLL | None:
    """Return the library, or None if it cannot be loaded, and say so."""
    path = Path(__file__).with_name("compiled") / _FILES.get(sys.platform, "kernels.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        warn_caller(
            f"the compiled kernels cannot be loaded, so numpy computes, many times slower ({error}); install a wheel "
            "for this platform, or in a checkout run `python hatch_build.py`.",
            RuntimeWarning,
        )
        return None
    library.latelier_instruction_sets.restype = ctypes.c_char_p
    return library


@cache
def supported() -> tuple[str, ...]:
    """Return the instruction sets that this processor can run, the best one first; the last one is `NUMPY`."""
    library = _library()
    if library is None:
        return (NUMPY,)
    return (*library.latelier_instruction_sets().decode().split(), NUMPY)


@cache  # to read the environment takes half as long as to score a short document
def instruction_set() -> str:
    """Return the instruction set that kernels use: the best one that the processor supports.

    The environment variable ``LATELIER_KERNELS`` forces another by its name, to compare them; it is read once.
    """
    name = os.environ.get(_VARIABLE)
    if name == NUMPY:
        return NUMPY
    if name is None:
        return supported()[0]
    if name not in supported():
        raise InvalidArgumentError(
            f"{_VARIABLE}={name!r}; this processor supports {', '.join(supported())}; or unset it."
        )
    return name


# Where an array has the address of its data: after the header of an object, by numpy's binary interface. To ask numpy
# for it takes as long as all else of a call.
_DATA = object.__basicsize__


def _address(array: np.ndarray) -> int | None:
    return ctypes.c_void_p.from_address(id(array) + _DATA).value


class Kernel:
    """A function of the library.

    `parameters`: for each argument the dtype of a C-contiguous array, such as ``"float32*"``; or ``"int64"``,
    ``"float32"`` or ``"float64"`` for a number, ``int64`` also for an address. An array may be None: no memory.
    A number that the kernel returns is an int64.
    """

    def __init__(self, name: str, *parameters: str) -> None:
        self.name = name
        self._dtypes = [np.dtype(each[:-1]) if each.endswith("*") else None for each in parameters]
        self._types = [ctypes.c_void_p if each.endswith("*") else getattr(ctypes, _TYPES[each]) for each in parameters]
        self._functions: dict[str, Callable[..., int]] = {}

    def __call__(self, *arguments: Any) -> int:
        """Call the function of the instruction set in use."""
        name = instruction_set()
        function = self._functions.get(name) or self._find(name)
        values = []
        for dtype, argument in zip(self._dtypes, arguments, strict=True):
            if dtype is None or argument is None:
                values.append(argument)
            elif argument.dtype == dtype and argument.flags.c_contiguous:
                values.append(_address(argument))
            else:
                raise TypeError(
                    f"{self.name} needs a C-contiguous array of {dtype}, received {argument.dtype}, strides "
                    f"{argument.strides}."
                )
        return function(*values)

    def _find(self, name: str) -> Callable[..., int]:
        function = getattr(_library(), f"{self.name}_{name}")
        function.argtypes = self._types
        function.restype = ctypes.c_int64
        self._functions[name] = function
        return function


_TYPES = {"int64": "c_int64", "float32": "c_float", "float64": "c_double"}
