"""`top_k`: the documents with the highest scores for each query, found block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from latelier.scores.engines.choice import Backend, choose_engine
from latelier.scores.inputs import read_sides
from latelier.scores.topk import TopK
from latelier.utils import check_count

__all__ = ["top_k"]

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
