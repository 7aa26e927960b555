"""Token vectors and scores of texts with gradients, for training loops written by hand."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from torch import Tensor, nn
from tqdm import trange

from latelier.scores import colbert_scores_pairwise

__all__ = ["padded_vectors", "score_pairs"]


def padded_vectors(model: MultiVectorEncoder, features: dict[str, Any], length: int) -> Tensor:
    """Return token vectors ``(n, length, dim)``; rows of padding and of tokens that are not scored are zero."""
    if not features:
        return torch.zeros(0, length, int(model.get_embedding_dimension() or 0), device=model.device)
    vectors, mask = _token_vectors(model, features)
    vectors = vectors * mask.unsqueeze(-1)
    return nn.functional.pad(vectors, (0, 0, 0, max(length - vectors.shape[1], 0)))


def score_pairs(
    model: MultiVectorEncoder, queries: list[str], documents: list[str], batch_size: int, show_progress_bar: bool
) -> Tensor:
    """Return the score of each query with the document of the same position, ``(n,)`` float32."""
    batches = []
    for start in trange(0, len(queries), batch_size, desc="Scoring pairs", disable=not show_progress_bar):
        pairs = slice(start, start + batch_size)
        query_vectors, queries_mask = _token_vectors(model, model.preprocess(queries[pairs], task="query"))
        document_vectors, documents_mask = _token_vectors(model, model.preprocess(documents[pairs], task="document"))
        batches.append(
            colbert_scores_pairwise(query_vectors, document_vectors, queries_mask, documents_mask, backend="torch")
        )
    return torch.cat(batches) if batches else torch.zeros(0, device=model.device)


def _token_vectors(model: MultiVectorEncoder, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return vectors ``(n, tokens, dim)`` and the bool mask ``(n, tokens)`` of those that are scored."""
    moved = {key: value.to(model.device) if isinstance(value, Tensor) else value for key, value in features.items()}
    out = model.forward(moved)
    return out["token_embeddings"], out["attention_mask"].bool()
