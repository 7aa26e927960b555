"""The binary stage of a query: documents are compared by the signs of their vectors.

The dot product of a unit vector with the signs of another is about ``0.8 * sqrt(dim)`` times their cosine. MaxSim of
these products ranks documents well enough to discard nearly all before their codes are read, and is more precise than
Hamming distances (Gao and Long, 2024, *RaBitQ*).

Four signs have only sixteen values, so a product is a sum of lookups in tables, one for every four dims, and one
instruction looks up 16 to 64 document tokens (Andre et al., 2017, *Accelerated nearest neighbor search with Quick
ADC*). For that, the bits of 32 tokens are transposed first.
"""

from __future__ import annotations

from ctypes import addressof

import numpy as np

from latelier.indexes.ivf.kernels.codes import DOCUMENTS, succeeded, token_signs
from latelier.indexes.ivf.layout import CodedDocuments, CodeShape
from latelier.kernels.library import NUMPY, Kernel, instruction_set

# Neighbouring dims whose absolute integers add up to at most 15: all sums of their products with signs fit five bits.
# Rounding adds at most half a unit to the absolute value of each.
_GROUP = 4
_ROOM = 15.5 - _GROUP / 2
_LARGEST = float(np.finfo(np.float32).max)

_sign_scores = Kernel("sign_scores", *DOCUMENTS, "int64*", "int64", "int64", "float32*", "int64", "int64", "float32*")


def sign_scores(
    documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape, vectors: np.ndarray, words: int, scores: np.ndarray
) -> None:
    """Write the MaxSim of a query, rounded to small integers, and the signs of some documents, up to a constant.

    `chosen`: ``(n,)`` int64: documents to score, with at least one token each. `vectors`: ``(tokens, dim)`` float32, of
    which the first ``32 * words`` dims are scored. `scores`: ``(n,)`` float32, written: ``sum over query tokens of unit
    * largest sum of (integer * sign + abs(integer))``; minus infinity where it is not finite. The unit of a query token
    is its largest sum of four neighbouring absolute numbers / 13.5, and its integers are its numbers / unit, rounded.
    """
    if instruction_set() == NUMPY:
        scores[:] = sign_scores_plainly(documents, chosen, shape, vectors, words)
        return
    query = vectors, len(vectors), words
    succeeded(_sign_scores(*documents, chosen, len(chosen), addressof(shape), *query, scores))


def sign_scores_plainly(
    documents: CodedDocuments, chosen: np.ndarray, shape: CodeShape, vectors: np.ndarray, words: int
) -> np.ndarray:
    """`sign_scores` in numpy; returns the scores."""
    dims = min(shape.dim, 32 * words)
    units = sign_units(vectors[:, :dims])
    integers = np.floor(vectors[:, :dims] / np.maximum(units, 1e-300)[:, None] + 0.5)
    most = np.abs(integers).sum(axis=1)
    units = np.minimum(units, _LARGEST).astype("float32")
    scores = np.empty(len(chosen), dtype="float32")
    for n, d in enumerate(chosen.tolist()):
        signs = np.where(token_signs(documents, d, shape)[:, :dims], 1.0, -1.0)
        highest = (signs @ integers.T).max(axis=0) + most
        with np.errstate(over="ignore"):
            scores[n] = np.float32(0) + (units * highest.astype("float32")).sum(dtype="float32")
    return np.where(scores < np.inf, scores, -np.inf).astype("float32")


def sign_units(vectors: np.ndarray) -> np.ndarray:
    """Return the unit of each query token, ``(tokens,)`` float64."""
    sizes = np.abs(vectors.astype("float64"))
    return np.add.reduceat(sizes, np.arange(0, sizes.shape[1], _GROUP), axis=1).max(axis=1, initial=0) / _ROOM
