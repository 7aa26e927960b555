"""`TransformerEncoder` and what it is made of: feed-forward, block, and an output tied to the embeddings."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.modules.attention import Attention
from latelier.modules.layers import RotaryPositions, SinusoidalPositions, show_arguments
from latelier.utils.checks import check_choice

Activation = Literal["gelu", "relu"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}


class FeedForward(nn.Module):
    """``activation(x W_up + b_up) W_down + b_down``, for each position alone (Vaswani et al., 2017, eq. 2, with ReLU).

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

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import FeedForward
    >>> layer = FeedForward(2, activation="relu")
    >>> _ = layer.down.weight.data.fill_(0.5), layer.down.bias.data.zero_()
    >>> _ = layer.up.weight.data.fill_(1.0), layer.up.bias.data.zero_()
    >>> layer(torch.tensor([[1.0, 2.0], [1.0, -2.0]])).tolist()
    [[12.0, 12.0], [0.0, 0.0]]
    """

    def __init__(
        self, dim: int, hidden_dim: int | None = None, activation: Activation = "gelu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_choice("activation", activation, get_args(Activation))
        self._arguments = {"dim": dim, "hidden_dim": hidden_dim, "activation": activation, "dropout": dropout}
        width = 4 * dim if hidden_dim is None else hidden_dim
        self.up = nn.Linear(dim, width)
        self.activation = _ACTIVATIONS[activation]()
        self.down = nn.Linear(width, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Transform each position of ``(..., dim)``."""
        out: Tensor = self.dropout(self.down(self.activation(self.up(hidden_states))))
        return out

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, self._arguments)


class TransformerBlock(nn.Module):
    """Self-attention, then a feed-forward network: `torch.nn.TransformerEncoderLayer` without dropout in sub-layers.

    With ``norm_first`` (pre-norm) each sub-layer computes ``x + sublayer(norm(x))``, otherwise (post-norm)
    ``norm(x + sublayer(x))``. Pre-norm trains without a warm-up of the learning rate (Xiong et al., 2020,
    https://arxiv.org/abs/2002.04745).

    Parameters
    ----------
    dim, heads
        Channels, a multiple of `heads`: the attention heads have ``dim / heads`` channels each.
    hidden_dim, activation, dropout
        As in `FeedForward`; the dropout is on the output of each sub-layer.
    norm_first
        Pre-norm rather than post-norm.
    eps
        Added to the variances in the norms.
    is_causal
        Token ``i`` attends to tokens ``0 .. i`` only.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import TransformerBlock
    >>> _ = torch.manual_seed(0)
    >>> block = TransformerBlock(16, heads=2).eval()
    >>> out = block(torch.randn(1, 3, 16))
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
        is_causal: bool = False,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        if dim % heads:
            raise InvalidArgumentError(f"received dim={dim} for {heads} heads; expected a multiple of {heads}.")
        self._arguments = arguments
        self.dim = dim
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(dim, eps)
        self.attention = Attention(
            dim, heads=heads, dim_head=dim // heads, dropout=dropout, bias=True, is_causal=is_causal
        )
        self.norm2 = nn.LayerNorm(dim, eps)
        self.feed_forward = FeedForward(dim, hidden_dim, activation, dropout)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Transform sequences ``(b, l, dim)``; mask and rotary positions are those of `Attention.forward`."""
        if image_rotary_emb is None:
            positions = {}
        else:
            positions = {"image_rotary_emb": image_rotary_emb}
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


class TransformerEncoder(nn.Module):
    """Token ids in, one vector per token out.

    Parameters
    ----------
    vocabulary_size
        Number of token ids.
    dim
        Channels, a multiple of `heads`.
    num_layers
        Number of blocks (`TransformerBlock`).
    heads, hidden_dim, activation, norm_first
        As in `TransformerBlock`. With ``norm_first``, a layer norm follows the last block.
    positions
        ``"rotary"``: `RotaryPositions` of queries and keys in every block (``dim / heads`` must be even);
        ``"sinusoidal"``: `SinusoidalPositions` added to the token embeddings; None: no positions, tokens are a set.
    dropout
        Probability of dropout on the embeddings and on the output of each sub-layer, between 0 and 1.
    is_causal
        Token ``i`` attends to tokens ``0 .. i`` only, as in a decoder.

    Raises
    ------
    InvalidArgumentError
        If an argument has a value that is not listed here, or arguments do not fit each other.

    Notes
    -----
    Embeddings start with variance 1, which the factor ``sqrt(dim)`` of Vaswani et al. gives theirs: near-orthogonal
    vectors, by which even an untrained encoder tells tokens apart.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import TransformerEncoder
    >>> _ = torch.manual_seed(0)
    >>> encoder = TransformerEncoder(vocabulary_size=100, dim=16, heads=2)
    >>> sum(weights.numel() for weights in encoder.parameters())
    8192
    >>> ids = torch.tensor([[5, 6, 7], [5, 6, 0]])
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> vectors = encoder(ids, mask)
    >>> vectors.shape
    torch.Size([2, 3, 16])
    >>> torch.allclose(vectors[1, :2], encoder(ids[1:, :2])[0], atol=1e-6)
    True
    """

    def __init__(
        self,
        vocabulary_size: int,
        dim: int = 128,
        num_layers: int = 2,
        heads: int = 4,
        *,
        hidden_dim: int | None = None,
        positions: Literal["rotary", "sinusoidal"] | None = "rotary",
        dropout: float = 0.0,
        activation: Activation = "gelu",
        norm_first: bool = True,
        is_causal: bool = False,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        check_choice("positions", positions, ["rotary", "sinusoidal"], optional=True)
        self._arguments = arguments
        self.dim = dim
        self.layers = nn.ModuleList(
            TransformerBlock(dim, heads, hidden_dim, activation, dropout, norm_first, is_causal=is_causal)
            for _ in range(num_layers)
        )
        self.embeddings = nn.Embedding(vocabulary_size, dim)
        self.rotary: RotaryPositions | None = None
        if positions == "rotary":
            self.rotary = RotaryPositions(dim // heads)
        self.sinusoidal: SinusoidalPositions | None = None
        if positions == "sinusoidal":
            self.sinusoidal = SinusoidalPositions(dim)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim) if norm_first else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments by name; `resize_token_embeddings` changes ``vocabulary_size``."""
        return dict(self._arguments)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode sequences of token ids.

        Parameters
        ----------
        input_ids
            ``(b, l)``, int32 or int64, from 0 to ``vocabulary_size - 1``.
        attention_mask
            ``(b, l)``, bool or 0 and 1: which tokens the others attend to; None: all. Tokens that are masked get a
            vector too.

        Returns
        -------
        Tensor
            ``(b, l, dim)``.

        Raises
        ------
        InvalidArgumentError
            If a shape does not fit, or, on a CPU, an id is out of range. On a GPU, a kernel of torch fails at such an
            id, as a check would have to wait for it.
        """
        shape = tuple(input_ids.shape)
        if len(shape) != 2 or (attention_mask is not None and tuple(attention_mask.shape) != shape):
            if attention_mask is None:
                other = ""
            else:
                other = f" and an attention_mask of shape {tuple(attention_mask.shape)}"
            raise InvalidArgumentError(
                f"received input_ids of shape {shape}{other}; expected (batch, length), and a mask of the same shape."
            )
        if attention_mask is None:
            mask = None
        else:
            mask = attention_mask.bool()
        try:  # ids out of range are found by the lookup, as a check would wait for the GPU
            hidden_states = self.embeddings(input_ids)
        except IndexError as error:
            raise InvalidArgumentError(
                f"received input_ids from {input_ids.min().item()} to {input_ids.max().item()}; expected 0 to "
                f"{self.embeddings.num_embeddings - 1} (vocabulary_size={self.embeddings.num_embeddings})."
            ) from error
        if self.sinusoidal is not None:
            hidden_states = self.sinusoidal(hidden_states)
        if self.rotary is None:
            rotations = None
        else:
            rotations = self.rotary.table(shape[1], device=input_ids.device)
        hidden_states = self.dropout(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, rotations)
        if self.norm is None:
            return hidden_states
        return self.norm(hidden_states)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of token embeddings, ``(vocabulary_size, dim)``."""
        return self.embeddings

    @torch.no_grad()
    def resize_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """Change the vocabulary's size and return the new table; rows of both are kept, more rows are random.

        Parameters
        ----------
        new_num_tokens
            The new `vocabulary_size`.

        Returns
        -------
        torch.nn.Embedding
            Of the device and dtype of the table before, and frozen if it was.
        """
        old = self.embeddings.weight
        new = nn.Embedding(new_num_tokens, self.dim, device=old.device, dtype=old.dtype)
        kept = min(new_num_tokens, old.shape[0])
        new.weight[:kept] = old[:kept]
        new.weight.requires_grad_(old.requires_grad)
        self.embeddings = new
        self._arguments["vocabulary_size"] = new.num_embeddings
        return new

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, self._arguments)


class TiedOutput(nn.Module):
    """Scores of all tokens of the vocabulary, by the weights of the embeddings: ``x E^T / sqrt(dim) + b``.

    The output layer of language models that share it with the input (Press and Wolf, 2017,
    https://arxiv.org/abs/1608.05859); its own weights are the bias alone.

    Parameters
    ----------
    encoder
        The encoder, whose table of embeddings is used as it is at each call.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import TiedOutput, TransformerEncoder
    >>> _ = torch.manual_seed(0)
    >>> encoder = TransformerEncoder(vocabulary_size=100, dim=16, heads=2)
    >>> output = TiedOutput(encoder)
    >>> output(encoder(torch.tensor([[5, 6, 7]]))).shape
    torch.Size([1, 3, 100])
    >>> output.loss(torch.zeros(1, 16), torch.tensor([5])).item() == torch.tensor(100.0).log().item()
    True
    """

    def __init__(self, encoder: TransformerEncoder) -> None:
        super().__init__()
        self._encoder = [encoder]  # in a list, so that its weights are not this module's
        self.bias = nn.Parameter(torch.zeros(encoder.embeddings.num_embeddings))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Score the tokens of the vocabulary for vectors ``(..., dim)``; returns ``(..., vocabulary_size)``."""
        weights = self._encoder[0].embeddings.weight
        return F.linear(hidden_states / hidden_states.shape[-1] ** 0.5, weights, self.bias)

    def loss(self, hidden_states: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of the tokens ``labels`` ``(n,)`` given vectors ``(n, dim)``."""
        return F.cross_entropy(self(hidden_states), labels)
