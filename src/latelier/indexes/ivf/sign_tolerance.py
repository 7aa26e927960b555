"""Which sign codes are scored, and how far they may rank a document too low that is among the best."""

from __future__ import annotations

import math

import numpy as np

from latelier.indexes.ivf.search_parameters import SearchParameters

__all__ = ["product_variance", "sign_passes", "tolerance"]

# The words of 32 dims that are scored first, if there are at least twice as many and at least _MANY documents.
_FIRST_WORDS, _MANY = 4, 300
# At most so many words are scored, so that the sums of the kernel fit 16 bits: 8,192 dims.
_MOST_WORDS = 256
# Standard deviation of the product of a unit vector with the signs of another, given their cosine. Each number of the
# other explains a part of its sign: for independent normal numbers it is sqrt(1 - 2 / pi) = 0.6, and somewhat more for
# real vectors. If only some dims are scored, the cosine of all says less about them: that of independent signs is 1.
_DEVIATION, _PART_DEVIATION = 0.7, 1.0
# Rows of the matrix of cosines between query tokens that are computed at a time; limits the memory of long queries.
_COSINE_ROWS = 1024


def sign_passes(words: int, documents: int) -> tuple[int, ...]:
    """Return how many words of the sign codes are scored, first of all documents, then of those that this leaves.

    Parameters
    ----------
    words
        Words of 32 dims of a sign code.
    documents
        Number of documents.

    Examples
    --------
    >>> sign_passes(4, 1000), sign_passes(12, 1000), sign_passes(12, 200)
    ((4,), (4, 12), (12,))
    """
    words = min(words, _MOST_WORDS)
    return (_FIRST_WORDS, words) if words >= 2 * _FIRST_WORDS and documents >= _MANY else (words,)


def tolerance(vectors: np.ndarray, words: int, parameters: SearchParameters) -> float:
    """Return how far below the k-th best score a document may be that is scored further.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32: the query.
    words
        Words of sign codes that were scored.
    parameters
        Of which `slack` is used.
    """
    scored = vectors[:, : 32 * words]
    deviation = _DEVIATION if scored.shape[1] == vectors.shape[1] else _PART_DEVIATION
    return parameters.slack * deviation * math.sqrt(product_variance(scored))


def product_variance(vectors: np.ndarray) -> float:
    """Return the sum over pairs of query tokens of ``norm_i * norm_j * max(0, cosine_ij) ** 8``.

    This is the variance of the sum of the tokens' products with signs, divided by the variance of the product of one
    unit vector. The variances of different tokens add up, but tokens that are nearly the same, such as the ``[MASK]``
    tokens of query expansion, match the same document tokens, so their errors are correlated. The power of 8 is below
    0.06 for a cosine below 0.7.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.

    Examples
    --------
    >>> product_variance(np.eye(2)), product_variance(np.ones((2, 1)))
    (2.0, 4.0)
    """
    longest = float(np.abs(vectors).max(initial=0)) or 1.0  # factored out: its square can exceed the largest float32
    scaled = vectors / np.float32(longest)
    norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    directions = scaled / np.maximum(norms, np.float32(1e-30))[:, None]
    total = 0.0
    for first in range(0, len(norms), _COSINE_ROWS):
        rows = slice(first, first + _COSINE_ROWS)
        correlation = np.maximum(directions[rows] @ directions.T, 0)
        for _ in range(3):  # to the power of 8
            correlation *= correlation
        total += float(norms[rows] @ correlation @ norms)
    return total * longest**2
