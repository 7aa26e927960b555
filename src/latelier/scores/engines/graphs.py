"""Keeping functions out of compiled graphs without importing torch's compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch

__all__ = ["outside_graphs"]

_Returned = TypeVar("_Returned")


def outside_graphs(function: Callable[..., _Returned]) -> Callable[..., _Returned]:
    """Make a function run uncompiled, inside compiled models too, as `torch.compiler.disable` does.

    `torch.compiler.disable` imports torch's compiler, which takes 130 MB and a second even in a program that only
    searches an index. It is called here only if the compiler has been imported already: otherwise there is no graph.

    Parameters
    ----------
    function
        A function that calls kernels of numba or Triton, which a graph cannot contain.

    Returns
    -------
    callable
        The function, called with the same arguments.
    """

    @cache
    def disabled() -> Any:
        return torch.compiler.disable(function)

    @wraps(function)
    def call(*args: Any, **options: Any) -> _Returned:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        result: _Returned = disabled()(*args, **options)
        return result

    return call
