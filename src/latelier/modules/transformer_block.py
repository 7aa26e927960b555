"""`TransformerBlock`: self-attention and a feed-forward network, each with a residual connection and a layer norm."""

from __future__ import annotations

from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.modules.arguments import check_tensor, show_arguments
from latelier.modules.attention import Attention
from latelier.modules.feed_forward import Activation, FeedForward
from latelier.utils import check_count, check_flag, check_number

__all__ = ["TransformerBlock"]


class TransformerBlock(nn.Module):
    """Self-attention, then a feed-forward network.

    With ``norm_first`` (pre-norm) each sub-layer computes ``x + sublayer(norm(x))``, otherwise (post-norm)
    ``norm(x + sublayer(x))``. Pre-norm trains without a warm-up of the learning rate: Xiong et al., 2020, On Layer
    Normalization in the Transformer Architecture, https://arxiv.org/abs/2002.04745.

    Parameters
    ----------
    dim
        Channels, a multiple of `heads`.
    heads
        Attention heads, each of ``dim / heads`` channels.
    hidden_dim
        Channels of the feed-forward network; None: ``4 * dim``.
    activation
        ``"gelu"`` or ``"relu"``.
    dropout
        Probability of dropout on the output of each sub-layer, between 0 and 1.
    norm_first
        Pre-norm rather than post-norm.
    eps
        Added to the variances in the norms.

    Raises
    ------
    InvalidArgumentError
        If an argument has a value that is not listed here, or `dim` is not a multiple of `heads`.

    Notes
    -----
    Computes what `torch.nn.TransformerEncoderLayer` computes, without dropout within the sub-layers.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import TransformerBlock
    >>> _ = torch.manual_seed(0)
    >>> block = TransformerBlock(16, heads=2).eval()
    >>> tokens = torch.randn(1, 3, 16)
    >>> out = block(tokens)
    >>> out.shape, round(out.mean().item(), 2)
    (torch.Size([1, 3, 16]), 0.03)
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        hidden_dim: int | None = None,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        norm_first: bool = True,
        eps: float = 1e-5,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        check_count("dim", dim)
        arguments["eps"] = eps = check_number("eps", eps, zero=True)
        check_flag("norm_first", norm_first)
        if dim % check_count("heads", heads):
            raise InvalidArgumentError(f"received dim={dim} for {heads} heads; expected a multiple of {heads}.")
        self._arguments, self.dim, self.norm_first = arguments, dim, norm_first
        self.norm1 = nn.LayerNorm(dim, eps)
        self.attention = Attention(dim, heads=heads, dim_head=dim // heads, dropout=dropout, bias=True)
        self.norm2 = nn.LayerNorm(dim, eps)
        self.feed_forward = FeedForward(dim, hidden_dim, activation, dropout)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Transform sequences.

        Parameters
        ----------
        hidden_states
            ``(b, l, dim)``.
        attention_mask, image_rotary_emb
            As in `Attention.forward`.

        Returns
        -------
        Tensor
            ``(b, l, dim)``.

        Raises
        ------
        InvalidArgumentError
            If an input is not a tensor, or a shape does not fit.
        """
        check_tensor("hidden_states", hidden_states)
        shape = tuple(hidden_states.shape)
        if len(shape) != 3 or shape[-1] != self.dim:
            raise InvalidArgumentError(
                f"received hidden_states of shape {shape}; expected (batch, length, {self.dim})."
            )
        positions = {} if image_rotary_emb is None else {"image_rotary_emb": image_rotary_emb}
        if self.norm_first:
            attended = self.attention(self.norm1(hidden_states), attention_mask=attention_mask, **positions)
            hidden_states = hidden_states + attended
            out: Tensor = hidden_states + self.feed_forward(self.norm2(hidden_states))
            return out
        attended = self.attention(hidden_states, attention_mask=attention_mask, **positions)
        hidden_states = self.norm1(hidden_states + attended)
        out = self.norm2(hidden_states + self.feed_forward(hidden_states))
        return out

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, self._arguments)
