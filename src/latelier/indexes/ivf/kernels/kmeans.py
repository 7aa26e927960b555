"""Sums of clusters for k-means, and a counting sort of tokens by their cluster."""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["add_rows", "group_rows"]


@kernel()
def add_rows(
    rows: np.ndarray, scales: np.ndarray, order: np.ndarray, clusters: np.ndarray, sums: np.ndarray, counts: np.ndarray
) -> None:
    """Add tokens to the sums of their clusters.

    Parameters
    ----------
    rows, scales
        Codes ``(n, width)`` uint8, shifted by 128, and scales ``(n,)`` float32.
    order
        ``(m,)`` int64: the rows to add.
    clusters
        ``(n,)`` int32: the cluster of each row.
    sums
        ``(clusters, dim)`` float32, added to.
    counts
        ``(clusters,)`` int64, added to.
    """
    for n in order:
        total, row = sums[clusters[n]], rows[n]
        scale = scales[n]
        for i in range(len(total)):
            total[i] += np.float32(np.int32(row[i]) - 128) * scale
        counts[clusters[n]] += 1


@kernel()
def group_rows(clusters: np.ndarray, offsets: np.ndarray, order: np.ndarray) -> None:
    """Sort rows by their cluster, with a stable counting sort.

    Parameters
    ----------
    clusters
        ``(n,)`` int32: the cluster of each row.
    offsets
        ``(clusters + 1,)`` int64, zeros; written: where each cluster begins in `order`.
    order
        ``(n,)`` int64, written: the rows.
    """
    for i in range(len(clusters)):
        offsets[clusters[i] + 1] += 1
    for c in range(len(offsets) - 1):
        offsets[c + 1] += offsets[c]
    places = offsets[:-1].copy()
    for i in range(len(clusters)):
        order[places[clusters[i]]] = i
        places[clusters[i]] += 1
