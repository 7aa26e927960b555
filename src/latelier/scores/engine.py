"""What computes MaxSim: the base of all engines."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch

from latelier.scores.inputs import Side


class Engine(ABC):
    """An implementation of MaxSim; `name` is the value of ``backend=`` that selects it."""

    name: str

    @abstractmethod
    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Return why the engine cannot score these inputs, as the end of a sentence; None if it can."""

    def require(self) -> None:
        """Raise `MissingExtraError` if a package that the engine needs is not installed; most engines need none."""
        return

    @abstractmethod
    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score every query against every document: ``(q, d)`` float32."""

    @abstractmethod
    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score each of ``b`` queries against its own ``n`` of ``b * n`` documents: ``(b, n)`` float32."""


def needs_gradient(queries: Side, documents: Side) -> bool:
    """Whether the scores need a gradient."""
    return torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad)


_Returned = TypeVar("_Returned")


def outside_graphs(function: Callable[..., _Returned]) -> Callable[..., _Returned]:
    """Make a function that calls kernels run uncompiled, inside compiled models too.

    `torch.compiler.disable` imports torch's compiler, which takes 130 MB and a second even in a program that only
    searches an index. It is called here only if the compiler has been imported already: otherwise there is no graph.
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
