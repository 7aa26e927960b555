"""How much attention each token of a text receives in the encoder's last layer, recorded during a forward pass.

transformers returns attention weights only with its eager attention, which holds the weights of all layers in memory. A
registered attention function computes each layer as before, by `scaled_dot_product_attention`, and in the last layer
also the weights. On a CPU, the encoder is not patched meanwhile (`latelier.models.cpu`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Transformer
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from latelier.errors import InvalidArgumentError
from latelier.models.compression import has_pooling

__all__ = ["Recorder", "recorded_attention"]

_NAME = "latelier_recorded"


class Recorder:
    """Keeps the attention weights of an encoder's last layer.

    Parameters
    ----------
    layers
        Number of layers of the encoder.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._calls = 0
        self._weights: Tensor | None = None

    def received(self, mask: Tensor) -> Tensor:
        """Return the mean attention that each token received in the last forward pass, and forget it.

        Parameters
        ----------
        mask
            Bool ``(n, tokens)``: the tokens that are not padding.

        Returns
        -------
        Tensor
            ``(n, tokens)`` float32: the mean over heads and over the tokens that attend, times their number. Its mean
            over a text's tokens is 1.
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

    Parameters
    ----------
    model
        The model; its encoder computes with another attention function inside the block.

    Yields
    ------
    Recorder
        What the last forward pass has recorded.

    Raises
    ------
    InvalidArgumentError
        If the attention of the encoder cannot be read.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> model = ColBERT.from_dense("all-MiniLM-L6-v2", device="cpu")
    >>> features = model.tokenize("a sweet pear", is_query=False)
    >>> with torch.no_grad(), recorded_attention(model) as recorder:
    ...     _ = model(features)
    >>> recorder.received(torch.ones(1, 5).bool()).round(decimals=1)
    tensor([[2.7000, 0.4000, 0.6000, 1.1000, 0.2000]])
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
