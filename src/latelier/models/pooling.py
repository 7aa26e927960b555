"""Token pooling: fewer vectors per document, for a smaller index and faster search.

Neighbouring word pieces and repeated words have similar token vectors. Pooling clusters the vectors of each document by
Ward's method and keeps one vector per cluster; at a factor of 2 this changes rankings very little (Clavié, Chaffin and
Adams, https://arxiv.org/abs/2409.14683). Documents are clustered in compiled code, in several threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.kernels.threads import for_ranges
from latelier.kernels.ward import pool_documents
from latelier.utils import check_count
from latelier.utils.describing import short
from latelier.utils.ranges import lengths_to_offsets, positions_within

__all__ = ["check_pooling", "pool_tokens"]


def pool_tokens(embeddings: TokenEmbeddings, pool_factor: int, *, protected_tokens: int = 1) -> TokenEmbeddings:
    """Replace similar token vectors of each document by their mean.

    The clusters are those of sentence-transformers' `HierarchicalTokenPooling`: Ward's method on distances
    ``1 - cosine``, cut at the wanted number of clusters. There are two differences. Rows are in the order of each
    cluster's first token in the text; there, in the order of the cluster tree. And equal distances never give fewer
    clusters than wanted.

    Parameters
    ----------
    embeddings
        Token vectors of documents, of length 1 (cosines are computed as dot products). Pooled without gradients, in
        float32 and on the CPU, whatever their dtype and device.
    pool_factor
        Of ``n`` tokens that are not protected, ``max(n // pool_factor, 1)`` vectors are kept. 1 returns the embeddings
        unchanged.
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
        If ``pool_factor`` is not an integer of at least 1, or ``protected_tokens`` not one of at least 0.
    EmbeddingsError
        If a vector to be pooled holds NaN or infinity.

    Examples
    --------
    >>> document = [[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]]
    >>> pooled = pool_tokens(TokenEmbeddings.from_list([document, document[:1]]), 2)
    >>> pooled.lengths
    array([3, 1])
    >>> pooled[0].round(3)
    array([[ 1.   ,  0.   ],
           [ 0.707,  0.707],
           [-1.   ,  0.   ]], dtype=float32)
    """
    check_pooling(pool_factor, protected_tokens)
    if not isinstance(embeddings, TokenEmbeddings):
        raise InvalidArgumentError(
            f"received embeddings of type {type(embeddings).__name__}; expected TokenEmbeddings. "
            "TokenEmbeddings.from_list packs a list of matrices."
        )
    if pool_factor == 1 or not embeddings.num_tokens:
        return embeddings
    source = embeddings.to("cpu")
    offsets = _pooled_offsets(source.lengths, pool_factor, protected_tokens)
    means = torch.zeros(int(offsets[-1]), source.dim)

    def pool(first: int, last: int) -> None:
        part = source[first:last].to("float32").to("numpy")
        places = offsets[first : last + 1]
        rows = means[places[0] : places[-1]].numpy()
        bad = pool_documents(
            np.ascontiguousarray(part.vectors), part.offsets, places - places[0], protected_tokens, rows
        )
        if bad >= 0:
            raise EmbeddingsError(f"text {first + bad} has embeddings that hold NaN or infinity; pool finite ones.")

    # Multiplications: each token is compared with half of its document's tokens, on average.
    work = source.dim * int((source.lengths**2).sum()) // (2 * source.num_tokens)
    for_ranges(pool, source.offsets, work)
    pooled = _with_protected(means, offsets, source, protected_tokens)
    return pooled.to(embeddings.device) if embeddings.is_torch else pooled.to("numpy")


def check_pooling(
    pool_factor: Any, protected_tokens: Any, task: str = "document", output_value: str | None = "token_embeddings"
) -> None:
    """Raise an error for numbers that pooling cannot have, and for a task or an output that is not pooled."""
    check_count("pool_factor", pool_factor)
    check_count("protected_tokens", protected_tokens, 0)
    if output_value not in (None, "token_embeddings"):
        raise InvalidArgumentError(
            f"received output_value={short(output_value)}; expected 'token_embeddings', or None for features."
        )
    if pool_factor != 1 and task == "query":
        raise InvalidArgumentError(
            f"received pool_factor={pool_factor} for queries; only documents are pooled. Encode them with "
            "encode_document or is_query=False, and queries with pool_factor=1."
        )
    if pool_factor != 1 and output_value is None:
        raise InvalidArgumentError(
            f"received pool_factor={pool_factor} with output_value=None; features are not pooled, only embeddings."
        )


def _pooled_offsets(lengths: np.ndarray, pool_factor: int, protected: int) -> np.ndarray:
    kept = np.minimum(lengths, protected)
    rest = lengths - kept
    clusters = np.where(rest > 0, np.maximum(rest // pool_factor, 1), 0)
    return lengths_to_offsets(kept + clusters)


def _with_protected(
    means: torch.Tensor, offsets: np.ndarray, source: TokenEmbeddings, protected: int
) -> TokenEmbeddings:
    """Return the means in the dtype of the source, with its protected rows copied bit by bit to their places."""
    before, after = (torch.from_numpy(positions_within(edges) < protected) for edges in (source.offsets, offsets))
    if source.scales is not None:
        pooled = TokenEmbeddings(means, offsets).to("int8")
        pooled.scales[after] = source.scales[before]
    else:
        pooled = TokenEmbeddings(means.to(source.vectors.dtype), offsets)
    pooled.vectors[after] = source.vectors[before].detach()
    return pooled
