"""The k best documents of every query, updated while documents are scored block by block.

Blocks are scored in the order of the documents and sorting is stable, so documents of equal score keep that order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from latelier.scores.engines.choice import Backend, choose_engine
from latelier.scores.inputs import read_sides
from latelier.utils import check_count

__all__ = ["TopK", "top_k"]

# Scores of one block: 4M float32 = 16 MiB.
_BLOCK_SCORES = 1 << 22


def top_k(
    queries_embeddings: Any,
    documents_embeddings: Any,
    k: int,
    queries_mask: Any = None,
    documents_mask: Any = None,
    *,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the documents with the highest scores, without holding all scores in memory.

    Parameters
    ----------
    queries_embeddings, documents_embeddings, queries_mask, documents_mask, backend
        As for `colbert_scores`.
    k
        Number of documents to return for each query; all documents if there are fewer.

    Returns
    -------
    tuple of torch.Tensor
        Scores ``(queries, k)`` float32, best first, and the documents' positions ``(queries, k)`` int64, on the CPU
        and without gradient. Of equal scores the earlier document comes first.

    Raises
    ------
    InvalidArgumentError
        If `k` is less than 1.
    EmbeddingsError
        If shapes, dims or masks do not fit together.

    Examples
    --------
    >>> queries = [[[1.0, 0.0]]]
    >>> documents = [[[0.5, 0.0]], [[-1.0, 0.0]], [[0.5, 0.0], [0.75, 0.0]]]
    >>> top_k(queries, documents, k=2)
    (tensor([[0.7500, 0.5000]]), tensor([[2, 0]]))
    """
    check_count("k", k)
    queries, documents = read_sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    engine = choose_engine(backend, queries, documents)
    best = TopK(len(queries), min(int(k), max(len(documents), 1)))
    step = max(1, _BLOCK_SCORES // max(1, len(queries)))
    with torch.no_grad():
        for first in range(0, len(documents), step):
            block = documents.part(first, first + step)
            scores = engine.all_pairs(queries, block).cpu().numpy()
            best.add(scores, np.arange(first, first + len(block)))
    width = min(int(k), len(documents))
    return (
        torch.from_numpy(np.array(best.scores, dtype="float32").reshape(len(queries), width)),
        torch.from_numpy(np.array(best.numbers, dtype="int64").reshape(len(queries), width)),
    )


class TopK:
    """The k best documents of each query so far.

    Parameters
    ----------
    queries
        Number of queries.
    k
        Number of documents to keep for each query.

    Examples
    --------
    >>> best = TopK(queries=1, k=2)
    >>> best.add(np.array([[1.0, 3.0, 1.0]]), np.array([10, 11, 12]))
    >>> best.add(np.array([[2.0, 3.0]]), np.array([13, 14]))
    >>> best.numbers[0], best.scores[0]
    (array([11, 14]), array([3., 3.]))
    """

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.scores = [np.zeros(0, dtype="float32")] * queries
        self.numbers = [np.zeros(0, dtype="int64")] * queries

    def add(self, scores: np.ndarray, numbers: np.ndarray) -> None:
        """Merge the scores of a block of documents.

        Parameters
        ----------
        scores
            ``(queries, documents)``.
        numbers
            ``(documents,)`` int64: the documents' numbers. Among equal scores, those added first stay first.
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
            self.numbers[query] = np.concatenate([self.numbers[query], numbers[candidates]])[order]


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k highest scores, ascending; among scores equal to the k-th, the first are taken."""
    if len(scores) <= k:
        return np.arange(len(scores))
    edge = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > edge)
    return np.sort(np.concatenate([above, np.flatnonzero(scores == edge)[: k - len(above)]]))
