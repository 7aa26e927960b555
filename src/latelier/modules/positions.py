"""Position encodings: sinusoidal, added to token embeddings, and rotary, applied to queries and keys.

Both have no weights and no maximum length. Angles are computed in float32 at each call, because a buffer of them would
be rounded by ``module.to(torch.bfloat16)``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.modules.arguments import check_tensor, show_arguments
from latelier.utils import check_count, check_number


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
        self.dim, self.base = _check_even(dim), check_number("base", base)

    def forward(self, hidden_states: Tensor, start: int = 0) -> Tensor:
        """Add the encoding of the positions ``start, start + 1, ...`` to ``(..., l, dim)``, keeping its dtype."""
        length = _check_input(self, hidden_states)
        angles = _angles(length, start, self.dim, self.base, hidden_states.device)
        encoding = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return hidden_states + encoding.to(hidden_states.dtype)

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, {"dim": self.dim, "base": self.base})


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

    Raises
    ------
    InvalidArgumentError
        If `dim` is odd, another number is not positive, or `alpha` is given for 2 channels, which have one wavelength.

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

    def __init__(self, dim: int, base: float = 10_000.0, scale: float = 1.0, alpha: float = 1.0) -> None:
        super().__init__()
        self.dim, self.base = _check_even(dim), check_number("base", base)
        self.scale, self.alpha = check_number("scale", scale), check_number("alpha", alpha)
        if dim == 2 and alpha != 1:
            raise InvalidArgumentError(f"received alpha={alpha} for 2 channels; expected dim of at least 4.")

    def forward(self, hidden_states: Tensor, start: int = 0) -> Tensor:
        """Rotate rows ``(..., l, dim)`` at the positions ``start, start + 1, ...``, keeping their dtype."""
        length = _check_input(self, hidden_states)
        return rotate(hidden_states, self.table(length, start, hidden_states.device))

    def table(self, length: int, start: int = 0, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, ``(length, dim)`` float32 each: the `image_rotary_emb` of an `Attention`.

        `start` is the first position; both channels of a pair have the same value.
        """
        if not isinstance(length, torch.SymInt):  # a traced length
            check_count("length", length, 0)
        base = self.base if self.alpha == 1 else self.base * self.alpha ** (self.dim / (self.dim - 2))
        angles = _angles(length, start, self.dim, base, device, self.scale).repeat_interleave(2, dim=-1)
        return angles.cos(), angles.sin()

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, {"dim": self.dim, "base": self.base, "scale": self.scale, "alpha": self.alpha})


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


def _angles(length: int, start: int, dim: int, base: float, device: torch.device | None, scale: float = 1.0) -> Tensor:
    """Return ``p / scale / base^(2i/dim)`` for ``length`` positions ``p`` and ``dim / 2`` values of ``i``, float32."""
    frequencies = base ** -(torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    positions = torch.arange(length, dtype=torch.float32, device=device) + start
    return torch.outer(positions / scale, frequencies)


def _check_even(dim: int) -> int:
    if check_count("dim", dim) % 2:
        raise InvalidArgumentError(f"received dim={dim}; expected an even number.")
    return dim


def _check_input(module: SinusoidalPositions | RotaryPositions, hidden_states: Tensor) -> int:
    """Return the length of a sequence ``(..., l, dim)`` of floating-point numbers."""
    check_tensor("hidden_states", hidden_states)
    shape, dtype = tuple(hidden_states.shape), hidden_states.dtype
    if len(shape) < 2 or shape[-1] != module.dim or not dtype.is_floating_point:
        raise InvalidArgumentError(
            f"received hidden_states of shape {shape} and {dtype}; expected floating-point numbers of shape "
            f"(..., length, {module.dim})."
        )
    return hidden_states.shape[-2]
