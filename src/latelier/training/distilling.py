"""`distill_pooling` and `distill_head`: train a last layer of a model on the similarities of its own token vectors.

The encoder is frozen, so all texts are encoded once and a step trains that layer alone, in a fraction of a second.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers.base.modules import Dense
from torch import Tensor, nn

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.models.arguments import checked_stream
from latelier.models.construction import principal_directions
from latelier.models.foreign_layouts import token_layer
from latelier.models.pooling import find_pooling, has_pooling, insert_module, unpooled
from latelier.modules import AttentionPooling
from latelier.utils.checks import check_count, check_number
from latelier.utils.misc import progress_bar

STEPS = 300
# Each query of a batch brings its nearest document and another of its nearest ones.
_NEAREST = 32
# Temperature of the teacher's scores, sums over query tokens, that say how much a document counts for a query.
_TEMPERATURE = 0.5
# The divergence is about 0.1 at first and the other term about 4, most of which no training can remove.
_DIVERGENCE_WEIGHT = 3.0
_WARMUP_STEPS = 20
_PART = 1 << 16  # token vectors converted to float32 at once
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")


def distill_pooling(
    model: ColBERT,
    documents: Sequence[str] | TokenEmbeddings,
    queries: Sequence[str] | TokenEmbeddings | None = None,
    *,
    steps: int = STEPS,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    seed: int = 0,
    show_progress_bar: bool = False,
) -> ColBERT:
    """Train the `AttentionPooling` of a model so that pooled documents score like unpooled ones.

    No relevance judgements are needed: the teacher is the model itself, without the pooling. Documents are drawn among
    the nearest of each query of a batch, by the cosine of mean token vectors, and scored for all queries of the batch.
    With ``P(d | q)`` for the softmax over documents of the unpooled scores, divided by the temperature 0.5, ``P'`` for
    that of the pooled ones, and ``i(t, d)`` for the token of ``d`` that is most similar to the query token ``t``, the
    loss is the sum of::

        3 * mean over q of  KL(P || P')
        mean over t of      sum over d of  P(d | q) * -log softmax(log w)[i(t, d)]

    The second term moves the weights ``w`` of a document's tokens towards how often they are the maximum, so that the
    clusters are small where queries match.

    Parameters
    ----------
    model
        A model with a pooling, see `ColBERT.compress_documents`; changed in place. The rest of it is not trained.
    documents
        Texts like those to be searched; some thousands suffice. Their token vectors are kept in memory, in float16. Or
        these vectors, as the model gave them before it compressed documents.
    queries
        Texts like the queries to come, or their vectors; default: a random sentence of each document.
    steps, batch_size, learning_rate
        Number of steps, queries per step, and the highest rate of AdamW, which is lowered linearly to 0.
    seed
        Of the random choices.
    show_progress_bar
        Show progress bars on standard error.

    Returns
    -------
    ColBERT
        The model itself.

    Raises
    ------
    InvalidArgumentError
        If the model has no `AttentionPooling`, a number is out of range, a text is not a str, token vectors have
        another dimension than those that the model pools, or no document or no query has scored tokens.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> from latelier.training import distill_pooling
    >>> model = ColBERT.from_dense("all-MiniLM-L6-v2", device="cpu")
    >>> texts = ["A pear is a fruit. It is sweet.", "The moon is far."]
    >>> model = distill_pooling(model.compress_documents(4), texts, steps=2)
    >>> model.encode_document(texts, packed=True).lengths
    array([4, 4])
    """
    pooling = find_pooling(model)
    steps = check_count("steps", steps)
    learning_rate = check_number("learning_rate", learning_rate)
    with unpooled(pooling):
        batches = _encoded(model, documents, queries, pooling.dim, batch_size, seed, show_progress_bar)
    dtype = pooling.queries.dtype
    pooling.to(torch.promote_types(dtype, torch.float32))  # AdamW's steps are too small for half precision
    was_training = pooling.training
    pooling.train()
    try:
        _train(pooling, lambda batch: _loss(pooling, batch), batches, steps, learning_rate, show_progress_bar)
    finally:
        pooling.train(was_training).to(dtype)
    return model


def distill_head(
    model: ColBERT,
    texts: Sequence[str] | TokenEmbeddings,
    dims: int = 128,
    queries: Sequence[str] | TokenEmbeddings | None = None,
    *,
    steps: int = STEPS,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    seed: int = 0,
    show_progress_bar: bool = False,
) -> ColBERT:
    """Add a linear layer to fewer dimensions that ranks as the model does without it, and return the model.

    No relevance judgements are needed: the teacher is the model itself. The layer starts as the principal directions of
    the documents' token vectors, and learns the distribution of the teacher's scores over documents near the queries of
    a batch: the loss is ``KL(P || P')`` of `distill_pooling`, with a learned scale of the new scores.

    Parameters
    ----------
    model
        A late-interaction model, or a dense one by `ColBERT.from_dense`; changed in place. The rest is not trained.
    texts
        Documents like those to be searched; some thousands suffice. Their token vectors are kept in memory, in float16.
        Or these vectors.
    dims
        Dimensions of the token vectors from now on, fewer than the model has.
    queries, steps, batch_size, learning_rate, seed, show_progress_bar
        As in `distill_pooling`.

    Raises
    ------
    InvalidArgumentError
        If the model has no more than `dims` dimensions or pools its documents, and as in `distill_pooling`.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> from latelier.training import distill_head
    >>> texts = ["A pear is a fruit. It is sweet.", "The moon is far. It has no air.", "Rome is old. It lies in Italy."]
    >>> model = ColBERT.from_dense("all-MiniLM-L6-v2", device="cpu")
    >>> model = distill_head(model, texts, dims=16, steps=20)
    >>> model.encode_document(texts, packed=True).dim
    16
    >>> model.scores(["a sweet fruit"] * 3, texts, tqdm_bar=False).argmax()
    tensor(0)
    """
    width = model.embedding_size
    dims = check_count("dims", dims)
    if dims >= width or has_pooling(model, "document"):
        if dims < width:
            reason = "pools its documents"
        else:
            reason = f"has {width}"
        raise InvalidArgumentError(
            f"received dims={dims}, but the model {reason}; expected fewer dimensions of a model without pooling."
        )
    steps = check_count("steps", steps)
    learning_rate = check_number("learning_rate", learning_rate)
    batches = _encoded(model, texts, queries, width, batch_size, seed, show_progress_bar)
    head = _Projection(batches.documents, dims).to(model.device)
    _train(head, lambda batch: _head_loss(head, batch), batches, steps, learning_rate, show_progress_bar)
    position = max(i for i, module in enumerate(model) if i == 0 or isinstance(module, Dense)) + 1
    insert_module(model, position, token_layer(head.weight.detach().cpu()))
    return model


class _Projection(nn.Module):
    """A matrix ``(dims, width)``, at first the documents' principal directions, and the logarithm of a scale."""

    def __init__(self, documents: TokenEmbeddings, dims: int) -> None:
        super().__init__()
        moment = torch.zeros(documents.dim, documents.dim, dtype=torch.float64)
        for start in range(0, len(documents.vectors), _PART):
            part = documents.vectors[start : start + _PART].double()
            moment += part.T @ part
        self.weight = nn.Parameter(principal_directions(moment, dims).float())
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors @ self.weight.T, dim=-1)


def _head_loss(head: _Projection, batch: _Batch) -> Tensor:
    wanted, _ = _maxima(batch.queries, batch.documents, batch.mask)
    found, _ = _maxima(head(batch.queries), head(batch.documents), batch.mask)
    scores = _log_relevance(found * head.scale.exp(), batch.rows)
    return F.kl_div(scores, _log_relevance(wanted, batch.rows), reduction="batchmean", log_target=True)


def _encoded(
    model: ColBERT,
    documents: Sequence[str] | TokenEmbeddings,
    queries: Sequence[str] | TokenEmbeddings | None,
    dim: int,
    batch_size: int,
    seed: int,
    shown: bool,
) -> _Batches:
    """Return batches of a teacher's token vectors; texts are encoded, and queries drawn if there are none."""
    batch_size = check_count("batch_size", batch_size)
    seed = check_count("seed", seed, 0)
    if not isinstance(documents, TokenEmbeddings):
        documents = list(checked_stream(documents))
    if queries is None:
        if isinstance(documents, TokenEmbeddings):
            raise InvalidArgumentError("received token vectors and no queries; sentences are drawn from texts only.")
        queries = _sentences(documents, random.Random(seed))
    elif not isinstance(queries, TokenEmbeddings):
        queries = list(checked_stream(queries))

    def encode(texts: Sequence[str] | TokenEmbeddings, is_query: bool) -> TokenEmbeddings:
        encoded: Any = texts
        if not isinstance(texts, TokenEmbeddings):
            encoded = model.encode(texts, is_query=is_query, packed=True, precision="float16", show_progress_bar=shown)
        if encoded.dim != dim:
            raise InvalidArgumentError(
                f"received token vectors of {encoded.dim} dimensions; expected {dim}, those of the model before it "
                "compresses documents, without truncate_dim."
            )
        return encoded.to("cpu").to("torch")

    return _Batches(encode(documents, False), encode(queries, True), batch_size, seed, model.device)


class _Batch(NamedTuple):
    """Query tokens ``(t, dim)``, the query ``(t,)`` of each, and documents ``(n, length, dim)`` with their mask."""

    queries: Tensor
    rows: Tensor
    documents: Tensor
    mask: Tensor


class _Batches:
    """Draws queries, with documents near them."""

    def __init__(
        self, documents: TokenEmbeddings, queries: TokenEmbeddings, size: int, seed: int, device: torch.device
    ) -> None:
        # Texts without a scored token have no maximum.
        self.documents, self.queries = (each[np.flatnonzero(each.lengths)] for each in (documents, queries))
        if not len(self.documents) or not len(self.queries):
            raise InvalidArgumentError(
                f"received {len(documents)} documents and {len(queries)} queries, of which {len(self.documents)} and "
                f"{len(self.queries)} have scored tokens; give some of both."
            )
        self.device = device
        self.size = min(size, len(self.queries))
        self._rng = np.random.default_rng(seed)
        self._means = _means(self.documents)

    def draw(self) -> _Batch:
        chosen = self.queries[self._rng.choice(len(self.queries), self.size, replace=False)]
        near = (_means(chosen) @ self._means.T).topk(min(_NEAREST, len(self.documents)), dim=1).indices.numpy()
        others = near[np.arange(self.size), self._rng.integers(near.shape[1], size=self.size)]
        documents, mask = self.documents[np.unique([near[:, 0], others])].to("float32").pad()
        rows = torch.from_numpy(np.repeat(np.arange(self.size), chosen.lengths))
        parts: list[Any] = [chosen.to("float32").vectors, rows, documents, mask]
        return _Batch(*(part.to(self.device) for part in parts))


def _means(embeddings: TokenEmbeddings) -> Tensor:
    """Return the mean token vector of each text, of length 1, ``(n, dim)``."""
    rows = torch.from_numpy(np.repeat(np.arange(len(embeddings)), embeddings.lengths))
    sums = torch.zeros(len(embeddings), embeddings.dim)
    for part in range(0, len(rows), _PART):
        sums.index_add_(0, rows[part : part + _PART], embeddings.vectors[part : part + _PART].float())
    return F.normalize(sums, dim=-1)


def _train(
    layer: nn.Module, loss_of: Callable[[_Batch], Tensor], batches: _Batches, steps: int, rate: float, shown: bool
) -> None:
    optimizer = torch.optim.AdamW(layer.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / min(_WARMUP_STEPS, steps), 1 - step / steps)
    )
    with progress_bar(shown=shown, total=steps, desc="Training a layer") as bar, torch.enable_grad():
        for _ in range(steps):
            loss = loss_of(batches.draw())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update(1)


def _loss(pooling: AttentionPooling, batch: _Batch) -> Tensor:
    exact, places = _maxima(batch.queries, batch.documents, batch.mask)  # (tokens of queries, documents)
    out = pooling({"token_embeddings": batch.documents, "attention_mask": batch.mask})
    pooled, _ = _maxima(batch.queries, F.normalize(out["token_embeddings"], dim=-1), out["attention_mask"])
    wanted, found = (_log_relevance(maxima, batch.rows) for maxima in (exact, pooled))
    weights = pooling.log_weights(batch.documents).masked_fill(~batch.mask, -torch.inf).log_softmax(dim=1)
    matched = weights[torch.arange(len(weights), device=weights.device), places]
    divergence = F.kl_div(found, wanted, reduction="batchmean", log_target=True)
    return _DIVERGENCE_WEIGHT * divergence - (matched * wanted.exp()[batch.rows]).sum() / len(exact)


def _log_relevance(maxima: Tensor, rows: Tensor) -> Tensor:
    """Return ``log P(d | q)`` ``(queries, documents)`` from the maxima of the query tokens."""
    scores = maxima.new_zeros(int(rows[-1]) + 1, maxima.shape[1]).index_add(0, rows, maxima)
    return (scores / _TEMPERATURE).log_softmax(dim=1)


def _maxima(queries: Tensor, documents: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum similarity of each query token with each document, and the position of its token."""
    similarities = (queries @ documents.flatten(0, 1).T).unflatten(1, mask.shape)
    best = similarities.masked_fill(~mask, -torch.inf).max(dim=2)
    return best.values, best.indices


def _sentences(documents: Sequence[str], rng: random.Random) -> list[str]:
    """Return a random sentence of each document that has text."""
    split = ([part for part in _SENTENCE_END.split(text) if part.strip()] for text in documents)
    return [rng.choice(parts) for parts in split if parts]
