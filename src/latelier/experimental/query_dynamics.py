"""The network that changes a query by a document that was read, and says how much the next search will gain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError, StorageError
from latelier.indexes.base import PathLike
from latelier.modules import DynamicsNetwork, ValueSupport
from latelier.modules.layers import show_arguments
from latelier.utils.batching import lengths_to_offsets
from latelier.utils.files import as_path, parse_json, replaced

# Gains of a reciprocal rank are between -1 and 1. In hundredths they are between -9.2 and 9.2 on the support's scale.
_GAIN_UNIT = 0.01
_SUPPORT = ValueSupport(21)
_WRITTEN_BY = {"latelier": "QueryDynamics", "version": "1"}


class QueryState(NamedTuple):
    """A batch of ``b`` queries after some documents were read.

    Attributes
    ----------
    query_rows
        The query's token vectors, reweighted: ``(b, query_rows, dim)``; rows of zeros are padding.
    read_rows
        Token vectors of the documents that were read, weighted: ``(b, documents * document_rows, dim)``.
    hidden
        Hidden and cell state of the network's LSTM; None before the first document.
    logits
        Value prefix as logits ``(b, 21)``; zeros before the first document.

    Examples
    --------
    >>> import torch
    >>> dynamics = QueryDynamics(dim=2, query_rows=3)
    >>> state = dynamics.begin([torch.eye(2), torch.ones(1, 2)])
    >>> state.query_rows.shape, state.queries().lengths
    (torch.Size([2, 3, 2]), array([2, 1]))
    """

    query_rows: Tensor
    read_rows: Tensor
    hidden: tuple[Tensor, Tensor] | None
    logits: Tensor

    @property
    def value_prefix(self) -> Tensor:
        """Predicted increase of the target's reciprocal rank since the first search, ``(b,)``, within about [-1, 1]."""
        return _SUPPORT.decode(self.logits) * _GAIN_UNIT

    def queries(self) -> TokenEmbeddings:
        """Return the query matrices to search with, with gradients; rows of zeros are left out."""
        rows = torch.cat([self.query_rows, self.read_rows], dim=1)
        kept = rows.detach().abs().sum(-1) > 0
        return TokenEmbeddings(rows[kept], lengths_to_offsets(kept.sum(1).cpu().numpy()))

    def select(self, positions: Sequence[int]) -> QueryState:
        """Return the state of some queries of the batch."""
        if self.hidden is None:
            hidden = None
        else:
            hidden = (self.hidden[0][:, positions], self.hidden[1][:, positions])
        return QueryState(self.query_rows[positions], self.read_rows[positions], hidden, self.logits[positions])


class QueryDynamics(nn.Module):
    """Predicts the query matrix after reading a document, and what reading it gains.

    The state has one row per query token and one per token of the document: an image of height
    ``query_rows + document_rows`` and width 1. The action at a query token is the document's token vector that matches
    it best, at a document token its own vector; with the cosine, and a flag for query tokens. A linear layer projects
    both to `channels` channels, `latelier.modules.DynamicsNetwork` computes the next latent state, and a linear layer
    reads two weights ``(a, b)`` per row from it::

        row' = (1 + a) * row + b * action

    so the new query matrix has the query's tokens, reweighted and moved towards what they matched, and the document's
    tokens with weights of their own: learned query expansion. It is then scaled to the Frobenius norm that it had. The
    weights start at 0: an untrained `QueryDynamics` changes no query.

    The value prefix of the network is the predicted sum of gains so far; see `train_query_dynamics`.

    Parameters
    ----------
    dim
        Dimension of the token vectors.
    query_rows
        Maximum number of tokens of a query.
    document_rows
        Number of tokens of a document that are read; the rest is ignored.
    channels
        Channels of the latent state. Few: with hundreds of examples, more only fit the training queries.
    num_res_blocks, lstm_hidden_size
        As in `DynamicsNetwork`.

    Examples
    --------
    >>> import torch
    >>> dynamics = QueryDynamics(dim=4, query_rows=3, document_rows=5).eval()
    >>> state = dynamics.begin([torch.eye(4)[:2]])
    >>> state = dynamics(state, [torch.eye(4)])

    Nothing has changed, as nothing was trained:

    >>> torch.equal(state.queries()[0], torch.eye(4)[:2])
    True
    >>> state.value_prefix
    tensor([0.], grad_fn=<MulBackward0>)
    """

    def __init__(
        self,
        dim: int,
        query_rows: int = 64,
        document_rows: int = 96,
        channels: int = 16,
        *,
        num_res_blocks: int = 1,
        lstm_hidden_size: int = 32,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self.arguments = arguments
        self.dim = dim
        self.query_rows = query_rows
        self.document_rows = document_rows
        rows = query_rows + document_rows
        action_channels = channels + 2
        self.projection = nn.Linear(dim, channels, bias=False)
        nn.init.orthogonal_(self.projection.weight)  # keeps inner products on average
        self.dynamics = DynamicsNetwork(
            (channels + action_channels, rows, 1),
            action_encoding_dim=action_channels,
            num_res_blocks=num_res_blocks,
            num_channels=channels + action_channels,
            reward_head_channels=2,
            output_support_size=_SUPPORT.size,
            flatten_output_size_for_reward_head=2 * rows,
            lstm_hidden_size=lstm_hidden_size,
        )
        self.weights = nn.Linear(channels, 2)
        nn.init.zeros_(self.weights.weight)
        nn.init.zeros_(self.weights.bias)

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults."""
        return show_arguments(self, self.arguments)

    def begin(self, queries: Sequence[Any] | TokenEmbeddings) -> QueryState:
        """Return the state before any document was read.

        Parameters
        ----------
        queries
            One ``(tokens, dim)`` matrix per query.

        Raises
        ------
        EmbeddingsError
            If a query has more than `query_rows` tokens.
        """
        longest = max((len(query) for query in queries), default=0)
        if longest > self.query_rows:
            raise EmbeddingsError(
                f"received a query of {longest} tokens; expected at most query_rows={self.query_rows}. Shorten it, or "
                "build and train QueryDynamics with more rows."
            )
        rows = self._pad(queries, self.query_rows)
        return QueryState(rows, rows[:, :0], None, rows.new_zeros(len(rows), _SUPPORT.size))

    def forward(self, state: QueryState, documents: Sequence[Any] | TokenEmbeddings) -> QueryState:
        """Return the state after reading one more document per query.

        Parameters
        ----------
        state
            The state of ``b`` queries.
        documents
            ``b`` matrices ``(tokens, dim)``.
        """
        query = state.query_rows
        tokens = self._pad(documents, self.document_rows)
        action, cosine = _actions(query, tokens)
        rows = torch.cat([query, torch.zeros_like(tokens)], dim=1)
        is_query = torch.cat([query.new_ones(query.shape[:2]), tokens.new_zeros(tokens.shape[:2])], dim=1)
        encoding = torch.cat([self.projection(rows), self.projection(action), cosine, is_query.unsqueeze(-1)], dim=-1)
        latent, hidden, logits = self.dynamics(encoding.transpose(1, 2).unsqueeze(-1), state.hidden)
        keep, add = self.weights(latent.squeeze(-1).transpose(1, 2)).split(1, dim=-1)
        query_rows, new_rows = (rows * (1 + keep) + action * add).split([self.query_rows, self.document_rows], dim=1)
        # The sums before and after run over the same shapes, so the scale of an unchanged query is exactly 1.
        scale = (_energy(query, state.read_rows, torch.zeros_like(new_rows))).sqrt()
        scale = scale / _energy(query_rows, state.read_rows, new_rows).clamp(min=1e-12).sqrt()
        scale = scale[:, None, None]
        return QueryState(query_rows * scale, torch.cat([state.read_rows, new_rows], dim=1) * scale, hidden, logits)

    def value_loss(self, state: QueryState, gains: Tensor) -> Tensor:
        """Return the cross entropy of the value prefix against measured gains.

        Parameters
        ----------
        state
            The state of ``b`` queries after a document was read.
        gains
            Increase of the target's reciprocal rank since the first search, ``(b,)``.

        Returns
        -------
        Tensor
            The mean over the queries, a scalar.
        """
        return nn.functional.cross_entropy(state.logits, _SUPPORT.encode(gains / _GAIN_UNIT))

    def save(self, path: PathLike) -> None:
        """Write parameters and arguments into one safetensors file, atomically.

        Parameters
        ----------
        path
            The file; an existing one is replaced.

        Raises
        ------
        StorageError
            If the file cannot be written; an existing file is unchanged.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "reader.safetensors"
        >>> QueryDynamics(dim=4, channels=8).save(path)
        >>> QueryDynamics.load(path).extra_repr()
        'dim=4, channels=8'
        """
        path = as_path(path)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        try:
            with replaced(path) as new:
                save_file(tensors, new, metadata={**_WRITTEN_BY, "arguments": json.dumps(self.arguments)})
        except (SafetensorError, OSError, ValueError) as error:  # ValueError: a surrogate in the name
            raise StorageError(f"could not write {str(path)!r}: {error}; an existing file is unchanged.") from error

    @classmethod
    def load(cls, path: PathLike) -> QueryDynamics:
        """Read a file written by `save`, ready for searching (in evaluation mode, on the CPU).

        Parameters
        ----------
        path
            The file.

        Raises
        ------
        InvalidArgumentError
            If it was not written by `save`, is missing, damaged or of a newer version.
        """
        path = as_path(path)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            if not _WRITTEN_BY.items() <= metadata.items():
                raise ValueError("it is none of this version of latelier")
            dynamics = cls(**parse_json(metadata["arguments"]))
            dynamics.load_state_dict(tensors)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"{path} is not a whole file of QueryDynamics.save: {error}.") from error
        return dynamics.eval()

    def _pad(self, texts: Sequence[Any] | TokenEmbeddings, length: int) -> Tensor:
        """Return the first `length` tokens of each text as ``(b, length, dim)`` float32, padded with zeros."""
        device = self.weights.weight.device
        matrices = [torch.as_tensor(text)[:length].to(device, torch.float32) for text in texts]
        padded = [nn.functional.pad(matrix, (0, 0, 0, length - len(matrix))) for matrix in matrices]
        if padded:
            return torch.stack(padded)
        return torch.zeros(0, length, self.dim, device=device)


def _actions(query: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the action of each row and the similarity that goes with it, both 0 for padding.

    Actions ``(b, query_rows + document_rows, dim)``: for a query row the token with the largest inner product, for a
    document row its token. Similarities ``(b, query_rows + document_rows, 1)``: that of the pair, and the largest one
    with a query row. They are 0 as well where the query or the document has no tokens.
    """
    is_query = query.abs().sum(-1) > 0
    is_token = tokens.abs().sum(-1) > 0
    similarity = query @ tokens.transpose(1, 2)
    best, position = similarity.masked_fill(~is_token[:, None], -torch.inf).max(dim=2)
    matched = tokens.gather(1, position[..., None].expand(-1, -1, tokens.shape[2])) * is_query[..., None]
    covered = similarity.masked_fill(~is_query[..., None], -torch.inf).amax(dim=1)
    both = torch.cat([best, covered], dim=1)
    is_pair = torch.cat([is_query & is_token.any(1, keepdim=True), is_token & is_query.any(1, keepdim=True)], dim=1)
    return torch.cat([matched, tokens], dim=1), both.where(is_pair, 0.0).unsqueeze(-1)


def _energy(*rows: Tensor) -> Tensor:
    """Return the sum of squares of each query's rows, ``(b,)``."""
    return torch.stack([part.square().sum(dim=(1, 2)) for part in rows]).sum(dim=0)
