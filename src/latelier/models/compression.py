"""Learned compression of documents as a part of a model: an `AttentionPooling` in its pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize
from sentence_transformers.multi_vector_encoder.modules.token_pooling import BaseTokenPooling
from torch import nn

from latelier.errors import InvalidArgumentError
from latelier.models.options import check
from latelier.modules import AttentionPooling

__all__ = [
    "compress_documents",
    "find_pooling",
    "has_pooling",
    "unpooled",
]

# Arguments of an `AttentionPooling` that a user chooses besides `num_vectors`.
_ARGUMENTS = ("heads", "dim_head", "hidden_dim")


def compress_documents(model: MultiVectorEncoder, num_vectors: int, arguments: Mapping[str, Any]) -> None:
    """Add an `AttentionPooling` to a model, before its last normalisation.

    Parameters
    ----------
    model
        The model, changed in place.
    num_vectors, arguments
        Arguments of the `AttentionPooling`.

    Raises
    ------
    InvalidArgumentError
        If the model pools its documents already, or there is no such argument.
    """
    check("compress_documents", arguments, {"num_vectors", *_ARGUMENTS})
    if has_pooling(model, "document"):
        raise InvalidArgumentError(
            "this model pools its documents already; load the model that it was made from to use another num_vectors."
        )
    pooling = AttentionPooling(int(model.get_embedding_dimension() or 0), num_vectors, **arguments)
    pooling.to(model.device, model.dtype).train(model.training)
    modules = list(model._modules.items())
    last = len(modules) - isinstance(modules[-1][1], Normalize)
    modules.insert(last, (_new_name(model._modules), pooling))
    model._modules.clear()
    model._modules.update(modules)


def has_pooling(model: Iterable[nn.Module], task: str) -> bool:
    """Whether a model's pipeline pools the token vectors of a task, ``"query"`` or ``"document"``."""
    return any(isinstance(module, BaseTokenPooling) and module.applies_to(task) for module in model)


def find_pooling(model: Iterable[nn.Module]) -> AttentionPooling:
    """Return the `AttentionPooling` of a model.

    Raises
    ------
    InvalidArgumentError
        If it has none.
    """
    for module in model:
        if isinstance(module, AttentionPooling):
            return module
    raise InvalidArgumentError("this model has no AttentionPooling; call model.compress_documents(num_vectors) first.")


@contextmanager
def unpooled(pooling: AttentionPooling) -> Iterator[None]:
    """Let a pooling pass all texts unchanged inside the block."""
    tasks, pooling.tasks = pooling.tasks, []
    try:
        yield
    finally:
        pooling.tasks = tasks


def _new_name(taken: Iterable[str]) -> str:
    """Return a name for a module; sentence-transformers numbers them, and other names refer to saved settings."""
    names = set(taken)
    return next(name for name in map(str, range(len(names), 2 * len(names) + 1)) if name not in names)
