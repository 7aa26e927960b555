"""Clusters of tokens that have weights, and their weighted means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from latelier.kernels.ward import cluster_documents

__all__ = ["label_by_centroids", "label_by_ward", "pool_weighted"]

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

    Parameters
    ----------
    vectors, offsets, pooled_offsets, protected, pooled
        As in `latelier.kernels.ward.pool_documents`.
    weights
        ``(tokens,)`` float32, not negative.
    cluster
        `label_by_ward` or `label_by_centroids`.

    Returns
    -------
    int
        The first document with a mean of infinite or NaN length, -1 if there is none.
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
