"""How much the sign score of a query varies: the tokens that it is added up for, and the variance by numpy alone."""

from __future__ import annotations

import numpy as np

__all__ = ["product_variance_by_numpy", "variance_rows"]

# Above _MOST_TOKENS tokens, the variance is estimated from _SAMPLED of them, so that its time grows with the tokens and
# not with their square.
_MOST_TOKENS, _SAMPLED = 1024, 512
# Multiples of the golden ratio, modulo 1, are spread evenly, and no period of the tokens coincides with theirs.
_GOLDEN = (5**0.5 - 1) / 2


def variance_rows(tokens: int) -> np.ndarray:
    """Return the tokens that are compared with all others: all of them, or 512 if there are more than 1,024.

    Parameters
    ----------
    tokens
        Number of tokens of the query.

    Examples
    --------
    >>> variance_rows(3), len(variance_rows(70_000))
    (array([0, 1, 2]), 512)
    """
    if tokens <= _MOST_TOKENS:
        return np.arange(tokens)
    return (np.arange(_SAMPLED) * _GOLDEN % 1 * tokens).astype("int64")


def product_variance_by_numpy(vectors: np.ndarray) -> float:
    """Return the sum over pairs of query tokens of ``norm_i * norm_j * max(0, cosine_ij) ** 8``.

    This is the variance of the sum of the tokens' products with signs, divided by the variance of the product of one
    unit vector. The variances of different tokens add up, but tokens that are nearly the same, such as the ``[MASK]``
    tokens of query expansion, match the same document tokens, so their errors are correlated. The power of 8 is below
    0.06 for a cosine below 0.7. Of more than 1,024 tokens, 512 are compared with all, for an estimate.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.

    Examples
    --------
    >>> same = np.ones((2, 1))
    >>> product_variance_by_numpy(np.eye(2)), product_variance_by_numpy(same)
    (2.0, 4.0)
    """
    longest = float(np.abs(vectors).max(initial=0)) or 1.0  # factored out: its square can exceed the largest float32
    scaled = vectors / np.float32(longest)
    norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    directions = scaled / np.maximum(norms, np.float32(1e-30))[:, None]
    rows = variance_rows(len(vectors))
    correlation = np.maximum(directions[rows] @ directions.T, 0)
    for _ in range(3):  # to the power of 8
        correlation *= correlation
    return float(norms[rows] @ correlation @ norms) * longest**2 * len(vectors) / len(rows)
