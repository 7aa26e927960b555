"""`TransformerEncoder`: token embeddings, positions and transformer blocks, to be trained from random weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.modules.arguments import check_tensor, show_arguments
from latelier.modules.feed_forward import Activation
from latelier.modules.positions import RotaryPositions, SinusoidalPositions
from latelier.modules.transformer_block import TransformerBlock
from latelier.utils import check_count, check_flag, check_number
from latelier.utils.checks import short

__all__ = ["TransformerEncoder"]


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
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        for name in ("vocabulary_size", "dim", "num_layers", "heads"):
            arguments[name] = check_count(name, arguments[name])  # an int of Python, which JSON can hold
        arguments["hidden_dim"] = check_count("hidden_dim", hidden_dim, optional=True)
        arguments["dropout"] = dropout = check_number("dropout", dropout, zero=True, most=1.0)
        check_flag("norm_first", norm_first)
        if positions not in ("rotary", "sinusoidal", None):
            raise InvalidArgumentError(
                f"received positions={short(positions)}; expected 'rotary', 'sinusoidal' or None."
            )
        self._arguments, self.dim = arguments, dim
        self.layers = nn.ModuleList(
            TransformerBlock(dim, heads, hidden_dim, activation, dropout, norm_first) for _ in range(num_layers)
        )
        self.embeddings = nn.Embedding(vocabulary_size, dim)
        self.rotary = RotaryPositions(dim // heads) if positions == "rotary" else None
        self.sinusoidal = SinusoidalPositions(dim) if positions == "sinusoidal" else None
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
            If an input is not a tensor, a shape or a dtype does not fit, or, on a CPU, an id is out of range. On a GPU,
            a kernel of torch fails at such an id, as a check would have to wait for it.
        """
        check_tensor("input_ids", input_ids)
        if attention_mask is not None:
            check_tensor("attention_mask", attention_mask)
        shape = tuple(input_ids.shape)
        if len(shape) != 2 or (attention_mask is not None and tuple(attention_mask.shape) != shape):
            other = "" if attention_mask is None else f" and an attention_mask of shape {tuple(attention_mask.shape)}"
            raise InvalidArgumentError(
                f"received input_ids of shape {shape}{other}; expected (batch, length), and a mask of the same shape."
            )
        mask = None if attention_mask is None else attention_mask.bool()
        hidden_states = self._embed(input_ids)
        if self.sinusoidal is not None:
            hidden_states = self.sinusoidal(hidden_states)
        rotations = None if self.rotary is None else self.rotary.table(shape[1], device=input_ids.device)
        hidden_states = self.dropout(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, rotations)
        return hidden_states if self.norm is None else self.norm(hidden_states)

    def _embed(self, input_ids: Tensor) -> Tensor:
        """Look up the embeddings; ids out of range are found by the lookup, as a check would wait for the GPU."""
        if input_ids.dtype not in (torch.int32, torch.int64):
            raise InvalidArgumentError(
                f"received input_ids of dtype {input_ids.dtype}; expected int32 or int64: token ids from 0 to "
                f"{self.embeddings.num_embeddings - 1}, such as input_ids.long()."
            )
        try:
            embedded: Tensor = self.embeddings(input_ids)
        except IndexError as error:
            raise InvalidArgumentError(
                f"received input_ids from {input_ids.min().item()} to {input_ids.max().item()}; expected 0 to "
                f"{self.embeddings.num_embeddings - 1} (vocabulary_size={self.embeddings.num_embeddings})."
            ) from error
        return embedded

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

        Raises
        ------
        InvalidArgumentError
            If the size is not a positive integer.
        """
        old = self.embeddings.weight
        new = nn.Embedding(check_count("new_num_tokens", new_num_tokens), self.dim, device=old.device, dtype=old.dtype)
        kept = min(new_num_tokens, old.shape[0])
        new.weight[:kept] = old[:kept]
        new.weight.requires_grad_(old.requires_grad)
        self.embeddings, self._arguments["vocabulary_size"] = new, new.num_embeddings
        return new

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, self._arguments)
