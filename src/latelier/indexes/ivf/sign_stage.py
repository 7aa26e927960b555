"""The sign stage of a search: selects the documents that may be among the best, by their sign codes alone.

With many dims, the first 128 are scored first, which excludes most documents in a fraction of the time.
"""

from __future__ import annotations

import math

import numpy as np

from latelier.indexes.ivf.codec import SIGNS
from latelier.indexes.ivf.document_table import DocumentTable
from latelier.indexes.ivf.kernels.product_variance import product_variance
from latelier.indexes.ivf.kernels.selection import highest_places, near_highest
from latelier.indexes.ivf.kernels.sign_integers import round_to_integers
from latelier.indexes.ivf.kernels.sign_scores import sign_scores
from latelier.indexes.ivf.kernels.sign_tables import make_sign_tables
from latelier.indexes.ivf.product_variance import variance_rows
from latelier.indexes.ivf.search_parameters import SearchParameters
from latelier.kernels.instruction_sets import instruction_set

__all__ = ["keep_best", "keep_by_signs", "keep_near_best", "sign_passes", "tolerance"]

# The words of 32 dims that are scored first, if there are half as many more and at least _MANY documents.
_FIRST_WORDS, _MANY = 4, 300
# At most so many words are scored, so that the sums of the kernel fit 16 bits: 8,192 dims.
_MOST_WORDS = 256
# Standard deviation of the product of a unit vector with the signs of another, given their cosine. Each number of the
# other explains a part of its sign: for independent normal numbers it is sqrt(1 - 2 / pi) = 0.6, and somewhat more for
# real vectors. If only some dims are scored, the cosine of all says less about them: that of independent signs is 1.
_DEVIATION, _PART_DEVIATION = 0.7, 1.0


def keep_by_signs(
    table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray, k: int, parameters: SearchParameters
) -> np.ndarray:
    """Return the documents that may be among the best, those with the highest sign scores first.

    Parameters
    ----------
    table
        The documents.
    chosen
        Ordinals of documents, with at least one token each.
    vectors
        The query, ``(tokens, dim)`` float32.
    k
        Number of hits of the search.
    parameters
        With `rerank`, so many documents are kept; otherwise those within `slack` standard deviations.
    """
    *first, words = sign_passes(table.codec.shape.sign_words, len(chosen))
    for some in first:
        scores = _score(table, chosen, vectors, some)
        chosen = keep_near_best(chosen, scores, parameters.rerank or k, tolerance(vectors, some, parameters))
    scores = _score(table, chosen, vectors, words)
    everything = np.arange(len(chosen))
    if parameters.rerank is not None:
        kept = keep_best(everything, scores, parameters.rerank)
    else:
        kept = keep_near_best(everything, scores, k, tolerance(vectors, words, parameters))
    return chosen[kept[np.argsort(-scores[kept], kind="stable")]]


def _score(table: DocumentTable, chosen: np.ndarray, vectors: np.ndarray, words: int) -> np.ndarray:
    """Return the sign scores of documents, by some words of their sign codes, float32."""
    integers, units = round_to_integers(vectors, words)
    scores, row_bytes = np.empty(len(chosen), dtype="float32"), 4 * table.codec.shape.sign_words
    isa, query = instruction_set().argument, (make_sign_tables(integers), units)
    for some, documents, places in table.windows(chosen, SIGNS):
        sign_scores(isa, tuple(documents), places, row_bytes, query, scores[some])
    return scores


def keep_best(chosen: np.ndarray, scores: np.ndarray, most: int) -> np.ndarray:
    """Return the `most` documents with the highest scores, in the given order; among equal lowest ones, the first."""
    if len(chosen) <= most:
        return chosen
    kept = np.empty(most, dtype="int64")
    highest_places(scores, kept)
    return chosen[kept]


def keep_near_best(chosen: np.ndarray, scores: np.ndarray, k: int, tolerance: float) -> np.ndarray:
    """Return the documents with ``score >= k-th best score - tolerance``, in the given order.

    Parameters
    ----------
    chosen
        ``(documents,)`` int64.
    scores
        ``(documents,)`` float32, no NaN.
    k
        At least 1.
    tolerance
        Not negative.

    Examples
    --------
    >>> scores = np.array([1.0, 3.0, 2.5], dtype="float32")
    >>> keep_near_best(np.array([7, 8, 9]), scores, 1, 0.75)
    array([8, 9])
    """
    kept = np.empty(len(chosen), dtype="int64")
    return chosen[kept[: near_highest(scores, min(k, len(chosen)), tolerance, kept)]]


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
