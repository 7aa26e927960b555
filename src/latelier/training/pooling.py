"""`distill_pooling`: train the `AttentionPooling` of a model on the similarities of its own unpooled token vectors.

The encoder is frozen, so all texts are encoded once and a step trains the pooling alone, in a fraction of a second.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.models.arguments import checked_stream
from latelier.models.pooling import find_pooling, unpooled
from latelier.modules import AttentionPooling
from latelier.utils.checks import check_count, check_number
from latelier.utils.misc import progress_bar

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
    steps: int = 300,
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
    steps, batch_size = check_count("steps", steps), check_count("batch_size", batch_size)
    learning_rate = check_number("learning_rate", learning_rate)
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
            shown = show_progress_bar
            encoded = model.encode(texts, is_query=is_query, packed=True, precision="float16", show_progress_bar=shown)
        if encoded.dim != pooling.dim:
            raise InvalidArgumentError(
                f"received token vectors of {encoded.dim} dimensions; expected {pooling.dim}, those of the model "
                "before it compresses documents, without truncate_dim."
            )
        return encoded.to("cpu").to("torch")

    with unpooled(pooling):
        batches = _Batches(encode(documents, False), encode(queries, True), batch_size, seed, model.device)
    dtype = pooling.queries.dtype
    pooling.to(torch.promote_types(dtype, torch.float32))  # AdamW's steps are too small for half precision
    try:
        _train(pooling, batches, steps, learning_rate, show_progress_bar)
    finally:
        pooling.to(dtype)
    return model


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


def _train(pooling: AttentionPooling, batches: _Batches, steps: int, rate: float, shown: bool) -> None:
    optimizer = torch.optim.AdamW(pooling.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / min(_WARMUP_STEPS, steps), 1 - step / steps)
    )
    was_training = pooling.training
    pooling.train()
    with progress_bar(shown=shown, total=steps, desc="Training pooling") as bar, torch.enable_grad():
        for _ in range(steps):
            loss = _loss(pooling, batches.draw())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update(1)
    pooling.train(was_training)


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
