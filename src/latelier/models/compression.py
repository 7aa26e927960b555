"""Compression of documents, salience.

transformers returns attention weights only with its eager attention, which holds the weights of all layers in memory. A
registered attention function computes each layer as before, by `scaled_dot_product_attention`, and in the last layer
also the weights. On a CPU, the encoder is not patched meanwhile (`latelier.models`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules.token_pooling import BaseTokenPooling
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from latelier.errors import InvalidArgumentError
from latelier.models.aliases import check
from latelier.modules import AttentionPooling

# Arguments of an `AttentionPooling` that a user chooses besides `num_vectors`.
_ARGUMENTS = ("heads", "dim_head", "hidden_dim")


def compress_documents(model: MultiVectorEncoder, num_vectors: int, arguments: Mapping[str, Any]) -> None:
    """Add an `AttentionPooling` to a model, before its last normalisation.

    `model`: the model, changed in place; raises `InvalidArgumentError` if the model pools its documents already, or
    there is no such argument.
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
    """Return the `AttentionPooling` of a model."""
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


_NAME = "latelier_recorded"


class Recorder:
    """Keeps the attention weights of an encoder's last layer."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._calls = 0
        self._weights: Tensor | None = None

    def received(self, mask: Tensor) -> Tensor:
        """Return the mean attention that each token received in the last forward pass, and forget it.

        `mask`: bool ``(n, tokens)``: the tokens that are not padding. Returns: ``(n, tokens)`` float32: the mean over
        heads and over the tokens that attend, times their number. Its mean over a text's tokens is 1.
        """
        weights, self._weights = self._weights, None
        if weights is None or weights.shape != (*mask.shape, mask.shape[1]):
            raise InvalidArgumentError(
                "the attention of this encoder cannot be read, as its layers compute it in their own way; "
                'use pool_method="ward".'
            )
        return (weights * mask[:, :, None]).sum(dim=1)

    def record(self, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> None:
        """Count a layer's call; in the last layer, keep the weights ``(n, tokens, tokens)``, the mean over heads."""
        self._calls += 1
        if self._calls % self.layers:
            return
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        logits = (query @ key.transpose(-1, -2)).float() * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
        self._weights = logits.softmax(dim=-1).mean(dim=1).nan_to_num(0.0)


_lock = Lock()
# By the id of a configuration: its own attention, and the number of threads that record.
_in_use: dict[int, tuple[Any, int]] = {}
_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend as transformers does by default, and show the recorder the queries and keys."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.record(query, key, attention_mask, options.get("scaling"))
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


@contextmanager
def recorded_attention(model: MultiVectorEncoder) -> Iterator[Recorder]:
    """Record the attention of a model's encoder in the forward passes inside the block.

    `model`: the model; its encoder computes with another attention function inside the block. Yields: what the last
    forward pass has recorded.
    """
    encoder = model[0]
    config = getattr(encoder.model, "config", None) if isinstance(encoder, Transformer) else None
    own = getattr(config, "_attn_implementation", None)
    layers = getattr(config, "num_hidden_layers", None)
    if config is None or own not in ("sdpa", "eager", _NAME) or not layers or has_pooling(model, "document"):
        raise InvalidArgumentError(
            "the attention of this model cannot be read: that takes an encoder of transformers with its own attention "
            '("sdpa" or "eager"), and a pipeline that does not pool documents. Use pool_method="ward".'
        )
    recorder = Recorder(layers)
    token = _recorder.set(recorder)
    try:
        with _recording(config):
            yield recorder
    finally:
        _recorder.reset(token)


@contextmanager
def _recording(config: Any) -> Iterator[None]:
    """Let an encoder compute with the recording attention inside the block, in which several threads may be."""
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    with _lock:
        before, users = _in_use.get(id(config), (config._attn_implementation, 0))
        _in_use[id(config)] = before, users + 1
        config._attn_implementation = _NAME
    try:
        yield
    finally:
        with _lock:
            before, users = _in_use.pop(id(config))
            if users > 1:
                _in_use[id(config)] = before, users - 1
            else:
                config._attn_implementation = before
