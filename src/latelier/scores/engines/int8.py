"""MaxSim on int8 codes: integer dot products, one scale per token, float32 scores.

A token is its codes times its scale, ``x ~ s * c``, and each number is off by at most half a scale. So for unit
vectors of dim ``n`` a similarity is off by at most ``sqrt(n) / 254`` from each side (by Cauchy-Schwarz; in practice a
tenth of that), and a score by that times the number of query tokens: see `error_bound`. The dot products themselves
are exact integers, so every kernel gives the same scores to the last bit.
"""

from __future__ import annotations

import numpy as np
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.kernels.cpu import instruction_set
from latelier.kernels.segment_max import NO_POSITIONS, segment_max_sum
from latelier.kernels.threads import for_ranges
from latelier.scores.engines.packed import document_blocks

__all__ = ["error_bound", "maxsim"]


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Score every query against every document.

    Parameters
    ----------
    queries, documents
        Packed embeddings of one dim, on the CPU; those that are not int8 yet are quantised here, each token by its
        own scale. Quantise documents once (``documents.to("int8")``) rather than in every call.

    Returns
    -------
    numpy.ndarray
        ``(n_queries, n_documents)`` float32.

    Examples
    --------
    >>> queries = TokenEmbeddings.from_list([[[1.0, 0.0], [0.0, 1.0]]])
    >>> documents = TokenEmbeddings.from_list([[[1.0, 0.0]], [[-0.5, 0.0], [0.0, -0.25]]]).to("int8")
    >>> maxsim(queries, documents)
    array([[1., 0.]], dtype=float32)
    """
    left, right = (side.to("cpu").to("int8").to("numpy") for side in (queries, documents))
    scores = np.empty((len(left), len(right)), dtype=np.float32)
    if instruction_set().has_one_pass and left.num_tokens:
        _score_in_one_pass(left, right, scores)
    else:
        _score_products(left, right, scores)
    return scores


def error_bound(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return how far int8 scores can be from float scores, at most.

    For a query token ``q = s c + e`` with ``|e_i| <= s / 2``, and the same for documents:
    ``|<q, d> - <q', d'>| <= |q| |e_d| + |e_q| |d| + |e_q| |e_d|`` with ``|e| <= s sqrt(dim) / 2``. A maximum is off by
    no more than the worst of its terms, a sum by no more than their sum.

    Parameters
    ----------
    queries, documents
        The embeddings before quantisation.

    Returns
    -------
    numpy.ndarray
        ``(n_queries, n_documents)`` float64.

    Examples
    --------
    >>> unit = TokenEmbeddings.from_list([[[0.6, 0.8]]])
    >>> error_bound(unit, unit).round(4)
    array([[0.0089]])
    """
    (norm_q, error_q), (norm_d, error_d) = (_token_errors(side) for side in (queries, documents))
    worst = [(norm_d[a:b].max(initial=0), error_d[a:b].max(initial=0)) for a, b in _ranges(documents)]
    bound = np.zeros((len(queries), len(documents)))
    for i, (a, b) in enumerate(_ranges(queries)):
        for j, (norm, error) in enumerate(worst):
            bound[i, j] = (norm_q[a:b] * error + error_q[a:b] * norm + error_q[a:b] * error).sum()
    return bound


def _score_in_one_pass(queries: TokenEmbeddings, documents: TokenEmbeddings, scores: np.ndarray) -> None:
    from latelier.kernels.int8_maxsim import pack_queries, score_range

    packed, start = pack_queries(queries.vectors)
    left = (packed, start, np.ascontiguousarray(queries.scales), queries.offsets)
    # The kernel reads words of four bytes.
    codes = np.pad(documents.vectors, ((0, 0), (0, -documents.dim % 4))) if documents.dim % 4 else documents.vectors
    codes, scales, offsets = np.ascontiguousarray(codes), np.ascontiguousarray(documents.scales), documents.offsets

    def score(first: int, last: int) -> None:
        score_range((codes, scales, offsets[first : last + 1]), left, scores, first)

    for_ranges(score, offsets, queries.vectors.size)


def _score_products(queries: TokenEmbeddings, documents: TokenEmbeddings, scores: np.ndarray) -> None:
    """Do it with float32 products: of integers this small they are exact up to 1,040 dims (127 * 127 * dim < 2**24)."""
    columns = torch.from_numpy(queries.vectors).float().T.contiguous()
    query_scales = torch.from_numpy(queries.scales)
    for first, last in document_blocks(documents.offsets, columns.shape[1]):
        block = documents[first:last]
        similarities = torch.from_numpy(block.vectors).float() @ columns
        similarities *= torch.from_numpy(block.scales)[:, None]
        similarities *= query_scales  # rounding keeps order, so scaling before the maximum changes nothing
        segment_max_sum(similarities.numpy(), block.offsets, queries.offsets, scores, NO_POSITIONS, first)


def _token_errors(embeddings: TokenEmbeddings) -> tuple[np.ndarray, np.ndarray]:
    """Length of each token, and of the largest error that its quantisation can make."""
    vectors = embeddings.to("float32").to("numpy").vectors.astype("float64")
    scales = np.abs(vectors).max(axis=1, initial=0) / 127
    return np.linalg.norm(vectors, axis=1), scales * np.sqrt(embeddings.dim) / 2


def _ranges(embeddings: TokenEmbeddings) -> list[tuple[int, int]]:
    return list(zip(embeddings.offsets[:-1].tolist(), embeddings.offsets[1:].tolist(), strict=True))
