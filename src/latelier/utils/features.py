"""Features of a tokenised batch: their device, which positions hold tokens, and rows without needless padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def move_features(features: Mapping[str, Any], device: torch.device | None) -> dict[str, Any]:
    """Return features with their tensors on a device; None leaves them on their own."""
    return {name: _move(value, device) if isinstance(value, Tensor) else value for name, value in features.items()}


def used_positions(features: Mapping[str, Any]) -> Tensor:
    """Return the positions that hold a token of the text or of its query expansion, as bool ``(rows, width)``."""
    used = features["attention_mask"].bool()
    expansion = features.get("query_expansion_positions")
    return used | expansion.bool() if isinstance(expansion, Tensor) else used


def select_rows(features: Mapping[str, Any], used: Tensor, rows: np.ndarray) -> dict[str, Any]:
    """Return some rows of features, without the outer columns in which none of these rows has a token.

    `features`: features of a tokeniser. Values that are not tensors ``(rows, width)`` are kept as they are. `used`: the
    `used_positions` of the features. On the CPU, so that no row waits for a device that holds the features. Returns:
    features with ``len(rows)`` rows.
    """
    index = torch.from_numpy(rows)
    columns = used[index.to(used.device)].any(dim=0).nonzero()
    first, last = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, used.shape[1])
    return {
        name: value[_move(index, value.device), first:last]
        if isinstance(value, Tensor) and value.shape == used.shape
        else value
        for name, value in features.items()
    }


def _move(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Move a tensor; a copy to a GPU does not wait for the work before it."""
    return tensor.to(device, non_blocking=device is not None and device.type == "cuda" and tensor.device.type == "cpu")
