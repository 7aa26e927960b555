"""Pool_tokens: Ward, attention.

Neighbouring word pieces and repeated words have similar token vectors. Pooling clusters the vectors of each document
and keeps one vector per cluster; with Ward's method and half of the vectors, rankings change very little (Clavié,
Chaffin and Adams, https://arxiv.org/abs/2409.14683). Documents are clustered in several threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.kernels.threads import for_ranges
from latelier.kernels.ward import cluster_documents, pool_documents
from latelier.utils import check_choice, check_count
from latelier.utils.checks import short
from latelier.utils.ragged import lengths_to_offsets, positions_within

__all__ = ["PoolMethod", "Pooling", "label_by_centroids", "label_by_ward", "pool_tokens", "pool_weighted"]

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
        own = np.maximum(own / mean, np.float32(_LEAST_WEIGHT)) if mean > 0 else np.ones_like(own)
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
    """Cluster the tokens ``(n, dim)`` of one document by Ward's method, a token of weight w counting as w tokens.

    Examples
    --------
    >>> rows = np.array([[1, 0], [0.8, 0.6], [0, 1]], dtype="float32")
    >>> label_by_ward(rows, 2, np.array([9, 1, 0.1], dtype="float32"))
    array([0, 1, 1])
    """
    labels = np.empty(len(rows), dtype=np.int64)
    cluster_documents(rows, np.array([0, len(rows)]), np.array([clusters]), weights, labels)
    return labels


def label_by_centroids(rows: np.ndarray, clusters: int, weights: np.ndarray) -> np.ndarray:
    """Assign each token to the most similar of the tokens with the largest weights; numbered by these tokens' order.

    Examples
    --------
    >>> rows = np.array([[1, 0], [0.8, 0.6], [0, 1]], dtype="float32")
    >>> label_by_centroids(rows, 2, np.array([9, 1, 2], dtype="float32"))
    array([0, 0, 1])
    """
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
            raise InvalidArgumentError(
                f"received pool_factor={self.pool_factor} and num_vectors={self.num_vectors}; give one of them."
            )
        if self.num_vectors <= self.protected_tokens:
            raise InvalidArgumentError(
                f"received num_vectors={self.num_vectors} with protected_tokens={self.protected_tokens}, which are "
                "among these vectors; give more vectors, or protect fewer tokens."
            )

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
        if output_value not in (None, "token_embeddings"):
            raise InvalidArgumentError(
                f"received output_value={short(output_value)}; expected 'token_embeddings', or None for features."
            )
        if not self.is_on:
            return self
        given = f"pool_factor={self.pool_factor}" if self.num_vectors is None else f"num_vectors={self.num_vectors}"
        if task == "query":
            raise InvalidArgumentError(
                f"received {given} for queries; only documents are pooled. Encode them with encode_document or "
                "is_query=False, and queries without it."
            )
        if output_value is None:
            raise InvalidArgumentError(
                f"received {given} with output_value=None; features are not pooled, only embeddings."
            )
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
    if not isinstance(embeddings, TokenEmbeddings):
        raise InvalidArgumentError(
            f"received embeddings of type {type(embeddings).__name__}; expected TokenEmbeddings. "
            "TokenEmbeddings.from_list packs a list of matrices."
        )
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
    return pooled.to(embeddings.device) if embeddings.is_torch else pooled.to("numpy")


def _means(source: TokenEmbeddings, offsets: np.ndarray, pooling: Pooling, sizes: np.ndarray | None) -> np.ndarray:
    """Return the unit mean of each cluster ``(vectors, dim)``, and zeros in the rows of protected tokens."""
    means = np.zeros((int(offsets[-1]), source.dim), dtype="float32")
    label = label_by_centroids if pooling.method == "attention" else label_by_ward
    protected = pooling.protected_tokens

    def pool(first: int, last: int) -> None:
        part = source[first:last].to("float32").to("numpy")
        vectors, own = np.ascontiguousarray(part.vectors), offsets[first : last + 1]
        rows, places = means[own[0] : own[-1]], own - own[0]
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
    if method == "ward":
        if weights is not None:
            raise InvalidArgumentError('received weights for method="ward"; "attention-ward" takes them.')
        return None
    if weights is None:
        raise InvalidArgumentError(f"received method={method!r} without weights; give one for each token.")
    try:
        found = np.asarray(torch.as_tensor(weights).detach().cpu().float().numpy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"received {short(weights)} as weights; expected one number per token.") from error
    if found.shape != (tokens,) or not np.isfinite(found).all() or (found < 0).any():
        raise InvalidArgumentError(
            f"received weights of shape {found.shape} from {found.min(initial=0):g} to {found.max(initial=0):g}; "
            f"expected ({tokens},), one for each token, finite and not negative."
        )
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
