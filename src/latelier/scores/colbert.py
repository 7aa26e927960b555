"""The public functions of MaxSim and XTR, and which engine computes them.

``score(q, d) = sum over query tokens i of max over document tokens j of <q_i, d_j>`` (Khattab and Zaharia, 2020,
ColBERT, https://arxiv.org/abs/2004.12832). A masked document token is minus infinity before the maximum, so it never
wins, not even against negative similarities (PyLate multiplies by the mask, which lets padding score 0); a masked
query token adds exactly 0. A document without any real token scores minus infinity.

A text with NaN in its vectors scores NaN with ``backend="torch"``, and with ``"packed"`` where the scores need a
gradient. Other kernels do not look for NaN: the text may score any number, minus infinity or NaN.

A new engine is a module with a subclass of `Engine`, and a line in the table here.

With ``A_ij = 1`` where document ``j``'s best token is among the ``top_k`` of all document tokens for query token ``i``,
``score(q, d_j) = sum_i A_ij max_t <q_i, d_jt> / Z_j`` with ``Z_j`` the number of such query tokens (Lee et al., 2023,
XTR, https://arxiv.org/abs/2304.01982, equation 5). A model trained with it learns to retrieve by single tokens. PyLate
divides by the number of *positive* maxima instead, so scores of negative maxima can be a thousand times too large.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from latelier.arrays import at_least_float32
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, MissingExtraError
from latelier.scores.cpu import Int8Engine, PackedEngine, TorchEngine
from latelier.scores.cuda import FusedEngine, is_installed
from latelier.scores.inputs import Engine, Side, check_pairs, documents_per_query, needs_gradient, read_sides
from latelier.scores.maxsim import TopK
from latelier.utils.checks import check_choice, check_count

Backend: TypeAlias = Literal["auto", "packed", "int8", "torch", "fused"]

_ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (PackedEngine(), Int8Engine(), TorchEngine(), FusedEngine())
}
# Scores of one block of `top_k`: 4M float32 = 16 MiB.
_BLOCK_SCORES = 1 << 22


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
        ``(n, query_tokens)`` and ``(n, document_tokens)``; default: as in `colbert_scores`.
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
        ``(b, n, document_tokens, dim)``, or a list of ``b`` lists of ``n`` matrices or arrays ``(n, tokens,
        dim)``, or ``b * n`` packed documents, the ``n`` of the first query first.
    queries_mask, documents_mask
        ``(b, query_tokens)`` and ``(b, n, document_tokens)``; default: as in `colbert_scores`.
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
        torch.from_numpy(np.array(best.row_ids, dtype="int64").reshape(len(queries), width)),
    )


def choose_engine(backend: str, queries: Side, documents: Side) -> Engine:
    """Return the engine for these inputs.

    With ``"auto"``: on the CPU int8 for int8 documents and packed for others, on CUDA fused where it is installed and
    fits; torch elsewhere, and for gradients in double precision, which the kernels do not have.
    """
    if isinstance(backend, str) and backend == "auto":
        return _ENGINES[_best(queries, documents)]
    check_choice("backend", backend, ["auto", *_ENGINES])
    engine = _ENGINES[backend]
    unfit = engine.unfit(queries, documents)
    if unfit:
        raise InvalidArgumentError(f"backend {backend!r} {unfit}; use 'auto'.")
    if backend == "fused" and not is_installed():
        raise MissingExtraError("Fused scoring", "gpu")
    return engine


def _best(queries: Side, documents: Side) -> str:
    if _ENGINES["fused"].unfit(queries, documents) is None and is_installed():
        return "fused"
    double = torch.float64 in (queries.vectors.dtype, documents.vectors.dtype)
    if _ENGINES["packed"].unfit(queries, documents) or (double and needs_gradient(queries, documents)):
        return "torch"
    if documents.vectors.dtype == torch.int8 and not needs_gradient(queries, documents):
        return "int8"
    return "packed"


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
    queries = query_side.packed
    documents = document_side.packed
    device = documents.device
    left, right = (_floating(texts).to(device) for texts in (queries, documents))
    dtype = torch.promote_types(left.dtype, right.dtype)
    left = left.to(dtype)
    right = right.to(dtype)
    owner = _owners(documents).to(device)  # (document tokens,)
    rows = _owners(queries).to(device)  # (query tokens,)
    step = max(1, _BLOCK_ELEMENTS // max(1, len(right)))
    maxima = []
    retrieved = []
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
    if texts.scales is not None:
        vectors = texts.to("float32").vectors
    else:
        vectors = texts.vectors
    return at_least_float32(torch.as_tensor(vectors))
