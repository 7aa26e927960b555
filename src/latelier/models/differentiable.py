"""Token vectors and scores of texts with gradients, for training loops written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import trange

from latelier.errors import InvalidArgumentError
from latelier.models.inputs import check_text_pairs
from latelier.models.lengths import max_length
from latelier.scores import colbert_scores_pairwise
from latelier.utils import check_count
from latelier.utils.checks import describe
from latelier.utils.features import move_features

__all__ = ["embed_texts", "score_pairs"]


def embed_texts(model: Any, texts: str | Iterable[str], task: str, *, truncation: bool = True) -> Tensor:
    """Return token vectors ``(n, max_length, dim)``; rows of padding and of tokens that are not scored are zero.

    Parameters
    ----------
    model
        A `ColBERT`; its `truncate_dim` applies.
    texts
        One text or many.
    task
        ``"query"`` or ``"document"``.
    truncation
        As in `ColBERT.encode`.
    """
    length = max_length(model, task)
    if not isinstance(texts, Iterable):
        raise InvalidArgumentError(f"received {describe(texts)}; expected texts, or features from tokenize(...).")
    features = model.tokenize(texts if isinstance(texts, str) else list(texts), task=task, truncation=truncation)
    if not features:
        dim = model.truncate_dim or model.get_embedding_dimension() or 0
        return torch.zeros(0, length, int(dim), device=model.device)
    vectors, mask = _token_vectors(model, features)
    vectors = vectors * mask.unsqueeze(-1)
    return nn.functional.pad(vectors, (0, 0, 0, max(length - vectors.shape[1], 0)))


def score_pairs(
    model: Any,
    queries: Sequence[str],
    documents: Sequence[str],
    batch_size: int,
    show_progress_bar: bool,
) -> Tensor:
    """Return the score of query ``i`` against document ``i``, ``(n,)`` float32; `truncate_dim` applies."""
    queries, documents = check_text_pairs(queries, documents)
    check_count("batch_size", batch_size)
    batches = []
    for start in trange(0, len(queries), batch_size, desc="Scoring pairs", disable=not show_progress_bar):
        pairs = slice(start, start + batch_size)
        query_vectors, queries_mask = _token_vectors(model, model.preprocess(queries[pairs], task="query"))
        document_vectors, documents_mask = _token_vectors(model, model.preprocess(documents[pairs], task="document"))
        batches.append(
            colbert_scores_pairwise(query_vectors, document_vectors, queries_mask, documents_mask, backend="torch")
        )
    return torch.cat(batches) if batches else torch.zeros(0, device=model.device)


def _token_vectors(model: Any, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return vectors ``(n, tokens, dim)`` and the bool mask ``(n, tokens)`` of those that are scored."""
    out = model.forward(move_features(features, model.device))
    vectors, mask = out["token_embeddings"], out["attention_mask"].bool()
    if model.truncate_dim is not None:
        vectors = nn.functional.normalize(vectors[..., : model.truncate_dim], dim=-1)
    return vectors, mask
