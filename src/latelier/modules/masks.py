"""Attention masks: boolean (True: attend) or additive (0: attend, minus infinity: ignore)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from latelier.errors import InvalidArgumentError
from latelier.modules.arguments import check_tensor

__all__ = ["causal_mask", "check_mask", "combine_masks", "empty_rows", "fit_mask", "pad_mask", "to_additive"]


def check_mask(mask: Tensor) -> None:
    """Check that a mask is a tensor, boolean or floating, with 2 to 4 dimensions."""
    check_tensor("attention_mask", mask)
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InvalidArgumentError(
            f"received an attention_mask of dtype {mask.dtype}; expected bool (True: attend; use mask.bool()) or "
            "floating point (added to the scores)."
        )
    if not 2 <= mask.ndim <= 4:
        raise InvalidArgumentError(
            f"received an attention_mask of shape {tuple(mask.shape)}; expected (batch, keys), (batch, 1 or queries, "
            "keys) or (batch, 1 or heads, 1 or queries, keys)."
        )


def pad_mask(mask: Tensor, amount: int) -> Tensor:
    """Append keys that every query may attend to."""
    return F.pad(mask, (0, amount), value=True if mask.dtype == torch.bool else 0.0)


def fit_mask(mask: Tensor, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """Bring a mask to ``(batch, 1 or heads, 1 or queries, keys)``.

    A mask of three dimensions may start with ``batch`` or ``batch * heads``.
    """
    shape = tuple(mask.shape)
    if mask.ndim == 2:
        mask = mask[:, None, None]
    elif mask.ndim == 3 and mask.shape[0] == batch * heads and batch * heads != batch:
        mask = mask.unflatten(0, (batch, heads))
    elif mask.ndim == 3:
        mask = mask[:, None]
    sizes = ((1, batch), (1, heads), (1, queries), (keys,))
    if any(size not in allowed for size, allowed in zip(mask.shape, sizes, strict=True)):
        raise InvalidArgumentError(
            f"received an attention_mask of shape {shape} for {batch} sequences, {heads} heads, {queries} queries and "
            f"{keys} keys; expected ({batch}, {keys}), ({batch}, 1 or {queries}, {keys}) or ({batch}, 1 or {heads}, "
            f"1 or {queries}, {keys})."
        )
    return mask


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Boolean ``(queries, keys)``: query ``i`` attends to keys ``0 .. i``."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def combine_masks(mask: Tensor, allowed: Tensor) -> Tensor:
    """Restrict a mask of either kind to the keys that a boolean mask allows."""
    if mask.dtype == torch.bool:
        return mask & allowed
    return mask.masked_fill(~allowed, -torch.inf)


def to_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a mask of either kind into one that is added to scores of `dtype`.

    The maximum of each row becomes 0, if it is finite, which does not change the softmax. With a row of -1e9, sums
    would round the scores away, and the backward pass of torch's fused kernel on a CPU would be wrong.
    """
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)
    if not mask.shape[-1]:
        return mask.to(dtype)
    largest = mask.detach().amax(dim=-1, keepdim=True)
    return (mask - largest.masked_fill(~largest.isfinite(), 0.0)).to(dtype)


def empty_rows(mask: Tensor) -> Tensor:
    """Boolean ``(..., 1)``: whether an additive mask, or masked scores, leave a query no key.

    The softmax of such a row is NaN, in some kernels and versions of torch, and so is its gradient.
    """
    return (mask == -torch.inf).all(dim=-1, keepdim=True)
