"""`pool_tokens`: fewer vectors for each document, by clusters of its tokens.

Neighbouring word pieces and repeated words have similar token vectors. Pooling clusters the vectors of each document
and keeps one vector per cluster; with Ward's method and half of the vectors, rankings change very little (Clavié,
Chaffin and Adams, https://arxiv.org/abs/2409.14683). Documents are clustered in several threads.

transformers returns attention weights only with its eager attention, which holds the weights of all layers in memory. A
registered attention function computes each layer as before, by `scaled_dot_product_attention`, and in the last layer
also the weights. On a CPU, the encoder is not patched meanwhile (`latelier.models`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules.token_pooling import BaseTokenPooling
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.kernels.threads import for_ranges
from latelier.kernels.ward import cluster_documents, pool_documents
from latelier.models.arguments import check
from latelier.modules import AttentionPooling
from latelier.utils.batching import lengths_to_offsets, positions_within
from latelier.utils.checks import check_choice, check_count

# Least weight of a token relative to the mean of its document: Ward's method needs positive weights.
_LEAST_WEIGHT = 1e-3

Cluster = Callable[[np.ndarray, int, np.ndarray], np.ndarray]


def pool_weighted(
    vectors: np.ndarray,
    offsets: np.ndarray,
    pooled_offsets: np.ndarray,
    protected: int,
    weights: np.ndarray,
    cluster: Cluster,
    pooled: np.ndarray,
) -> int:
    """Cluster each document's tokens and write the unit weighted mean of each cluster.

    `vectors`, `offsets`, `pooled_offsets`, `protected`, `pooled`: as in `latelier.kernels.ward.pool_documents`;
    `weights`: ``(tokens,)`` float32, not negative; `cluster`: `label_by_ward` or `label_by_centroids`; returns: the
    first document with a mean of infinite or NaN length, -1 if there is none.
    """
    for d in range(len(offsets) - 1):
        rows = vectors[offsets[d] + protected : offsets[d + 1]]
        means = pooled[pooled_offsets[d] + protected : pooled_offsets[d + 1]]
        if not len(rows):
            continue
        own = weights[offsets[d] + protected : offsets[d + 1]]
        mean = own.mean()
        if mean > 0:
            own = np.maximum(own / mean, np.float32(_LEAST_WEIGHT))
        else:
            own = np.ones_like(own)
        labels = cluster(rows, len(means), own)
        shares = np.zeros((len(means), len(rows)), dtype=np.float32)
        shares[labels, np.arange(len(rows))] = own
        np.matmul(shares, rows, out=means)
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        if not np.isfinite(lengths).all():
            return d
        np.divide(means, lengths, out=means, where=lengths > 0)
    return -1


def label_by_ward(rows: np.ndarray, clusters: int, weights: np.ndarray) -> np.ndarray:
    """Cluster the tokens ``(n, dim)`` of one document by Ward's method, a token of weight w counting as w tokens."""
    labels = np.empty(len(rows), dtype=np.int64)
    offsets, counts = (np.array(numbers, dtype="int64") for numbers in ([0, len(rows)], [clusters]))
    cluster_documents(rows, offsets, counts, weights, labels)
    return labels


def label_by_centroids(rows: np.ndarray, clusters: int, weights: np.ndarray) -> np.ndarray:
    """Assign each token to the most similar of the tokens with the largest weights; numbered by these tokens' order."""
    centroids = np.sort(np.argsort(-weights, kind="stable")[:clusters])
    labels = np.argmax(rows @ rows[centroids].T, axis=1)
    labels[centroids] = np.arange(clusters)  # equal vectors leave no cluster empty
    return labels


PoolMethod = Literal["ward", "attention", "attention-ward"]
_METHODS = ("ward", "attention", "attention-ward")
# What merging costs per pair of tokens, in multiplications.
_MERGING = 256


@dataclass(frozen=True)
class Pooling:
    """Into how many vectors documents are pooled, and how.

    `pool_factor`, `num_vectors`, `method`, `protected_tokens`: as in `pool_tokens`.
    """

    pool_factor: int = 1
    num_vectors: int | None = None
    method: PoolMethod = "ward"
    protected_tokens: int = 1

    def __post_init__(self) -> None:
        check_count("pool_factor", self.pool_factor)
        check_count("protected_tokens", self.protected_tokens, 0)
        check_count("num_vectors", self.num_vectors, optional=True)
        check_choice("pool_method", self.method, _METHODS)
        if self.num_vectors is None:
            return
        if self.pool_factor != 1:
            raise InvalidArgumentError(f"give pool_factor={self.pool_factor} or num_vectors={self.num_vectors}.")
        if self.num_vectors <= self.protected_tokens:
            given = f"num_vectors={self.num_vectors} with protected_tokens={self.protected_tokens}"
            raise InvalidArgumentError(f"received {given}, which are among these vectors; give more vectors.")

    @property
    def is_on(self) -> bool:
        """Whether any vectors are pooled."""
        return self.pool_factor != 1 or self.num_vectors is not None

    @property
    def uses_attention(self) -> bool:
        """Whether vectors are pooled, and by weights from the encoder's attention."""
        return self.is_on and self.method != "ward"

    def checked_for(self, task: str, output_value: str | None = "token_embeddings") -> Pooling:
        """Return the pooling itself, or raise an error for a task or an output that is not pooled."""
        check_choice("output_value", output_value, ["token_embeddings"], optional=True)
        if self.is_on and (task == "query" or output_value is None):
            if self.num_vectors is None:
                given = f"pool_factor={self.pool_factor}"
            else:
                given = f"num_vectors={self.num_vectors}"
            if output_value:
                kind = "queries"
            else:
                kind = "features"
            raise InvalidArgumentError(f"received {given} for {kind}; only documents are pooled: is_query=False.")
        return self

    def offsets(self, lengths: np.ndarray) -> np.ndarray:
        """Return the offsets ``(n + 1,)`` of the pooled vectors of documents with these numbers of tokens."""
        kept = np.minimum(lengths, self.protected_tokens)
        rest = lengths - kept
        if self.num_vectors is None:
            clusters = np.where(rest > 0, np.maximum(rest // self.pool_factor, 1), 0)
        else:
            clusters = np.minimum(rest, self.num_vectors - self.protected_tokens)
        return lengths_to_offsets(kept + clusters)


def pool_tokens(
    embeddings: TokenEmbeddings,
    pool_factor: int = 1,
    *,
    num_vectors: int | None = None,
    method: PoolMethod = "ward",
    weights: Any = None,
    protected_tokens: int = 1,
) -> TokenEmbeddings:
    """Replace similar token vectors of each document by their mean.

    ``method="ward"`` makes the clusters of sentence-transformers' `HierarchicalTokenPooling`: Ward's method on
    distances ``1 - cosine``, cut at the wanted number of clusters. There are two differences. Rows are in the order of
    each cluster's first token in the text; there, in the order of the cluster tree. And equal distances never give
    fewer clusters than wanted.

    The other methods use a weight for each token, the attention that it receives in the encoder:

    * ``"attention"`` is attention-guided clustering (Qin et al., https://arxiv.org/abs/2602.21202): the tokens with the
      largest weights are centroids, every token joins the most similar centroid, and a cluster's vector is its
      weighted mean. In the paper, trained tokens that are appended to the document give the weights; here, without
      training, all tokens of the text do, by the attention of the encoder's last layer.
    * ``"attention-ward"`` is Ward's method where a token of weight ``w`` counts as ``w`` equal tokens, with weighted
      means. Unlike the centroids of the paper, its clusters are spread over all tokens with weight.

    Parameters
    ----------
    embeddings
        Token vectors of documents, of length 1 (cosines are computed as dot products). Pooled without gradients, in
        float32 and on the CPU, whatever their dtype and device.
    pool_factor
        Of ``n`` tokens that are not protected, ``max(n // pool_factor, 1)`` vectors are kept.
    num_vectors
        Keep at most this many vectors of each document, the protected ones included, instead of a share of them.
        Without both, the embeddings are returned unchanged.
    method
        ``"ward"``, ``"attention"`` or ``"attention-ward"``.
    weights
        For the last two: ``(tokens,)``, finite and not negative. `ColBERT.encode_document` takes them from the encoder.
        None for Ward's method.
    protected_tokens
        First tokens of each document that are kept unchanged, special tokens for instance.

    Returns
    -------
    TokenEmbeddings
        As many documents, of the same kind, dtype and device: protected tokens, then one vector per cluster, its mean
        normalised (a mean of zero stays zero). int8 vectors are pooled as floats and quantised again.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range, ``pool_factor`` and ``num_vectors`` are given together, or the method and the
        weights do not fit each other or the embeddings.
    EmbeddingsError
        If a vector to be pooled holds NaN or infinity.

    Examples
    --------
    >>> document = [[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]]
    >>> packed = TokenEmbeddings.from_list([document, document[:1]])
    >>> pooled = pool_tokens(packed, 2)
    >>> pooled.lengths
    array([3, 1])
    >>> pooled[0].round(3)
    array([[ 1.   ,  0.   ],
           [ 0.707,  0.707],
           [-1.   ,  0.   ]], dtype=float32)

    With weights, the fourth token has more influence on its mean than the second:

    >>> weights = [1, 1, 1, 3, 1, 1]
    >>> options = {"method": "attention-ward", "weights": weights}
    >>> pool_tokens(packed, num_vectors=3, **options)[0].round(3)
    array([[ 1.   ,  0.   ],
           [ 0.756,  0.655],
           [-1.   ,  0.   ]], dtype=float32)
    """
    pooling = Pooling(pool_factor, num_vectors, method, protected_tokens)
    sizes = _check_weights(weights, method, embeddings.num_tokens)
    if not pooling.is_on or not embeddings.num_tokens:
        return embeddings
    # Not by torch where numpy can: each of torch's threads waits for all, also for one that has lost its core.
    if embeddings.dtype == "bfloat16":
        source = TokenEmbeddings(embeddings.vectors.detach().cpu(), embeddings.offsets)
    else:
        source = embeddings.to("cpu").to("numpy")
    offsets = pooling.offsets(source.lengths)
    pooled = _with_protected(_means(source, offsets, pooling, sizes), offsets, source, protected_tokens)
    if embeddings.is_torch:
        return pooled.to(embeddings.device)
    return pooled.to("numpy")


def _means(source: TokenEmbeddings, offsets: np.ndarray, pooling: Pooling, sizes: np.ndarray | None) -> np.ndarray:
    """Return the unit mean of each cluster ``(vectors, dim)``, and zeros in the rows of protected tokens."""
    means = np.zeros((int(offsets[-1]), source.dim), dtype="float32")
    if pooling.method == "attention":
        label = label_by_centroids
    else:
        label = label_by_ward
    protected = pooling.protected_tokens

    def pool(first: int, last: int) -> None:
        part = source[first:last].to("float32").to("numpy")
        vectors = np.ascontiguousarray(part.vectors)
        own = offsets[first : last + 1]
        rows = means[own[0] : own[-1]]
        places = own - own[0]
        if sizes is None:
            bad = pool_documents(vectors, part.offsets, places, protected, rows)
        else:
            weights = sizes[source.offsets[first] : source.offsets[last]]
            bad = pool_weighted(vectors, part.offsets, places, protected, weights, label, rows)
        if bad >= 0:
            raise EmbeddingsError(f"text {first + bad} has embeddings that hold NaN or infinity; pool finite ones.")

    # Each token is compared with half of its document's tokens, on average, and takes part in merges of all of them.
    work = (source.dim // 2 + _MERGING) * int((source.lengths**2).sum()) // source.num_tokens
    for_ranges(pool, source.offsets, work)
    return means


def _check_weights(weights: Any, method: str, tokens: int) -> np.ndarray | None:
    """Return the weights as float32 ``(tokens,)``, or None for Ward's method, which takes none."""
    if (method == "ward") != (weights is None):
        if weights is None:
            given = "without"
        else:
            given = "with"
        raise InvalidArgumentError(f'received method={method!r} {given} weights; all but "ward" take one per token.')
    if weights is None:
        return None
    found = np.asarray(torch.as_tensor(weights).detach().cpu().float().numpy())
    if found.shape != (tokens,) or not np.isfinite(found).all() or (found < 0).any():
        raise InvalidArgumentError(f"received weights {found.shape}; expected ({tokens},), finite and not negative.")
    return found


def _with_protected(means: np.ndarray, offsets: np.ndarray, source: TokenEmbeddings, protected: int) -> TokenEmbeddings:
    """Return the means in the dtype of the source, with its protected rows copied bit by bit to their places."""
    if source.dtype in ("bfloat16", "int8"):
        pooled = TokenEmbeddings(means, offsets).to(source.dtype)
    else:
        pooled = TokenEmbeddings(means.astype(source.vectors.dtype, copy=False), offsets)
    if protected:
        before, after = (np.flatnonzero(positions_within(edges) < protected) for edges in (source.offsets, offsets))
        pooled.vectors[after] = source.vectors[before]
        if source.scales is not None:
            pooled.scales[after] = source.scales[before]
    return pooled


# Arguments of an `AttentionPooling` that a user chooses besides `num_vectors`.
_ARGUMENTS = ("heads", "dim_head", "hidden_dim")


def compress_documents(model: MultiVectorEncoder, num_vectors: int, arguments: Mapping[str, Any]) -> None:
    """Add an `AttentionPooling` to a model, before its last normalisation.

    `model`: the model, changed in place; raises `InvalidArgumentError` if the model pools its documents already, or
    there is no such argument.
    """
    check("compress_documents", arguments, {"num_vectors", *_ARGUMENTS})
    if has_pooling(model, "document"):
        raise InvalidArgumentError("this model pools its documents already; load the one that it was made from.")
    pooling = AttentionPooling(int(model.get_embedding_dimension() or 0), num_vectors, **arguments)
    insert_module(model, len(model) - isinstance(model[-1], Normalize), pooling)


def insert_module(model: MultiVectorEncoder, position: int, module: nn.Module) -> None:
    """Put a module into a model's pipeline; it is moved to where the model is."""
    module.to(model.device, model.dtype).train(model.training)
    modules = list(model._modules.items())
    # sentence-transformers numbers modules, and other names refer to saved settings.
    name = next(name for name in map(str, count(len(modules))) if name not in model._modules)
    modules.insert(position, (name, module))
    model._modules.clear()
    model._modules.update(modules)


def has_pooling(model: Iterable[nn.Module], task: str) -> bool:
    """Whether a model's pipeline pools the token vectors of a task, ``"query"`` or ``"document"``."""
    return any(isinstance(module, BaseTokenPooling) and module.applies_to(task) for module in model)


def find_pooling(model: Iterable[nn.Module]) -> AttentionPooling:
    """Return the `AttentionPooling` of a model."""
    for module in model:
        if isinstance(module, AttentionPooling):
            return module
    raise InvalidArgumentError("this model has no AttentionPooling; call model.compress_documents(num_vectors) first.")


@contextmanager
def unpooled(pooling: AttentionPooling) -> Iterator[None]:
    """Let a pooling pass all texts unchanged inside the block."""
    tasks, pooling.tasks = pooling.tasks, []
    try:
        yield
    finally:
        pooling.tasks = tasks


_NAME = "latelier_recorded"


class Recorder:
    """Keeps the attention weights of an encoder's last layer."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._calls = 0
        self._weights: Tensor | None = None

    def received(self, mask: Tensor) -> Tensor:
        """Return the mean attention that each token received in the last forward pass, and forget it.

        `mask`: bool ``(n, tokens)``: the tokens that are not padding. Returns: ``(n, tokens)`` float32: the mean over
        heads and over the tokens that attend, times their number. Its mean over a text's tokens is 1.
        """
        weights = self._weights
        self._weights = None
        if weights is None or weights.shape != (*mask.shape, mask.shape[1]):
            raise InvalidArgumentError('the attention of this encoder cannot be read; use pool_method="ward".')
        return (weights * mask[:, :, None]).sum(dim=1)

    def record(self, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> None:
        """Count a layer's call; in the last layer, keep the weights ``(n, tokens, tokens)``, the mean over heads."""
        self._calls += 1
        if self._calls % self.layers:
            return
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        logits = (query @ key.transpose(-1, -2)).float() * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if mask is not None:
            if mask.dtype == torch.bool:
                logits = logits.masked_fill(~mask, -torch.inf)
            else:
                logits = logits + mask
        self._weights = logits.softmax(dim=-1).mean(dim=1).nan_to_num(0.0)


_lock = Lock()
# By the id of a configuration and a name: its own attention, and the number of threads that compute with that name.
_in_use: dict[tuple[int, str], tuple[Any, int]] = {}
_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend as transformers does by default, and show the recorder the queries and keys."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.record(query, key, attention_mask, options.get("scaling"))
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


@contextmanager
def recorded_attention(model: MultiVectorEncoder) -> Iterator[Recorder]:
    """Record the attention of a model's encoder in the forward passes inside the block.

    `model`: the model; its encoder computes with another attention function inside the block. Yields: what the last
    forward pass has recorded.
    """
    encoder = model[0]
    if isinstance(encoder, Transformer):
        config = getattr(encoder.model, "config", None)
    else:
        config = None
    own = getattr(config, "_attn_implementation", None)
    layers = getattr(config, "num_hidden_layers", None)
    if config is None or own not in ("sdpa", "eager", _NAME) or not layers or has_pooling(model, "document"):
        raise InvalidArgumentError(
            'the attention of this model cannot be read: it pools documents itself, or its encoder has no "sdpa" '
            'or "eager" attention of transformers. Use pool_method="ward".'
        )
    recorder = Recorder(layers)
    token = _recorder.set(recorder)
    try:
        with switched_attention(config, _NAME, _attend, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]):
            yield recorder
    finally:
        _recorder.reset(token)


@contextmanager
def switched_attention(config: Any, name: str, attend: Callable[..., Any], mask: Callable[..., Any]) -> Iterator[None]:
    """Let an encoder compute with another attention function inside the block, in which several threads may be."""
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)
    key = id(config), name
    with _lock:
        before, users = _in_use.get(key, (config._attn_implementation, 0))
        _in_use[key] = before, users + 1
        config._attn_implementation = name
    try:
        yield
    finally:
        with _lock:
            before, users = _in_use.pop(key)
            if users > 1:
                _in_use[key] = before, users - 1
            else:
                config._attn_implementation = before
