"""The parts of attention around its products: positions, masks, norms.

Both have no weights and no maximum length. Angles are computed in float32 at each call, because a buffer of them would
be rounded by ``module.to(torch.bfloat16)``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from latelier.arrays import at_least_float32
from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_choice, check_count, check_number


def show_arguments(module: nn.Module, arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a module's constructor that differ from their defaults, as ``name=value, ...``."""
    defaults = inspect.signature(type(module).__init__).parameters
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != defaults[name].default)


def check_mask(mask: Tensor) -> None:
    """Check that a mask is boolean or floating: torch would add integers to the scores."""
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InvalidArgumentError(
            f"received an attention_mask of dtype {mask.dtype}; expected bool (True: attend; use mask.bool()) or "
            "floating point (added to the scores)."
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
    if mask.ndim != 4 or any(size not in allowed for size, allowed in zip(mask.shape, sizes, strict=True)):
        raise InvalidArgumentError(
            f"received an attention_mask of shape {shape} for {batch} sequences, {heads} heads, {queries} queries and "
            f"{keys} keys; expected ({batch}, {keys}), ({batch}, 1 or {queries}, {keys}) or ({batch}, 1 or {heads}, "
            f"1 or {queries}, {keys})."
        )
    return mask


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
    kind: str | None, dim_head: int, heads: int, kv_heads: int, eps: float, *, affine: bool
) -> tuple[nn.Module | None, nn.Module | None]:
    """Return the norms of the queries and the keys; those ``across_heads`` always have weights."""
    check_choice("qk_norm", kind, get_args(QKNorm), optional=True)
    if kind is None:
        return None, None
    if is_across_heads(kind):
        if kind == "layer_norm_across_heads":
            norm: type[nn.Module] = nn.LayerNorm
        else:
            norm = nn.RMSNorm
        return norm(dim_head * heads, eps), norm(dim_head * kv_heads, eps)
    makers: dict[str, Callable[[], nn.Module]] = {
        "layer_norm": lambda: nn.LayerNorm(dim_head, eps, affine),
        "fp32_layer_norm": lambda: Float32LayerNorm(dim_head, eps),
        "rms_norm": lambda: nn.RMSNorm(dim_head, eps, affine),
        "l2": lambda: L2Norm(eps),
    }
    return makers[kind](), makers[kind]()


def make_added_qk_norms(
    kind: str | None, dim_head: int, kv_heads: int, eps: float, *, affine: bool
) -> tuple[nn.Module | None, nn.Module | None]:
    """Return the norms of the added queries and keys, which published checkpoints have for four kinds."""
    if kind == "rms_norm_across_heads":
        return None, nn.RMSNorm(dim_head * kv_heads, eps)  # checkpoints of this kind have no norm of added queries
    if kind in ("layer_norm_across_heads", "l2"):
        raise InvalidArgumentError(
            f"received qk_norm={kind!r} with added_kv_proj_dim; checkpoints have layer_norm, fp32_layer_norm, rms_norm "
            "or rms_norm_across_heads there."
        )
    return make_qk_norms(kind, dim_head, 0, 0, eps, affine=affine or kind == "rms_norm")


def make_cross_norm(kind: str | None, channels: int, added_channels: int | None, num_groups: int) -> nn.Module | None:
    """Return the norm of the context, which the added projections read where there are any."""
    check_choice("cross_attention_norm", kind, get_args(CrossAttentionNorm), optional=True)
    if kind == "group_norm":
        return nn.GroupNorm(num_groups, channels if added_channels is None else added_channels)
    if kind is None:
        return None
    return nn.LayerNorm(channels)


def is_across_heads(kind: str | None) -> bool:
    """Whether queries and keys are normalised before they are split into heads."""
    return kind is not None and kind.endswith("_across_heads")


class SinusoidalPositions(nn.Module):
    """Add ``sin(p / base^(2i/dim))`` to channel ``2i`` of position ``p``, and the cosine to channel ``2i + 1``.

    Vaswani et al., 2017, Attention Is All You Need, https://arxiv.org/abs/1706.03762.

    Parameters
    ----------
    dim
        Channels, an even number.
    base
        The longest wavelength is ``2 pi base`` positions.

    Raises
    ------
    InvalidArgumentError
        If `dim` is odd, or `base` is not positive.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import SinusoidalPositions
    >>> positions = SinusoidalPositions(4)
    >>> positions(torch.zeros(1, 3, 4)).round(decimals=2)[0]
    tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
            [ 0.8400,  0.5400,  0.0100,  1.0000],
            [ 0.9100, -0.4200,  0.0200,  1.0000]])
    """

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.dim = _check_even(dim)
        self.base = check_number("base", base)

    def forward(self, hidden_states: Tensor, start: int = 0) -> Tensor:
        """Add the encoding of the positions ``start, start + 1, ...`` to ``(..., l, dim)``, keeping its dtype."""
        angles = _angles(hidden_states.shape[-2], start, self.dim, self.base, hidden_states.device)
        encoding = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return hidden_states + encoding.to(hidden_states.dtype)

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, {"dim": self.dim, "base": self.base})


# Turns, in a sequence of the original length, of pairs of channels that YaRN leaves, and that it interpolates.
_MOST_TURNS = 32.0
_LEAST_TURNS = 1.0


class RotaryPositions(nn.Module):
    """Rotate each pair of channels ``(2i, 2i + 1)`` of position ``p`` by the angle ``p / base^(2i/dim)``.

    The product of a rotated query and a rotated key depends on the distance of their positions alone:
    ``(R_m q) . (R_n k) = q . (R_(n-m) k)``. Su et al., 2021, RoFormer, https://arxiv.org/abs/2104.09864.

    Parameters
    ----------
    dim
        Channels of a head, an even number.
    base
        Base of the wavelengths.
    scale
        Divisor of the positions: ``L' / L`` reads sequences of ``L'`` tokens with the angles of the ``L`` that a model
        was trained with (position interpolation, Chen et al., 2023, https://arxiv.org/abs/2306.15595).
    alpha
        Multiply the base by ``alpha^(dim / (dim - 2))``: the longest wavelength is `alpha` times as long, and the
        shortest remains as it is ("NTK-aware" scaling, Peng et al., 2024, https://arxiv.org/abs/2309.00071).
    original_length
        Length of the sequences that a model was trained with, for the scaling of the same paper that is called YaRN:
        `scale` divides the angles of pairs that turn less than once in such a sequence, leaves those that turn more
        than 32 times, and divides those between in part; cosines and sines are multiplied by ``0.1 ln(scale) + 1``.
        None: all pairs are divided.

    Raises
    ------
    InvalidArgumentError
        If `dim` is odd, or another number is not positive.

    Notes
    -----
    Pairs are neighbouring channels, as in the paper and in diffusers. LLaMA pairs channel ``i`` with ``i + dim / 2``:
    the same rotations after a permutation of the rows of W_Q and W_K.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import RotaryPositions
    >>> rotary = RotaryPositions(2)
    >>> rotary(torch.tensor([[1.0, 0.0]] * 3)).round(decimals=2)
    tensor([[ 1.0000,  0.0000],
            [ 0.5400,  0.8400],
            [-0.4200,  0.9100]])

    As the positions of an `Attention`:

    >>> from latelier.modules import Attention
    >>> attention = Attention(8, heads=2, dim_head=4)
    >>> positions = RotaryPositions(4).table(3)
    >>> attention(torch.ones(1, 3, 8), image_rotary_emb=positions).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        dim: int,
        base: float = 10_000.0,
        scale: float = 1.0,
        alpha: float = 1.0,
        original_length: int | None = None,
    ) -> None:
        super().__init__()
        self.original_length = check_count("original_length", original_length, optional=True)
        self.dim = _check_even(dim)
        self.base = check_number("base", base)
        self.scale = check_number("scale", scale)
        self.alpha = check_number("alpha", alpha)

    def forward(self, hidden_states: Tensor, start: int = 0) -> Tensor:
        """Rotate rows ``(..., l, dim)`` at the positions ``start, start + 1, ...``, keeping their dtype."""
        return rotate(hidden_states, self.table(hidden_states.shape[-2], start, hidden_states.device))

    def table(self, length: int, start: int = 0, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, ``(length, dim)`` float32 each: the `image_rotary_emb` of an `Attention`.

        `start` is the first position; both channels of a pair have the same value.
        """
        if self.alpha == 1:
            base = self.base
        else:
            base = self.base * self.alpha ** (self.dim / (self.dim - 2))
        divisors, factor = self._divisors(base, device)
        angles = (_angles(length, start, self.dim, base, device) / divisors).repeat_interleave(2, dim=-1)
        return angles.cos() * factor, angles.sin() * factor

    def _divisors(self, base: float, device: torch.device | None) -> tuple[Tensor, float]:
        """Return what divides the angles of each pair, ``(dim / 2,)``, and the factor of cosines and sines."""
        length = self.original_length
        if length is None:
            return torch.full((self.dim // 2,), self.scale, device=device), 1.0

        def pair_of(turns: float) -> float:
            """Return the pair of channels, a fraction, that turns so often in a sequence of the original length."""
            return self.dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

        first = max(math.floor(pair_of(_MOST_TURNS)), 0)
        last = max(min(math.ceil(pair_of(_LEAST_TURNS)), self.dim - 1), first + 1e-3)
        pairs = torch.arange(self.dim // 2, dtype=torch.float32, device=device)
        share = ((pairs - first) / (last - first)).clamp(0, 1)  # of interpolation
        return 1 / (share / self.scale + 1 - share), 0.1 * math.log(max(self.scale, 1.0)) + 1

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        names = ("dim", "base", "scale", "alpha", "original_length")
        return show_arguments(self, {name: getattr(self, name) for name in names})


def rotate(hidden_states: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair of neighbouring channels: ``(a, b)`` to ``(a cos - b sin, b cos + a sin)``.

    `hidden_states`: ``(..., l, dim)``; computed in float32 at least. `table`: cosines and sines, as from
    `RotaryPositions.table`, broadcast to ``(..., l, dim)``. Returns: of the shape and dtype of `hidden_states`.
    """
    cos, sin = table
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    wide = hidden_states.to(dtype)
    first, second = wide.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([-second, first], dim=-1).flatten(-2)
    return (wide * cos.to(dtype) + turned * sin.to(dtype)).to(hidden_states.dtype)


def _angles(length: int, start: int, dim: int, base: float, device: torch.device | None) -> Tensor:
    """Return ``p / base^(2i/dim)`` for ``length`` positions ``p`` and ``dim / 2`` values of ``i``, float32."""
    frequencies = base ** -(torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    positions = torch.arange(length, dtype=torch.float32, device=device) + start
    return torch.outer(positions, frequencies)


def _check_even(dim: int) -> int:
    if check_count("dim", dim) % 2:
        raise InvalidArgumentError(f"received dim={dim}; expected an even number.")
    return dim
