"""Token pooling: fewer vectors per document, so that an index takes less room and is searched faster.

Neighbouring pieces of text and repeated words have similar token vectors. Pooling clusters those of each document by
Ward's method and keeps one vector per cluster, which at a factor of 2 costs next to nothing in ranking (Clavié, Chaffin
and Adams, https://arxiv.org/abs/2409.14683). Documents are clustered in compiled code and shared out among threads.
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
    ``1 - cosine``, cut at the wanted number. There are two differences. Rows stand in the order of each cluster's first
    token, and so follow the text, where the order there comes from the shape of the tree. And distances that are
    exactly equal never make fewer clusters than wanted.

    Parameters
    ----------
    embeddings
        Token vectors of documents, of length 1 (cosines are computed as dot products). Pooled without gradients, in
        float32 and on the CPU, whatever their dtype and device.
    pool_factor
        Of ``n`` tokens that are not protected, ``max(n // pool_factor, 1)`` vectors are kept. 1 returns the embeddings
        as they are.
    protected_tokens
        First tokens of each document that are kept unchanged, special tokens for instance.

    Returns
    -------
    TokenEmbeddings
        As many documents, of the same kind, dtype and device: protected tokens, then one vector of length 1 per cluster
        (all zeros where the mean is). int8 vectors are pooled as floats and quantised again.

    Raises
    ------
    InvalidArgumentError
        If ``pool_factor`` is no integer from 1 or ``protected_tokens`` none from 0.
    EmbeddingsError
        If a vector that is pooled holds NaN or infinity.

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

    # Each token meets half of its document, on average over tokens.
    work = source.dim * int((source.lengths**2).sum()) // (2 * source.num_tokens)
    for_ranges(pool, source.offsets, work)
    pooled = _with_protected(means, offsets, source, protected_tokens)
    return pooled.to(embeddings.device) if embeddings.is_torch else pooled.to("numpy")


def check_pooling(
    pool_factor: Any, protected_tokens: Any, task: str = "document", output_value: str | None = "token_embeddings"
) -> None:
    """Refuse what cannot be pooled, or not like this: numbers, and the ``task`` and ``output_value`` of encoding."""
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
    """Return the means in the dtype of the source, with its protected rows in their places, equal to the last bit."""
    before, after = (torch.from_numpy(positions_within(edges) < protected) for edges in (source.offsets, offsets))
    if source.scales is not None:
        pooled = TokenEmbeddings(means, offsets).to("int8")
        pooled.scales[after] = source.scales[before]
    else:
        pooled = TokenEmbeddings(means.to(source.vectors.dtype), offsets)
    pooled.vectors[after] = source.vectors[before].detach()
    return pooled
