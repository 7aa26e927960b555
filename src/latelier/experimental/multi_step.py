"""Retrieval in several steps: how reading a document changes a query, the search that does so, and the training.

The encoder is frozen: only the parameters of `QueryDynamics` are trained, on the vectors that an index stores.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError, StorageError
from latelier.indexes import Hit, Id
from latelier.indexes.base import PathLike
from latelier.indexes.options import SearchOptions
from latelier.modules import DynamicsNetwork, ValueSupport
from latelier.modules.layers import show_arguments
from latelier.retrieve import Retriever
from latelier.retrieve.model import checked_queries
from latelier.retrieve.passages import StoredDocuments
from latelier.scores import colbert_kd_scores
from latelier.utils.batching import lengths_to_offsets
from latelier.utils.checks import check_choice, check_count
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


Merge: TypeAlias = Literal["last", "best_score", "reciprocal_rank"]

# Cormack et al. 2009 chose it on a pilot collection; it keeps one first rank from outweighing several good ranks.
_RANK_OFFSET = 60


def merge_hits(searches: Sequence[Sequence[Hit]], k: int, merge: Merge = "last") -> list[Hit]:
    """Return one ranking from the hits of several searches for one query.

    Parameters
    ----------
    searches
        The hits of each search, best first, in the order in which the searches were made.
    k
        Maximum number of hits to return.
    merge
        ``"last"``: the hits of the last search, then those that only earlier searches found, latest search first.
        ``"best_score"``: by the highest score of any search. ``"reciprocal_rank"``: by the sum of ``1 / (60 + rank)``
        over the searches (Cormack, Clarke and Büttcher 2009, reciprocal rank fusion), which becomes the score.

    Returns
    -------
    list of Hit
        Best first; equal scores in the order in which the searches returned them.

    Raises
    ------
    InvalidArgumentError
        If `merge` is unknown.

    Examples
    --------
    >>> first = [Hit("a", 3.0), Hit("b", 2.0)]
    >>> second = [Hit("b", 2.5), Hit("c", 2.25)]
    >>> merge_hits([first, second], k=3)
    [Hit(id='b', score=2.5), Hit(id='c', score=2.25), Hit(id='a', score=3.0)]
    >>> merge_hits([first, second], k=3, merge="best_score")
    [Hit(id='a', score=3.0), Hit(id='b', score=2.5), Hit(id='c', score=2.25)]
    >>> [hit.id for hit in merge_hits([first, second], 2, "reciprocal_rank")]
    ['b', 'a']
    """
    check_choice("merge", merge, get_args(Merge))
    scores: dict[Id, float] = {}
    if merge == "last":
        for hits in reversed(searches):
            for hit in hits:
                scores.setdefault(hit.id, hit.score)
        return [Hit(id_, score) for id_, score in scores.items()][:k]
    for hits in searches:
        for rank, hit in enumerate(hits, 1):
            if merge == "best_score":
                scores[hit.id] = max(hit.score, scores.get(hit.id, hit.score))
            else:
                scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (_RANK_OFFSET + rank)
    return [Hit(id_, scores[id_]) for id_ in sorted(scores, key=lambda id_: -scores[id_])][:k]


class Step(NamedTuple):
    """A document that was read.

    Attributes
    ----------
    id
        The document.
    gain
        Predicted increase of the target's reciprocal rank by searching with what was read.
    searched
        Whether the gain was large enough to search again.

    Examples
    --------
    >>> Step("a", 0.25, True).gain
    0.25
    """

    id: Id
    gain: float
    searched: bool


class MultiStepResult(NamedTuple):
    """What was found for one query.

    Attributes
    ----------
    hits
        The best documents of all searches, best first.
    steps
        The documents that were read, in order.

    Examples
    --------
    >>> hits, steps = MultiStepResult([Hit("a", 1.5)], [Step("a", 0.0, False)])
    >>> hits[0].id
    'a'
    """

    hits: list[Hit]
    steps: list[Step]


class MultiStepRetriever:
    """Retrieval in several steps, for targets that only another document names.

    1. Search with the query's token matrix.
    2. Read the best hit that was not read yet: `QueryDynamics` predicts the next query matrix, and the gain of
       searching with it.
    3. Stop if the gain is not above a threshold. Otherwise search with the new matrix, merge the hits, and go to 2.

    Any index will do; the documents are its stored vectors, so nothing is encoded after the query. Of a document that
    is stored as passages, the best passage is read.

    Parameters
    ----------
    retriever
        A filled retriever.
    dynamics
        How reading changes a query. It is set to evaluation mode.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add(["The moon orbits the earth.", "Bananas are healthy."])
    >>> multi_step = MultiStepRetriever(retriever, QueryDynamics(dim=384))

    `QueryDynamics` is untrained here: it changes no query and predicts no gain.

    >>> hits, steps = multi_step.search("which fruit is good for me?", k=1)
    >>> hits[0].id, steps
    (1, [Step(id=1, gain=0.0, searched=False)])
    """

    def __init__(self, retriever: Retriever, dynamics: QueryDynamics) -> None:
        dim = retriever.index.dim
        if dim is not None and dim != dynamics.dim:
            raise EmbeddingsError(f"dynamics has dim {dynamics.dim}, the index has dim {dim}; expected the same.")
        self.retriever = retriever
        self.dynamics = dynamics.eval()

    @overload
    def search(
        self, queries: str, k: int = 10, max_steps: int = 1, *, min_gain: float | None = 0.0, merge: Merge = "last"
    ) -> MultiStepResult: ...

    @overload
    def search(
        self,
        queries: list[str] | tuple[str, ...],
        k: int = 10,
        max_steps: int = 1,
        *,
        min_gain: float | None = 0.0,
        merge: Merge = "last",
    ) -> list[MultiStepResult]: ...

    def search(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        max_steps: int = 1,
        *,
        min_gain: float | None = 0.0,
        merge: Merge = "last",
    ) -> MultiStepResult | list[MultiStepResult]:
        """Find the best documents for one query or several.

        Parameters
        ----------
        queries
            One text or a list of texts.
        k
            Maximum number of hits per query.
        max_steps
            Maximum number of documents to read per query, each one of the best `k` hits; 0: one search, as
            `Retriever.search`.
        min_gain
            Search again only if the predicted gain, an increase of the reciprocal rank, is above this; None: always.
        merge
            How to merge the hits of the searches; see `merge_hits`.

        Returns
        -------
        MultiStepResult or list of MultiStepResult
            One for a text, a list for a list of texts.

        Raises
        ------
        InvalidArgumentError
            If an argument has a value that is not accepted, or a query more tokens than ``dynamics.query_rows``.
        """
        texts = checked_queries(queries)
        check_count("k", k)
        check_count("max_steps", max_steps, least=0)
        check_choice("merge", merge, get_args(Merge))
        if not texts:
            return []
        least = -torch.inf if min_gain is None else min_gain
        results = self._run(texts, k, max_steps, least, merge)
        if isinstance(queries, str):
            return results[0]
        return results

    @torch.inference_mode()
    def _run(self, texts: list[str], k: int, max_steps: int, least: float, merge: Merge) -> list[MultiStepResult]:
        index = self.retriever.index
        queries: Any = self.retriever.model.encode_query(texts, packed=True)
        state = self.dynamics.eval().begin(queries)
        hits: list[list[list[Hit]]] = [[] for _ in texts]  # of each search for each query
        parts: list[dict[Id, Id]] = [{} for _ in texts]  # of each document found: what was found of it last
        steps: list[list[Step]] = [[] for _ in texts]
        active = list(range(len(texts)))  # the queries in `state`
        with index.snapshot():
            stored = StoredDocuments(index)
            for step in range(max_steps + 1):
                for row, found in zip(active, stored.find(state.queries(), [], k, SearchOptions()), strict=True):
                    parts[row] |= {stored.document(hit.id): hit.id for hit in found}
                    hits[row].append([Hit(stored.document(hit.id), hit.score) for hit in found])
                unread = [_best_unread(merge_hits(hits[row], k, merge), steps[row]) for row in active]
                reading = [i for i, id_ in enumerate(unread) if id_ is not None]
                if step == max_steps or not reading:
                    break
                ids: list[Any] = [unread[i] for i in reading]
                active = [active[i] for i in reading]
                before = state.select(reading)
                read = [parts[row][id_] for row, id_ in zip(active, ids, strict=True)]
                state = self.dynamics(before, index.get_embeddings(read))
                gains = (state.value_prefix - before.value_prefix).tolist()
                for row, id_, gain in zip(active, ids, gains, strict=True):
                    steps[row].append(Step(id_, gain, gain > least))
                going_on = [i for i, gain in enumerate(gains) if gain > least]
                if not going_on:
                    break
                state = state.select(going_on)
                active = [active[i] for i in going_on]
        return [MultiStepResult(merge_hits(found, k, merge), read) for found, read in zip(hits, steps, strict=True)]


def _best_unread(hits: list[Hit], steps: list[Step]) -> Id | None:
    """Return the best hit that no step has read, None if there is none."""
    read = {step.id for step in steps}
    return next((hit.id for hit in hits if hit.id not in read), None)


# Probability that the first hit is read instead of the first document, as it will be in a search.
_READ_FIRST_HIT = 0.5


class ReadingExample(NamedTuple):
    """A query and the documents to read one after the other; the last one is the target.

    Attributes
    ----------
    query
        The query's text.
    documents
        Two ids or more.

    Examples
    --------
    >>> example = ReadingExample("Who began the kernel?", ["kernel", "linux"])
    >>> example.documents[-1]
    'linux'
    """

    query: str
    documents: Sequence[Id]


class _Prepared(NamedTuple):
    """An example as positions: of its query, of the documents to read, of its first hit and of its hard negatives."""

    query: int
    documents: list[int]
    first_hit: int
    negatives: list[int]


def train_query_dynamics(
    multi_step: MultiStepRetriever,
    examples: Iterable[ReadingExample],
    *,
    steps: int = 150,
    batch_size: int = 16,
    negatives: int = 31,
    learning_rate: float = 2e-3,
    value_weight: float = 0.1,
    seed: int = 0,
) -> list[float]:
    """Train the `QueryDynamics` of a retriever in place.

    After reading document ``t`` of an example, the query matrix should score document ``t + 1`` above hard negatives:
    hits of the query, and of the query together with the document's tokens. The loss is the cross entropy over their
    MaxSim scores (contrastive; Khattab and Zaharia 2020). The value prefix is trained on the measured gain: the
    target's reciprocal rank among the negatives after reading, minus that before (EfficientZero, Ye et al. 2021, with
    increases of the reciprocal rank as rewards). Reading the target itself gains nothing more.

    Parameters
    ----------
    multi_step
        The retriever whose `dynamics` to train; its index holds all documents of the examples.
    examples
        At least `batch_size` examples with equally many documents.
    steps
        Batches to train on.
    batch_size
        Examples per batch, at least 2.
    negatives
        Hard negatives per example and batch, drawn from four times as many.
    learning_rate
        Of AdamW at the first step; it falls linearly to 0.
    value_weight
        Weight of the value prefix in the loss.
    seed
        Seed of the order of examples and of the drawn negatives. The initial parameters are those of `dynamics`.

    Returns
    -------
    list of float
        The loss of each step. The vectors of about ``4 * negatives`` documents per example are held in memory.

    Examples
    --------
    >>> import torch
    >>> from latelier.experimental import QueryDynamics
    >>> from latelier.retrieve import Retriever
    >>> _ = torch.manual_seed(0)
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add(["The kernel is Linux.", "Linux was begun in Helsinki."])
    >>> retriever.add(["The editor is vi.", "Bill Joy wrote vi in Berkeley."])
    >>> examples = [
    ...     ReadingExample("Who began the kernel?", [0, 1]),
    ...     ReadingExample("Who wrote the editor?", [2, 3]),
    ... ]
    >>> multi_step = MultiStepRetriever(retriever, QueryDynamics(dim=384))
    >>> sizes = {"batch_size": 2, "negatives": 2}
    >>> losses = train_query_dynamics(multi_step, examples, steps=30, **sizes)
    >>> losses[-1] < 0.7 * losses[0]
    True
    """
    check_count("batch_size", batch_size, least=2)
    given = [ReadingExample(*example) for example in examples]
    for position, example in enumerate(given):
        if len(example.documents) < 2 or len(example.documents) != len(given[0].documents):
            raise InvalidArgumentError(
                f"examples[{position}] has {len(example.documents)} documents; expected as many as the first example "
                f"({len(given[0].documents)}), and at least 2."
            )
    prepared, queries, documents = _prepare(multi_step, given, negatives)
    negatives = min(negatives, *(len(example.negatives) for example in prepared))
    if negatives == 0:
        raise InvalidArgumentError("an example has no negatives: it reads every document of the index; add others.")

    dynamics = multi_step.dynamics.train()
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(dynamics.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    losses = []
    for _ in range(steps):
        batch = draw.sample(prepared, batch_size)
        compared = [example.documents[1:] + draw.sample(example.negatives, negatives) for example in batch]
        loss = _loss(dynamics, batch, compared, queries, documents, draw, value_weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    dynamics.eval()
    return losses


def _loss(
    dynamics: QueryDynamics,
    batch: list[_Prepared],
    compared: list[list[int]],
    queries: TokenEmbeddings,
    documents: TokenEmbeddings,
    draw: random.Random,
    value_weight: float,
) -> Tensor:
    """Return the loss of a batch: one term per document that is read, plus the value prefixes'."""
    device = dynamics.weights.weight.device
    targets = len(batch[0].documents) - 1
    candidates = documents[[position for row in compared for position in row]].to(device)
    state = dynamics.begin(queries[[example.query for example in batch]])
    start = rank = _reciprocal_rank(colbert_kd_scores(state.queries(), candidates), targets)
    total = torch.zeros((), device=device)
    for step in range(targets + 1):
        read = [example.documents[step] for example in batch]
        if step == 0:
            hits = [example.first_hit for example in batch]
            read = [hit if draw.random() < _READ_FIRST_HIT else own for hit, own in zip(hits, read, strict=True)]
        state = dynamics(state, documents[read])
        if step < targets:  # after the target there is nothing left to find, and the gain stays what it was
            scores = colbert_kd_scores(state.queries(), candidates)  # (b, candidates of each)
            rank = _reciprocal_rank(scores, targets)
            columns = torch.arange(scores.shape[1], device=device)
            scores = scores.masked_fill((columns < targets) & (columns != step), -torch.inf)
            total = total + torch.nn.functional.cross_entropy(scores, torch.full((len(batch),), step, device=device))
        total = total + value_weight * dynamics.value_loss(state, rank - start)
    return total


def _reciprocal_rank(scores: Tensor, targets: int) -> Tensor:
    """Return the reciprocal rank of the last of the `targets` first columns, among itself and the columns after it."""
    scores = scores.detach()
    above = scores[:, targets:] >= scores[:, targets - 1 : targets]
    return 1 / (1 + above.sum(1))


def _prepare(
    multi_step: MultiStepRetriever, examples: list[ReadingExample], negatives: int
) -> tuple[list[_Prepared], TokenEmbeddings, TokenEmbeddings]:
    """Encode the queries, find hard negatives, and load the vectors of all documents that training needs."""
    model = multi_step.retriever.model
    index = multi_step.retriever.index
    encoded: Any = model.encode_query([example.query for example in examples], packed=True)
    queries = encoded.to("cpu").to("float32")
    with index.snapshot():
        first = index.get_embeddings([example.documents[0] for example in examples]).to("torch").to("float32")
        plain = index.search(queries, 2 * negatives)
        expanded = index.search([torch.cat(rows) for rows in zip(queries, first, strict=True)], 2 * negatives)
        positives: dict[str, set[Id]] = {}
        for example in examples:
            positives.setdefault(example.query, set()).update(example.documents)
        positions: dict[Id, int] = {}
        prepared = []
        for i, example in enumerate(examples):
            found = dict.fromkeys(hit.id for hit in plain[i] + expanded[i])
            ids: list[Any] = [
                *example.documents,
                plain[i][0].id,
                *(id_ for id_ in found if id_ not in positives[example.query]),
            ]
            rows = [positions.setdefault(id_, len(positions)) for id_ in ids]
            count = len(example.documents)
            prepared.append(_Prepared(i, rows[:count], rows[count], rows[count + 1 :]))
        documents = index.get_embeddings(list(positions)).to("torch").to("float32")
    return prepared, queries, documents
