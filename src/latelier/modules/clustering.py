"""Ward clusters of token vectors as a torch operator, which `torch.compile` and `torch.export` keep as one call."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from latelier.kernels.threads import for_ranges
from latelier.kernels.ward import cluster_documents
from latelier.utils.ragged import lengths_to_offsets

__all__ = ["ward_clusters"]


@torch.library.custom_op("latelier::ward_clusters", mutates_args=())
def ward_clusters(vectors: Tensor, mask: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    """Cluster the tokens of each document by Ward's method on distances ``1 - cosine``, on the CPU.

    Parameters
    ----------
    vectors
        ``(documents, tokens, dim)`` of length 1, on any device.
    mask
        Bool ``(documents, tokens)``: the tokens to cluster.
    weights
        ``(documents, tokens)``, positive: a token of weight ``w`` counts as ``w`` equal tokens. Other weights, such as
        the NaN of a training that diverges, count as 1.
    num_clusters
        Number of clusters of each document; a document with fewer tokens has one for each.

    Returns
    -------
    Tensor
        ``(documents, tokens)`` int64 without gradient: each token's cluster, numbered in the order of their first
        tokens; -1 where the mask is False.

    Examples
    --------
    >>> vectors = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [1.0, 0.0]]])
    >>> mask = torch.tensor([[True, True, True, False]])
    >>> ward_clusters(vectors, mask, torch.ones(1, 4), 2)
    tensor([[ 0,  1,  1, -1]])
    """
    lengths = mask.sum(dim=1).cpu().numpy()
    offsets = lengths_to_offsets(lengths)
    rows = vectors[mask].float().cpu().contiguous().numpy()
    sizes = weights[mask].float().cpu().contiguous().numpy()
    sizes = np.where((sizes > 0) & (sizes < np.inf), sizes, np.float32(1))  # the kernel reads out of bounds with NaN
    labels = np.empty(len(rows), dtype=np.int64)

    def cluster(first: int, last: int) -> None:
        tokens = slice(offsets[first], offsets[last])
        places = offsets[first : last + 1] - offsets[first]
        clusters = np.minimum(lengths[first:last], num_clusters)
        cluster_documents(rows[tokens], places, clusters, sizes[tokens], labels[tokens])

    # Multiplications: each token is compared with half of its document's tokens, on average.
    work = vectors.shape[2] * int((lengths**2).sum()) // (2 * max(len(rows), 1))
    for_ranges(cluster, offsets, work)
    found = torch.full(mask.shape, -1, dtype=torch.int64, device=mask.device)
    found[mask] = torch.from_numpy(labels).to(mask.device)
    return found


@ward_clusters.register_fake
def _(vectors: Tensor, mask: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    return torch.empty_like(mask, dtype=torch.int64)
