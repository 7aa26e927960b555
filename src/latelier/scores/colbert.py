"""MaxSim, the score of late interaction, in the three shapes that retrieval and training need.

``score(q, d) = sum over query tokens i of max over document tokens j of <q_i, d_j>`` (Khattab and Zaharia, 2020,
ColBERT, https://arxiv.org/abs/2004.12832). A masked document token is minus infinity before the maximum, so it never
wins, not even against negative similarities (PyLate multiplies by the mask, which lets padding score 0); a masked
query token adds exactly 0. A document without any real token scores minus infinity.

A text with NaN in its vectors scores NaN with ``backend="torch"``, and with ``"packed"`` where the scores need a
gradient. Other kernels do not look for NaN: the text may score any number, minus infinity or NaN.
"""

from __future__ import annotations

from typing import Any

import torch

from latelier.scores.engines.choice import Backend, choose_engine
from latelier.scores.inputs import check_pairs, documents_per_query, read_sides

__all__ = ["colbert_kd_scores", "colbert_scores", "colbert_scores_pairwise"]


def colbert_scores(
    queries_embeddings: Any,
    documents_embeddings: Any,
    queries_mask: Any = None,
    documents_mask: Any = None,
    *,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Score every query against every document.

    Parameters
    ----------
    queries_embeddings
        Padded ``(q, query_tokens, dim)``, numpy or torch; or a list of ``(tokens, dim)`` matrices; or
        `TokenEmbeddings`; or one ``(tokens, dim)`` matrix.
    documents_embeddings
        The same forms for ``d`` documents; or groups, ``(d, n, document_tokens, dim)`` or a list of lists.
    queries_mask, documents_mask
        ``(q, query_tokens)`` and ``(d, document_tokens)`` or ``(d, n, document_tokens)``, true (or 1) where a token
        counts, in any pattern. Without a mask, rows of zeros in a padded input are padding.
    backend
        ``"auto"``; ``"packed"`` (CPU, no padding computed, differentiable); ``"int8"`` (CPU, integer products, the
        choice for int8 documents; float inputs are quantised); ``"fused"`` (CUDA, no padding computed, differentiable,
        needs Triton, which torch's CUDA builds for Linux bring, elsewhere the extra 'gpu'); ``"torch"`` (any device,
        differentiable).

    Returns
    -------
    torch.Tensor
        ``(q, d)`` float32, on the documents' device. With groups ``(q, d * n)``, where ``scores[i, j * n + m]`` is
        query ``i`` against document ``m`` of group ``j``: the same order as in PyLate and sentence-transformers.

    Raises
    ------
    EmbeddingsError
        If shapes, dims or masks do not fit together.
    MissingExtraError
        If the backend is ``"fused"`` and its kernels are not installed.

    Examples
    --------
    >>> import torch
    >>> queries = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> first, second = [[0.5, 0.0], [0.0, 0.5]], [[-0.5, 0.0], [9.0, 9.0]]
    >>> mask = torch.tensor([[1, 1], [1, 0]])
    >>> colbert_scores(queries, torch.tensor([first, second]), documents_mask=mask)
    tensor([[ 1.0000, -0.5000]])
    """
    queries, documents = read_sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    return choose_engine(backend, queries, documents).all_pairs(queries, documents)


def colbert_scores_pairwise(
    queries_embeddings: Any,
    documents_embeddings: Any,
    queries_mask: Any = None,
    documents_mask: Any = None,
    *,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Score query ``i`` against document ``i``.

    Parameters
    ----------
    queries_embeddings, documents_embeddings
        ``n`` texts each, in any of the forms that `colbert_scores` takes.
    queries_mask, documents_mask
        ``(n, query_tokens)`` and ``(n, document_tokens)``.
    backend
        As in `colbert_scores`.

    Returns
    -------
    torch.Tensor
        ``(n,)`` float32.

    Raises
    ------
    EmbeddingsError
        If there are not as many documents as queries.

    Examples
    --------
    >>> queries = [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0]]]
    >>> documents = [[[0.5, 0.25]], [[-1.0, 0.0], [0.25, 0.0]]]
    >>> colbert_scores_pairwise(queries, documents)
    tensor([0.7500, 0.2500])
    """
    queries, documents = read_sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    check_pairs(queries, documents)
    return choose_engine(backend, queries, documents).grouped(queries, documents).flatten()


def colbert_kd_scores(
    queries_embeddings: Any,
    documents_embeddings: Any,
    queries_mask: Any = None,
    documents_mask: Any = None,
    *,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Score each query against its own ``n`` documents, for knowledge distillation.

    Parameters
    ----------
    queries_embeddings
        ``b`` queries in any of the forms that `colbert_scores` takes.
    documents_embeddings
        ``(b, n, document_tokens, dim)``, or a list of ``b`` lists of ``n`` matrices, or ``b * n`` packed documents, the
        ``n`` of the first query first.
    queries_mask, documents_mask
        ``(b, query_tokens)`` and ``(b, n, document_tokens)``.
    backend
        As in `colbert_scores`.

    Returns
    -------
    torch.Tensor
        ``(b, n)`` float32.

    Raises
    ------
    EmbeddingsError
        If the queries do not all have the same number of documents.

    Examples
    --------
    >>> import torch
    >>> queries = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> of_first = [[[1.0, 0.0]], [[0.5, 0.0]]]
    >>> of_second = [[[0.0, -1.0]], [[0.0, 0.25]]]
    >>> colbert_kd_scores(queries, torch.tensor([of_first, of_second]))
    tensor([[ 1.0000,  0.5000],
            [-1.0000,  0.2500]])
    """
    queries, documents = read_sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    documents_per_query(queries, documents)
    return choose_engine(backend, queries, documents).grouped(queries, documents)
