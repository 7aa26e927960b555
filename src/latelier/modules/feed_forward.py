"""`FeedForward`: the second sub-layer of a transformer block, two linear layers with an activation between them."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.modules.arguments import show_arguments
from latelier.utils import check_count, check_number
from latelier.utils.checks import short

__all__ = ["Activation", "FeedForward"]

Activation = Literal["gelu", "relu"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}


class FeedForward(nn.Module):
    """``activation(x W_up + b_up) W_down + b_down``, for each position alone.

    Vaswani et al., 2017, Attention Is All You Need, https://arxiv.org/abs/1706.03762, eq. 2, where the activation is
    ReLU.

    Parameters
    ----------
    dim
        Channels of input and output.
    hidden_dim
        Channels between the two layers; None: ``4 * dim``.
    activation
        ``"gelu"`` or ``"relu"``.
    dropout
        Probability of dropout on the output, between 0 and 1.

    Raises
    ------
    InvalidArgumentError
        If an argument has a value that is not listed here.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import FeedForward
    >>> layer = FeedForward(2, activation="relu")
    >>> layer.up.weight.shape
    torch.Size([8, 2])
    >>> _ = layer.down.weight.data.fill_(0.5), layer.down.bias.data.zero_()
    >>> _ = layer.up.weight.data.fill_(1.0), layer.up.bias.data.zero_()
    >>> layer(torch.tensor([[1.0, 2.0], [1.0, -2.0]])).tolist()
    [[12.0, 12.0], [0.0, 0.0]]
    """

    def __init__(
        self, dim: int, hidden_dim: int | None = None, activation: Activation = "gelu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_count("dim", dim)
        check_count("hidden_dim", hidden_dim, optional=True)
        dropout = check_number("dropout", dropout, zero=True, most=1.0)
        if activation not in get_args(Activation):
            raise InvalidArgumentError(f"received activation={short(activation)}; expected 'gelu' or 'relu'.")
        self._arguments = {"dim": dim, "hidden_dim": hidden_dim, "activation": activation, "dropout": dropout}
        width = 4 * dim if hidden_dim is None else hidden_dim
        self.up = nn.Linear(dim, width)
        self.activation = _ACTIVATIONS[activation]()
        self.down = nn.Linear(width, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Transform each position.

        Parameters
        ----------
        hidden_states
            ``(..., dim)``.

        Returns
        -------
        Tensor
            ``(..., dim)``.
        """
        out: Tensor = self.dropout(self.down(self.activation(self.up(hidden_states))))
        return out

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, self._arguments)
