"""The interface of an engine: MaxSim in two shapes, and whether the engine can score given inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from latelier.scores.inputs import Side

__all__ = ["Engine", "needs_gradient", "off_cpu"]


class Engine(ABC):
    """An implementation of MaxSim."""

    name: str
    """The value of ``backend=`` that selects the engine."""

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


def off_cpu(queries: Side, documents: Side) -> str | None:
    """Return why a CPU engine cannot score these inputs, or None if both are on the CPU."""
    if queries.vectors.device.type != "cpu" or documents.vectors.device.type != "cpu":
        return f"is for the CPU, but the documents are on {documents.vectors.device}"
    return None


def needs_gradient(queries: Side, documents: Side) -> bool:
    """Whether the scores need a gradient."""
    return torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad)
