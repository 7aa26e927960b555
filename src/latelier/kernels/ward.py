"""Ward clustering of each document's tokens, which may have weights, and the mean of each cluster.

`csrc/ward.c` finds the merges by nearest-neighbour chains; numpy merges the nearest two again and again.
"""

from __future__ import annotations

import numpy as np

from latelier.kernels.library import NUMPY, Kernel, instruction_set

_pool_documents = Kernel(
    "pool_documents", *("float32*", "int64*", "int64*", "int64", "int64", "int64", "float32*", "float64*")
)
_cluster_documents = Kernel(
    "cluster_documents", *("float32*", "int64*", "int64*", "float32*", "int64", "int64", "int64*", "float64*")
)


def pool_documents(
    vectors: np.ndarray, offsets: np.ndarray, pooled_offsets: np.ndarray, protected: int, pooled: np.ndarray
) -> int:
    """Cluster each document's tokens and write the unit mean of each cluster, in the order of their first tokens.

    `vectors`: ``(tokens, dim)`` float32; `offsets`, `pooled_offsets`: ``(documents + 1,)`` int64 into `vectors` and
    `pooled`; `protected`: first rows of each document, neither read nor written; `pooled`: ``(clusters, dim)`` float32
    zeros. Returns the first document with a mean of infinite or NaN length, or -1.
    """
    documents = len(offsets) - 1
    if instruction_set() != NUMPY:
        dim = vectors.shape[1]
        scratch = _scratch(offsets)
        return _pool_documents(vectors, offsets, pooled_offsets, documents, dim, protected, pooled, scratch)
    for d in range(documents):
        rows = vectors[offsets[d] + protected : offsets[d + 1]]
        means = pooled[pooled_offsets[d] + protected : pooled_offsets[d + 1]]
        if not len(rows):
            continue
        np.add.at(means, _labels(rows, np.ones(len(rows)), len(means)), rows)
        squares = np.einsum("cd,cd->c", means, means, dtype="float64")
        if not np.isfinite(squares).all():
            return d
        means *= np.where(squares > 0, 1 / np.sqrt(np.where(squares > 0, squares, 1)), 1).astype("float32")[:, None]
    return -1


def cluster_documents(
    vectors: np.ndarray, offsets: np.ndarray, clusters: np.ndarray, weights: np.ndarray | None, labels: np.ndarray
) -> None:
    """Cluster each document's tokens; write `labels`, ``(tokens,)`` int64, numbered in the order of their first tokens.

    `vectors`: ``(tokens, dim)`` float32; `offsets`: ``(documents + 1,)`` int64; `clusters`: ``(documents,)`` int64;
    `weights`: ``(tokens,)`` float32, a token of weight ``w`` counting as ``w`` equal tokens; None: all have 1.
    """
    documents = len(offsets) - 1
    if instruction_set() != NUMPY:
        dim = vectors.shape[1]
        _cluster_documents(vectors, offsets, clusters, weights, documents, dim, labels, _scratch(offsets))
        return
    for d in range(documents):
        tokens = slice(offsets[d], offsets[d + 1])
        if tokens.start < tokens.stop:
            sizes = np.ones(tokens.stop - tokens.start) if weights is None else weights[tokens].astype("float64")
            labels[tokens] = _labels(vectors[tokens], sizes, clusters[d])


def _scratch(offsets: np.ndarray) -> np.ndarray:
    """Return memory for the distances and the tree of the longest document."""
    longest = int(np.diff(offsets).max(initial=0))
    return np.empty(longest * (longest + 8), dtype="float64")


def _labels(rows: np.ndarray, sizes: np.ndarray, clusters: int) -> np.ndarray:
    """Return each token's cluster: the nearest two are merged until so many are left."""
    with np.errstate(over="ignore", invalid="ignore"):
        distances = np.nan_to_num(1 - rows @ rows.T, nan=0.0).clip(0, 2).astype("float64") ** 2
    distances *= 2 * np.outer(sizes, sizes) / np.add.outer(sizes, sizes)
    np.fill_diagonal(distances, np.inf)
    first = np.arange(len(rows))  # the first token of each token's cluster
    for _ in range(len(rows) - clusters):
        kept, gone = divmod(int(distances.argmin()), len(rows))
        row = (sizes[kept] + sizes) * distances[kept] + (sizes[gone] + sizes) * distances[gone]
        row = (row - sizes * distances[kept, gone]) / (sizes[kept] + sizes[gone] + sizes)
        row = np.maximum(row, np.minimum(distances[kept], distances[gone]))  # a union is never nearer than its parts
        row[[kept, gone]] = np.inf
        distances[kept] = distances[:, kept] = row
        distances[gone] = distances[:, gone] = np.inf
        sizes[kept] += sizes[gone]
        first[first == gone] = kept
    return np.unique(first, return_inverse=True)[1]
