"""Centroids in two levels: coarse centroids, and under each of them the centroids of its inverted lists.

A token is assigned to the coarse centroid with the highest dot product, and then to the centroid under it with the
highest dot product. For n inverted lists there are about sqrt(n) coarse centroids with sqrt(n) centroids each, so
finding the list of a token takes time O(sqrt(n)).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.kernels.kmeans import empty_groups, pack_rows

__all__ = ["Centroids", "TrainingStatistics", "pack_centroids"]


class TrainingStatistics(NamedTuple):
    """Statistics of the tokens that the centroids were trained on, and of tokens that were assigned to them later.

    Attributes
    ----------
    tokens
        Number of tokens of the index when the centroids were trained.
    trained_similarity
        Mean dot product of those tokens with the centroids of their lists, in units of a centroid's code.
    latest_similarity
        The same for the tokens of the documents that were appended last.
    dim
        Dimension of the token vectors.
    """

    tokens: float
    trained_similarity: float
    latest_similarity: float
    dim: float


class Centroids(NamedTuple):
    """Two levels of centroids, packed for SIMD in groups of 16: see `pack_centroids`.

    An inverted list has the number of its centroid, ``16 * group + lane``. The last group of a coarse centroid may have
    lanes without a centroid; their lists stay empty.

    Attributes
    ----------
    coarse, coarse_start
        The first level: ``(groups, width / 4, 16, 4)`` int8, and starting sums ``(groups, 16)`` int32.
    fine, fine_start
        The same for the second level: the centroids under all coarse centroids, one after the other.
    fine_offsets
        ``(coarse centroids + 1,)`` int64: coarse centroid `c` has the groups ``fine_offsets[c]`` to
        ``fine_offsets[c + 1] - 1`` of the second level.
    statistics
        See `TrainingStatistics`.
    """

    coarse: np.ndarray
    coarse_start: np.ndarray
    fine: np.ndarray
    fine_start: np.ndarray
    fine_offsets: np.ndarray
    statistics: TrainingStatistics

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All fields but the statistics, as kernels take them."""
        return self[:-1]

    @property
    def lists(self) -> int:
        """Number of inverted lists, including the empty ones of lanes without a centroid."""
        return self.fine_start.size


def pack_centroids(centroids: np.ndarray, width: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Quantise centroids to 8 bits and pack them for SIMD, 16 to a group.

    Parameters
    ----------
    centroids
        ``(n, dim)`` float32.
    width
        Bytes per centroid, at least its dim; those beyond the dim are zero.
    scale
        The value of a code of 1; it must be the same for all centroids that are compared with each other.

    Returns
    -------
    tuple of numpy.ndarray
        Codes ``(groups, width / 4, 16, 4)`` int8, and starting sums ``(groups, 16)`` int32. The starting sum of a
        centroid, ``-128 * sum(codes)``, cancels the shift by 128 of the rows that are multiplied with it; that of a
        lane without a centroid is `NO_CENTROID`, which is below any dot product.

    Examples
    --------
    >>> centroid = np.array([[1.0, 0.5]])
    >>> codes, start = pack_centroids(centroid, width=4, scale=0.01)
    >>> codes[0, 0, 0].tolist()
    [100, 50, 0, 0]
    >>> start[0, :2].tolist()
    [-19200, -1073741824]
    """
    packed, start = empty_groups(len(centroids), width)
    pack_rows(centroids, np.float32(scale), packed.view("int32"), start)
    return packed, start
