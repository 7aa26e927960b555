"""Keeping functions out of compiled graphs, without the compiler being imported for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch

__all__ = ["outside_graphs"]

_Returned = TypeVar("_Returned")


def outside_graphs(function: Callable[..., _Returned]) -> Callable[..., _Returned]:
    """Let a function run as it is inside compiled models too, like `torch.compiler.disable`.

    That imports torch's compiler, 130 MB and a second of it, for everyone who only searches an index. Where nobody has
    imported it yet, there is no graph to keep out of.

    Parameters
    ----------
    function
        A function whose kernels a graph cannot see into.

    Returns
    -------
    callable
        The function, to be called in the same way.
    """

    @cache
    def disabled() -> Any:
        return torch.compiler.disable(function)

    @wraps(function)
    def call(*args: Any) -> _Returned:
        if "torch._dynamo" not in sys.modules:
            return function(*args)
        result: _Returned = disabled()(*args)
        return result

    return call
