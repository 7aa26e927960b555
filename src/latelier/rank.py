"""`rerank`: orders documents that any search has found, without an index.

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
from latelier.indexes.results import in_order
from latelier.scores import colbert_scores
from latelier.utils import resolve_device
from latelier.utils.checks import check_count

__all__ = ["rerank"]


def rerank(
    documents_ids: Sequence[Any],
    queries_embeddings: Any,
    documents_embeddings: Sequence[Any],
    k: int | None = None,
    *,
    device: str | torch.device | None = None,
) -> list[Any]:
    """Order each query's candidates by their MaxSim score.

    Parameters
    ----------
    documents_ids
        The candidates of each query: a list of ids, or of dicts with an id and what else belongs to them, or a data
        frame of pandas. They may differ in number; for an empty list, the result is empty.
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
    list
        For each query its candidates, best first; those of equal score keep their order. Ids come back as `Hit`,
        ``(id, score)``, also ``hit["id"]``; dicts with their ``"score"``; of a data frame the rows, with a column
        ``score``, and ``rank`` counted anew from 0 if it has one.

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
    >>> found = [{"id": "a", "year": 1990}, {"id": "b", "year": 2020}]
    >>> rerank([found], queries[:1], [[a, b]], k=1)
    [[{'id': 'b', 'year': 2020, 'score': 1.0}]]
    """
    check_count("k", k, optional=True)
    target = None
    if device is not None:
        target = resolve_device(device)
    if is_array(queries_embeddings) and queries_embeddings.ndim == 2:
        queries_embeddings = [queries_embeddings]
    counts = len(documents_ids), len(queries_embeddings), len(documents_embeddings)
    if len(set(counts)) > 1:
        raise InvalidArgumentError(
            f"received {counts[0]} lists of ids, {counts[1]} queries and {counts[2]} lists of document embeddings; "
            "expected one of each per query."
        )
    triples = zip(documents_ids, queries_embeddings, documents_embeddings, strict=True)
    return [_rank(i, ids, query, documents, target, k) for i, (ids, query, documents) in enumerate(triples)]


def _rank(i: int, ids: Any, query: Any, documents: Any, device: torch.device | None, k: int | None) -> Any:
    if not hasattr(ids, "iloc"):
        ids = list(ids)
    if len(ids) != len(documents):
        raise InvalidArgumentError(
            f"query {i} has {len(ids)} candidate ids and {len(documents)} document embeddings; expected one per id."
        )
    if not len(ids):
        return in_order(ids, [], [])
    if device is not None and isinstance(documents, TokenEmbeddings):
        documents = documents.to(device)
    elif device is not None:
        made = None
        if is_array(documents):
            made = as_tensor(documents)
        if made is None:
            documents = [as_tensor(each).to(device) for each in as_matrices(documents)]
        else:
            documents = made.to(device)
    if not is_array(query):  # nested lists, which are one matrix
        query = np.asarray(query, dtype="float32")
    scores = colbert_scores(query, documents)[0].detach().cpu().numpy()
    if not bool(as_tensor(query).isfinite().all()):
        raise EmbeddingsError(f"query {i} holds NaN or infinity; check the model that encoded it.")
    # Not all numbers of all candidates: reading them takes half as long as scoring them.
    if not np.isfinite(scores).all():
        j = int(np.argmin(np.isfinite(scores)))
        matrix = documents[j]
        if not np.isfinite(as_tensor(matrix if is_array(matrix) else np.asarray(matrix)).cpu().numpy()).all():
            why = "holds NaN or infinity; check the model that encoded it"
        else:
            why = "has no tokens, or a score beyond the range of float32; normalise the vectors"
        name = j if hasattr(ids, "iloc") else ids[j]
        raise EmbeddingsError(f"candidate {name!r} of query {i} {why}.")
    best = np.argsort(-scores, kind="stable")[:k].tolist()
    return in_order(ids, best, [float(scores[j]) for j in best])
