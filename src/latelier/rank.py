"""Rerank.

Arguments and results have PyLate's names. Each query is scored against its own candidates without padding, so negative
similarities stay negative; padding with zeros would raise them to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from latelier.arrays import as_matrices, as_tensor, is_array
from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError
from latelier.indexes import Hit
from latelier.scores import colbert_scores
from latelier.utils import check_count, count_entries, resolve_device

__all__ = ["rerank"]

_PER_QUERY = "a list with an entry for each query"


def rerank(
    documents_ids: Sequence[Sequence[str | int]],
    queries_embeddings: Any,
    documents_embeddings: Sequence[Any],
    k: int | None = None,
    *,
    device: str | torch.device | None = None,
) -> list[list[Hit]]:
    """Order each query's candidates by their MaxSim score.

    Parameters
    ----------
    documents_ids
        One list of ids per query. The lists may differ in length; for an empty list, the result is empty.
    queries_embeddings
        `TokenEmbeddings`, a list of ``(tokens, dim)`` matrices, padded ``(queries, tokens, dim)``, or one matrix for
        one query.
    documents_embeddings
        The embeddings of each query's candidates, in the order of their ids: `TokenEmbeddings`, a list of
        ``(tokens, dim)`` matrices, or padded ``(candidates, tokens, dim)``, where zero rows are padding.
    k
        Return the best `k` candidates of each query; None returns all.
    device
        Where to compute; None: the device of the documents.

    Returns
    -------
    list of list of Hit
        ``(id, score)``, best first; candidates of equal score keep their order. ``hit["id"]`` and ``hit["score"]``
        work too.

    Raises
    ------
    InvalidArgumentError
        If the numbers of queries, ids and embeddings differ, or the device is missing.
    EmbeddingsError
        If a candidate has no tokens, vectors hold NaN or infinity, or the shapes do not fit together.

    Examples
    --------
    >>> import numpy as np
    >>> queries = [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])]
    >>> a, b = np.array([[0.5, 0.5]]), np.array([[1.0, -2.0]])
    >>> rerank([["a", "b"], ["b"]], queries, [[a, b], [b]])
    [[Hit(id='b', score=1.0), Hit(id='a', score=0.5)], [Hit(id='b', score=-2.0)]]
    """
    if isinstance(k, (str, torch.device)):  # PyLate's fourth argument
        raise InvalidArgumentError(f"received k={str(k)!r}; a device is given as device=...")
    check_count("k", k, optional=True)
    target = None if device is None else resolve_device(device)
    if is_array(queries_embeddings) and queries_embeddings.ndim == 2:
        queries_embeddings = [queries_embeddings]
    counts = (
        count_entries(documents_ids, "documents_ids", _PER_QUERY),
        count_entries(queries_embeddings, "queries_embeddings", _PER_QUERY),
        count_entries(documents_embeddings, "documents_embeddings", _PER_QUERY),
    )
    if len(set(counts)) > 1:
        raise InvalidArgumentError(
            f"received {counts[0]} lists of ids, {counts[1]} queries and {counts[2]} lists of document embeddings; "
            "expected one of each per query."
        )
    triples = zip(documents_ids, queries_embeddings, documents_embeddings, strict=True)
    return [_rank(i, ids, query, documents, target, k) for i, (ids, query, documents) in enumerate(triples)]


def _move(documents: Any, device: torch.device | None) -> Any:
    if device is None:
        return documents
    if isinstance(documents, TokenEmbeddings):
        return documents.to(device)
    if is_array(documents):
        return as_tensor(documents).to(device)
    return [as_tensor(matrix).to(device) for matrix in as_matrices(documents)]


def _rank(i: int, ids: Any, query: Any, documents: Any, device: torch.device | None, k: int | None) -> list[Hit]:
    counts = count_entries(ids, f"documents_ids[{i}]"), count_entries(documents, f"documents_embeddings[{i}]")
    if counts[0] != counts[1]:
        raise InvalidArgumentError(
            f"query {i} has {counts[0]} candidate ids and {counts[1]} document embeddings; expected one per id."
        )
    if not counts[0]:
        return []
    # A query given as nested lists is one matrix.
    queries = query if is_array(query) else [query]
    scores = colbert_scores(queries, _move(documents, device))[0].detach().cpu().numpy()
    if len(scores) != counts[0]:
        raise EmbeddingsError(
            f"documents_embeddings[{i}] holds {len(scores)} documents; expected {counts[0]}, one matrix per id."
        )
    if not bool(_as_tensor(query).isfinite().all()):
        raise EmbeddingsError(f"query {i} holds NaN or infinity; check the model that encoded it.")
    # Not all numbers of all candidates: reading them takes half as long as scoring them.
    if not np.isfinite(scores).all():
        j = int(np.argmin(np.isfinite(scores)))
        raise EmbeddingsError(f"candidate {ids[j]!r} of query {i} {_why_without_score(documents[j])}")
    best = np.argsort(-scores, kind="stable")[:k]
    return [Hit(ids[j], float(scores[j])) for j in best]


def _why_without_score(document: Any) -> str:
    matrix = _as_tensor(document)
    if not bool(matrix.isfinite().all()):
        return "holds NaN or infinity; check the model that encoded it."
    if not bool(matrix.any()):  # without padding, nothing is left
        return "has no tokens, so it has no score."
    return "has a score beyond the range of float32; normalise the vectors."


def _as_tensor(matrix: Any) -> torch.Tensor:
    return as_tensor(matrix if is_array(matrix) else np.asarray(matrix, dtype="float32"))
