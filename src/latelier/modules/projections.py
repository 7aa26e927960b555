"""Projections of `Attention`: concatenated into one linear layer, taken apart again, and under their older names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import skip_init

__all__ = ["concatenate_layers", "rename_older", "split_layer"]

_OLDER_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def concatenate_layers(layers: list[nn.Linear]) -> nn.Linear:
    """Return a linear layer whose outputs are those of several layers, one after the other."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    outputs, inputs = weight.shape
    fused = skip_init(  # draws no random numbers
        nn.Linear, inputs, outputs, bias=bias is not None, device=weight.device, dtype=weight.dtype
    )
    fused.weight.copy_(weight)
    if bias is not None:
        fused.bias.copy_(bias)
    return fused


def split_layer(fused: nn.Linear, layers: list[nn.Linear]) -> None:
    """Copy the weights of a layer made by `concatenate_layers` into the layers that it was made of."""
    sizes = [layer.weight.shape[0] for layer in layers]
    for layer, weight in zip(layers, fused.weight.split(sizes), strict=True):
        layer.weight.copy_(weight)
    if fused.bias is not None:
        for layer, bias in zip(layers, fused.bias.split(sizes), strict=True):
            layer.bias.copy_(bias)


def rename_older(state_dict: dict[str, Any], prefix: str) -> None:
    """Give projections under the names of older checkpoints their present names, in place."""
    for old, new in _OLDER_NAMES.items():
        for kind in ("weight", "bias"):
            if f"{prefix}{old}.{kind}" in state_dict:
                state_dict[f"{prefix}{new}.{kind}"] = state_dict.pop(f"{prefix}{old}.{kind}")
