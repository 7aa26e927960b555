"""How far the sign codes of a document that is among the best may rank it too low."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["distance_variance", "score_deviation"]

# The Hamming distances of two query tokens have the correlation cosine ** 8, which is below 0.06 if cosine < 0.7.
_CORRELATION_POWER = 8
# Rows of the matrix of cosines between query tokens that are computed at a time; limits the memory of long queries.
_COSINE_ROWS = 1024


def score_deviation(vectors: np.ndarray, norms: np.ndarray) -> float:
    """Return the standard deviation of the score of a good match by its sign codes.

    The bits of a good match differ with probability 1/5 each, as if independently: for `dim` bits the Hamming distance
    has the standard deviation ``sqrt(1/5 * 4/5 * dim) = 0.4 * sqrt(dim)``, and the score
    ``0.4 * sqrt(dim * distance_variance(vectors, norms))``.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32: the query.
    norms
        ``(tokens,)`` float32: the norms of its tokens.
    """
    return 0.4 * math.sqrt(vectors.shape[1] * distance_variance(vectors, norms))


def distance_variance(vectors: np.ndarray, norms: np.ndarray) -> float:
    """Return the sum over pairs of query tokens of ``norm_i * norm_j * max(0, cosine_ij) ** 8``.

    This is the variance of a sum of Hamming distances weighted by norms, divided by the variance of one distance. The
    variances of different tokens add up, but tokens that are nearly the same, such as the ``[MASK]`` tokens of query
    expansion, match the same document tokens, so their distances are correlated.
    """
    norms = np.maximum(norms, np.float32(1e-30))
    directions = vectors / norms[:, None]
    longest = norms.max()  # factored out, since its square can exceed the largest float32
    norms = norms / longest
    total = 0.0
    for first in range(0, len(norms), _COSINE_ROWS):
        rows = slice(first, first + _COSINE_ROWS)
        correlation = np.maximum(directions[rows] @ directions.T, 0) ** _CORRELATION_POWER
        total += float(norms[rows] @ correlation @ norms)
    return total * float(longest) ** 2
