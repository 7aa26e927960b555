"""Masks and norms of attention."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from latelier.arrays import at_least_float32
from latelier.errors import InvalidArgumentError
from latelier.modules.arguments import check_tensor
from latelier.utils.checks import short


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


QKNorm = Literal["layer_norm", "fp32_layer_norm", "layer_norm_across_heads", "rms_norm", "rms_norm_across_heads", "l2"]
CrossAttentionNorm = Literal["layer_norm", "group_norm"]
_QK_NORMS = ("layer_norm", "fp32_layer_norm", "layer_norm_across_heads", "rms_norm", "rms_norm_across_heads", "l2")


class Float32LayerNorm(nn.LayerNorm):
    """Layer norm without weights, computed in float32 at least, whatever the dtype of its input.

    `eps`: added to the variance.
    """

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(channels, eps, elementwise_affine=False)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.layer_norm(at_least_float32(input), self.normalized_shape, eps=self.eps).to(input.dtype)


class L2Norm(nn.Module):
    """Scale the last dimension to unit length, ``x / max(||x||, eps)``."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.normalize(input, dim=-1, eps=self.eps)

    def extra_repr(self) -> str:
        """Return the constructor's argument."""
        return f"eps={self.eps}"


class SpatialNorm(nn.Module):
    """Group norm of an image, ``norm(x) * conv_y(z) + conv_b(z)``, conditioned on a second image ``z``.

    Zheng et al., 2022, MoVQ, https://arxiv.org/abs/2209.09002. `channels`: channels of the normalised image, a multiple
    of 32; `condition_channels`: channels of the second image.
    """

    def __init__(self, channels: int, condition_channels: int) -> None:
        super().__init__()
        self.norm_layer = nn.GroupNorm(32, channels, eps=1e-6)  # 32 groups as in published checkpoints
        self.conv_y = nn.Conv2d(condition_channels, channels, kernel_size=1)
        self.conv_b = nn.Conv2d(condition_channels, channels, kernel_size=1)

    def forward(self, image: Tensor, condition: Tensor) -> Tensor:
        """Normalise ``(b, channels, h, w)``; the condition is resized to ``(h, w)`` by nearest neighbours."""
        condition = F.interpolate(condition, size=image.shape[-2:], mode="nearest")
        return self.norm_layer(image) * self.conv_y(condition) + self.conv_b(condition)


def make_qk_norms(
    kind: str | None, dim_head: int, heads: int, kv_heads: int, eps: float, affine: bool
) -> tuple[nn.Module | None, nn.Module | None]:
    """Return the norms of the queries and the keys; those ``across_heads`` always have weights."""
    if kind is None:
        return None, None
    if kind == "layer_norm":
        return nn.LayerNorm(dim_head, eps, affine), nn.LayerNorm(dim_head, eps, affine)
    if kind == "fp32_layer_norm":
        return Float32LayerNorm(dim_head, eps), Float32LayerNorm(dim_head, eps)
    if kind == "layer_norm_across_heads":
        return nn.LayerNorm(dim_head * heads, eps), nn.LayerNorm(dim_head * kv_heads, eps)
    if kind == "rms_norm":
        return nn.RMSNorm(dim_head, eps, affine), nn.RMSNorm(dim_head, eps, affine)
    if kind == "rms_norm_across_heads":
        return nn.RMSNorm(dim_head * heads, eps), nn.RMSNorm(dim_head * kv_heads, eps)
    if kind == "l2":
        return L2Norm(eps), L2Norm(eps)
    raise InvalidArgumentError(f"received qk_norm={short(kind)}; expected None or one of {', '.join(_QK_NORMS)}.")


def make_added_qk_norms(
    kind: str | None, dim_head: int, kv_heads: int, eps: float, affine: bool
) -> tuple[nn.Module | None, nn.Module | None]:
    """Return the norms of the added queries and keys, which published checkpoints have for four kinds."""
    if kind is None:
        return None, None
    if kind == "layer_norm":
        return nn.LayerNorm(dim_head, eps, affine), nn.LayerNorm(dim_head, eps, affine)
    if kind == "fp32_layer_norm":
        return Float32LayerNorm(dim_head, eps), Float32LayerNorm(dim_head, eps)
    if kind == "rms_norm":
        return nn.RMSNorm(dim_head, eps), nn.RMSNorm(dim_head, eps)
    if kind == "rms_norm_across_heads":
        return None, nn.RMSNorm(dim_head * kv_heads, eps)  # checkpoints of this kind have no norm of added queries
    raise InvalidArgumentError(
        f"received qk_norm={kind!r} with added_kv_proj_dim; expected None, layer_norm, fp32_layer_norm, rms_norm or "
        "rms_norm_across_heads."
    )


def make_cross_norm(kind: str | None, channels: int, added_channels: int | None, num_groups: int) -> nn.Module | None:
    """Return the norm of the context, which the added projections read where there are any."""
    if kind is None:
        return None
    if kind == "layer_norm":
        return nn.LayerNorm(channels)
    if kind == "group_norm":
        return nn.GroupNorm(num_groups, channels if added_channels is None else added_channels)
    raise InvalidArgumentError(
        f"received cross_attention_norm={short(kind)}; expected None, 'layer_norm' or 'group_norm'."
    )


def normalize_context(norm: nn.Module, context: Tensor) -> Tensor:
    """Apply the norm of `make_cross_norm` to a context ``(b, l, channels)``; a group norm reads channels first."""
    if isinstance(norm, nn.GroupNorm):
        return norm(context.transpose(1, 2)).transpose(1, 2)
    out: Tensor = norm(context)
    return out


def is_across_heads(kind: str | None) -> bool:
    """Whether queries and keys are normalised before they are split into heads."""
    return kind is not None and kind.endswith("_across_heads")
