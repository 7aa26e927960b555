"""XTR's score: a query token counts only for the documents whose tokens it retrieves.

With ``A_ij = 1`` where document ``j``'s best token is among the ``top_k`` of all document tokens for query token ``i``,
``score(q, d_j) = sum_i A_ij max_t <q_i, d_jt> / Z_j`` with ``Z_j`` the number of such query tokens (Lee et al., 2023,
XTR, https://arxiv.org/abs/2304.01982, equation 5). A model trained with it learns to retrieve by single tokens. PyLate
divides by the number of *positive* maxima instead, so scores of negative maxima can be a thousand times too large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from latelier.arrays import at_least_float32
from latelier.embeddings import TokenEmbeddings
from latelier.scores.inputs import Side, check_pairs, documents_per_query, read_sides
from latelier.utils import check_count

__all__ = ["xtr_kd_scores", "xtr_scores", "xtr_scores_pairwise"]

# Similarities of one block; 16M float32 = 64 MiB.
_BLOCK_ELEMENTS = 1 << 24


def xtr_scores(
    queries_embeddings: Any,
    documents_embeddings: Any,
    queries_mask: Any = None,
    documents_mask: Any = None,
    *,
    top_k: int = 256,
) -> Tensor:
    """Score every query against every document by the tokens that each query token retrieves.

    Parameters
    ----------
    queries_embeddings, documents_embeddings, queries_mask, documents_mask
        As for `colbert_scores`.
    top_k
        Number of document tokens that each query token retrieves, among those of all documents.

    Returns
    -------
    torch.Tensor
        ``(q, d)`` float32, with gradients; columns in the order of `colbert_scores`. A document of which no token is
        retrieved scores 0, an empty document minus infinity.

    Raises
    ------
    EmbeddingsError
        If shapes, dims or masks do not fit together.
    InvalidArgumentError
        If `top_k` is less than 1.

    Examples
    --------
    >>> import torch
    >>> queries = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> first, second = [[0.5, 0.0], [0.0, 0.75]], [[0.25, 0.0], [-0.5, 0.0]]
    >>> documents = torch.tensor([first, second])
    >>> xtr_scores(queries, documents, top_k=1)
    tensor([[0.6250, 0.0000]])
    >>> xtr_scores(queries, documents, top_k=2)
    tensor([[0.6250, 0.1250]])
    """
    check_count("top_k", top_k)
    queries, documents = read_sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    return _scores(queries, documents, top_k)


def xtr_kd_scores(
    queries_embeddings: Any,
    documents_embeddings: Any,
    queries_mask: Any = None,
    documents_mask: Any = None,
    *,
    top_k: int = 256,
) -> Tensor:
    """Score each query against its own ``n`` documents; tokens are retrieved from all documents of the batch.

    Parameters
    ----------
    queries_embeddings, documents_embeddings, queries_mask, documents_mask
        As for `colbert_kd_scores`.
    top_k
        As for `xtr_scores`.

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
    >>> queries = [[[1.0, 0.0]], [[0.0, 1.0]]]
    >>> of_first = [[[1.0, 0.0]], [[0.5, 0.0]]]
    >>> of_second = [[[0.0, -1.0]], [[0.0, 0.25]]]
    >>> xtr_kd_scores(queries, [of_first, of_second], top_k=2)
    tensor([[1.0000, 0.5000],
            [0.0000, 0.2500]])
    """
    check_count("top_k", top_k)
    queries, documents = read_sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    n = documents_per_query(queries, documents)
    scores = _scores(queries, documents, top_k)
    own = torch.arange(len(documents), device=scores.device).view(len(queries), n)
    return scores.gather(1, own)


def xtr_scores_pairwise(
    queries_embeddings: Any,
    documents_embeddings: Any,
    queries_mask: Any = None,
    documents_mask: Any = None,
    *,
    top_k: int = 256,
) -> Tensor:
    """Score query ``i`` against document ``i``; tokens are retrieved from all documents.

    Parameters
    ----------
    queries_embeddings, documents_embeddings, queries_mask, documents_mask
        As for `colbert_scores_pairwise`.
    top_k
        As for `xtr_scores`.

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
    >>> queries = [[[1.0, 0.0]], [[0.0, 1.0]]]
    >>> documents = [[[0.5, 0.0]], [[0.0, 0.25]]]
    >>> xtr_scores_pairwise(queries, documents, top_k=1)
    tensor([0.5000, 0.2500])
    """
    check_count("top_k", top_k)
    queries, documents = read_sides(queries_embeddings, documents_embeddings, queries_mask, documents_mask)
    check_pairs(queries, documents)
    return _scores(queries, documents, top_k).diagonal()


def _scores(query_side: Side, document_side: Side, top_k: int) -> Tensor:
    queries, documents = query_side.packed, document_side.packed
    device = documents.device
    left, right = (_floating(texts).to(device) for texts in (queries, documents))
    dtype = torch.promote_types(left.dtype, right.dtype)
    left, right = left.to(dtype), right.to(dtype)
    owner = _owners(documents).to(device)  # (document tokens,)
    rows = _owners(queries).to(device)  # (query tokens,)
    step = max(1, _BLOCK_ELEMENTS // max(1, len(right)))
    maxima, retrieved = [], []
    for start in range(0, len(left) if len(right) else 0, step):
        values, positions = (left[start : start + step] @ right.T).topk(min(top_k, len(right)), dim=1)
        found = owner[positions]  # (query tokens, top_k): the document of each retrieved token
        empty = values.new_full((len(values), len(documents)), -torch.inf)
        # The largest retrieved similarity of each document; scattering by amax passes the gradient to it.
        best = empty.scatter_reduce(1, found, values, "amax")
        hit = best.detach() > -torch.inf
        maxima.append(torch.where(hit, best, 0.0))
        retrieved.append(hit)
    shape = (len(queries), len(documents))
    without = torch.from_numpy(documents.lengths == 0).to(device)
    if not maxima:
        return left.new_zeros(shape, dtype=torch.float32).masked_fill(without, -torch.inf)
    total = left.new_zeros(shape).index_add(0, rows, torch.cat(maxima))
    count = left.new_zeros(shape).index_add(0, rows, torch.cat(retrieved).to(left.dtype))
    return (total / count.clamp(min=1)).masked_fill(without, -torch.inf).float()


def _owners(texts: TokenEmbeddings) -> Tensor:
    """Return the text that each token belongs to."""
    return torch.from_numpy(np.repeat(np.arange(len(texts)), texts.lengths))


def _floating(texts: TokenEmbeddings) -> Tensor:
    vectors = texts.to("float32").vectors if texts.scales is not None else texts.vectors
    return at_least_float32(torch.as_tensor(vectors))
