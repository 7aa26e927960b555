"""Which sign codes are scored, and how far they may rank a document too low that is among the best."""

from __future__ import annotations

import math

import numpy as np

from latelier.indexes.ivf.kernels.product_variance import product_variance
from latelier.indexes.ivf.product_variance import variance_rows
from latelier.indexes.ivf.search_parameters import SearchParameters

__all__ = ["sign_passes", "tolerance"]

# The words of 32 dims that are scored first, if there are half as many more and at least _MANY documents.
_FIRST_WORDS, _MANY = 4, 300
# At most so many words are scored, so that the sums of the kernel fit 16 bits: 8,192 dims.
_MOST_WORDS = 256
# Standard deviation of the product of a unit vector with the signs of another, given their cosine. Each number of the
# other explains a part of its sign: for independent normal numbers it is sqrt(1 - 2 / pi) = 0.6, and somewhat more for
# real vectors. If only some dims are scored, the cosine of all says less about them: that of independent signs is 1.
_DEVIATION, _PART_DEVIATION = 0.7, 1.0


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
    >>> cases = [(4, 1000), (6, 1000), (12, 1000), (12, 200)]
    >>> tuple(sign_passes(*case) for case in cases)
    ((4,), (4, 6), (4, 12), (12,))
    """
    words = min(words, _MOST_WORDS)
    return (_FIRST_WORDS, words) if 2 * words >= 3 * _FIRST_WORDS and documents >= _MANY else (words,)


def tolerance(vectors: np.ndarray, words: int, parameters: SearchParameters) -> float:
    """Return the largest distance below the k-th best score at which a document is still kept.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32: the query.
    words
        Words of sign codes that were scored.
    parameters
        Of which `slack` is used.
    """
    tokens, dim = vectors.shape
    scored = min(dim, 32 * words)
    deviation = _DEVIATION if scored == dim else _PART_DEVIATION
    return parameters.slack * deviation * math.sqrt(product_variance(vectors, scored, variance_rows(tokens)))
