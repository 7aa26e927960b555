"""Sums of the tokens of clusters, and tokens gathered from anywhere: what k-means needs beside assignment."""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["add_rows"]


@kernel()
def add_rows(
    rows: np.ndarray, scales: np.ndarray, order: np.ndarray, lanes: np.ndarray, sums: np.ndarray, counts: np.ndarray
) -> None:
    """Add tokens to the sums of their clusters.

    Parameters
    ----------
    rows, scales
        Codes ``(n, width)`` uint8 shifted by 128, and scales ``(n,)`` float32.
    order
        ``(m,)`` int64, which rows.
    lanes
        ``(n,)`` int32, the cluster of each row.
    sums
        ``(clusters, dim)`` float32, added to.
    counts
        ``(clusters,)`` int64, added to.
    """
    for n in order:
        total, row = sums[lanes[n]], rows[n]
        scale = scales[n]
        for i in range(len(total)):
            total[i] += np.float32(np.int32(row[i]) - 128) * scale
        counts[lanes[n]] += 1
