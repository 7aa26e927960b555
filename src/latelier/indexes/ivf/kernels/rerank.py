"""Reranking: MaxSim of document codes with a query, whose numbers are taken in 8 bits, then in single precision.

The products in 8 bits are wrong by a bounded amount, so only few document tokens can have the highest product with a
query token, and only these are multiplied with all digits of its numbers: first the one with the highest product in 8
bits, then those that may exceed it. The scores in single precision are those of all products with all digits, and equal
for all instruction sets. They are computed for the documents with the best scores in 8 bits, while the products in 8
bits are at hand.
"""

from __future__ import annotations

from ctypes import addressof

import numpy as np

from latelier.indexes.ivf.kernels.codes import DOCUMENTS, succeeded, unpack_plainly
from latelier.indexes.ivf.layout import CodedDocuments, CodeShape
from latelier.kernels.library import NUMPY, Kernel, instruction_set

_rerank = Kernel(
    "rerank_scores",
    *(*DOCUMENTS, "int64*", "int64", "int64", "float32*", "float32*", "int64", "float32*", "int64", "float32*"),
)
# The rest of a query token is taken to be at least so long, beside its lead: a smaller one adds nothing to a score.
_LEAST_REST = np.float32(2**-24)


def rerank_scores(
    documents: CodedDocuments,
    chosen: np.ndarray,
    shape: CodeShape,
    vectors: np.ndarray,
    leads: np.ndarray,
    highest: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Write the MaxSim of the chosen documents' codes with one query in 8 bits, and of the best in single precision.

    `chosen`: ``(n,)`` int64: documents to score. The earlier the best ones come, the fewer others are scored twice.
    `vectors`: ``(tokens, dim)`` float32: the rotated rests of the query; `leads`: ``(tokens,)`` float32. `highest`:
    ``(most,)`` float32, minus infinity before the first call for a query: the highest scores in 8 bits so far. A
    document is scored in single precision if its score in 8 bits is among them. With `most` 0, all are. `scores`: ``(n,
    2)`` float32, written: in 8 bits, and in single precision, NaN if the document is not scored so. Minus infinity for
    a document without tokens.
    """
    if instruction_set() == NUMPY:
        scores[:] = rerank_plainly(documents, chosen, shape, vectors, leads, highest)
        return
    query = vectors, leads, len(vectors)
    some = chosen, len(chosen), addressof(shape)
    succeeded(_rerank(*documents, *some, *query, highest, len(highest), scores))


def rerank_plainly(
    documents: CodedDocuments,
    chosen: np.ndarray,
    shape: CodeShape,
    vectors: np.ndarray,
    leads: np.ndarray,
    highest: np.ndarray,
) -> np.ndarray:
    """`rerank_scores` in numpy; returns the scores."""
    scales, rounded = round_query(vectors, leads)
    scores = np.full((len(chosen), 2), np.nan, dtype="float32")
    for n, d in enumerate(chosen):
        found = unpack_plainly(documents, np.array([d]), shape)
        rests = (found.rows[:, : shape.dim].astype("float64") - 128) * found.scales[:, None]
        scores[n, 0] = _maxsim(rounded * scales[:, None], leads, rests, found.leads)
        if len(highest) and scores[n, 0] < highest.min():
            continue
        if len(highest):
            highest[highest.argmin()] = scores[n, 0]
        scores[n, 1] = _maxsim(np.where(scales[:, None] > 1e-42, vectors, 0), leads, rests, found.leads)
    return scores


def round_query(vectors: np.ndarray, leads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale of each query token, and its numbers as integers of -127 to 127, ``(tokens, dim)`` float64."""
    scales = np.maximum(np.abs(vectors).max(axis=1, initial=0), _LEAST_REST * np.abs(leads)) / np.float32(127)
    inverses = np.where(scales > 1e-42, 1 / np.maximum(scales, np.float32(1e-42)).astype("float64"), 0)
    return scales, np.floor(vectors * inverses[:, None] + 0.5)


def _maxsim(query: np.ndarray, leads: np.ndarray, rests: np.ndarray, own_leads: np.ndarray) -> float:
    if not len(rests):
        return -np.inf
    total = float((query @ rests.T + np.outer(leads, own_leads.astype("float64"))).max(axis=1).sum())
    return total if total == total else -np.inf
