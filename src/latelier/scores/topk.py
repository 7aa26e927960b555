"""TopK, align.

Blocks are scored in the order of the documents and sorting is stable, so documents of equal score keep that order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.arrays import is_tensor
from latelier.errors import EmbeddingsError


class TopK:
    """The k best documents of each query so far.

    `k`: number of documents to keep for each query.
    """

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.scores = [np.zeros(0, dtype="float32")] * queries
        self.row_ids = [np.zeros(0, dtype="int64")] * queries

    def add(self, scores: np.ndarray, row_ids: np.ndarray) -> None:
        """Merge the scores of a block of documents.

        `scores`: ``(queries, documents)``. `row_ids`: ``(documents,)`` int64: of the documents. Among equal
        scores, those added first stay first.
        """
        # NaN in the embeddings gives NaN scores, which cannot be sorted: they are replaced by minus infinity.
        for query, row in enumerate(np.fmax(scores, np.float32(-np.inf))):
            kept = self.scores[query]
            if len(kept) == self.k:
                # Only higher scores matter: of equal scores the earlier document stays.
                candidates = np.flatnonzero(row > kept[-1])
                if not len(candidates):
                    continue
            else:
                candidates = np.arange(len(row))
            candidates = candidates[_best(row[candidates], self.k)]
            merged = np.concatenate([kept, row[candidates]])
            order = np.argsort(-merged, kind="stable")[: self.k]
            self.scores[query] = merged[order]
            self.row_ids[query] = np.concatenate([self.row_ids[query], row_ids[candidates]])[order]


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k highest scores, ascending; among scores equal to the k-th, the first are taken."""
    if len(scores) <= k:
        return np.arange(len(scores))
    edge = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > edge)
    return np.sort(np.concatenate([above, np.flatnonzero(scores == edge)[: k - len(above)]]))


class Alignment(NamedTuple):
    """Best document token of each query token.

    Its ``positions (q,)`` int64, their ``similarities (q,)`` float32, and the ``matrix (q, n)`` float32 of all.
    """

    positions: np.ndarray
    similarities: np.ndarray
    matrix: np.ndarray


def align(query: Any, document: Any) -> Alignment:
    """Find the document token with the highest similarity for each query token.

    `query`: ``(q, dim)``, numpy or torch, of any floating dtype. `document`: ``(n, dim)``, with at least one token.
    Returns: of equal similarities, the first token is taken. The similarities sum to the MaxSim score.
    """
    rows, columns = _matrix(query), _matrix(document)
    if not len(columns):
        raise EmbeddingsError("the document has no token, so there is nothing to align the query with.")
    matrix = rows @ columns.T
    return Alignment(matrix.argmax(axis=1), matrix.max(axis=1), matrix)


def _matrix(value: Any) -> np.ndarray:
    array = value.detach().cpu().float().resolve_neg().numpy() if is_tensor(value) else np.asarray(value)
    return array.astype("float32", copy=False)
