"""MaxSim on packed embeddings, on the CPU and without gradients: no padding is ever multiplied.

All query tokens of a batch are the columns of one matrix product, document tokens its rows, in blocks small enough
that the similarities are still in cache when their maximum is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.scores.kernels import segment_max_sum

__all__ = ["maxsim", "maxsim_grouped"]

# Similarities of one block: 256k float32 = 1 MiB, what a core's second-level cache holds.
_BLOCK_ELEMENTS = 1 << 18
# More query tokens than this are scored in several passes, so that a block keeps at least 256 document tokens.
_QUERY_TOKENS = 1024


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Score every query against every document.

    Parameters
    ----------
    queries, documents
        Packed embeddings of one dim, numpy or torch on the CPU, in any dtype (float16, bfloat16 and int8 are
        converted block by block).

    Returns
    -------
    numpy.ndarray
        ``(n_queries, n_documents)`` float32. A document without tokens scores minus infinity, a query without tokens
        0 elsewhere.

    Examples
    --------
    >>> queries = TokenEmbeddings.from_list([[[1.0, 0.0], [0.0, 1.0]]])
    >>> documents = TokenEmbeddings.from_list([[[1.0, 0.0]], [[-0.5, 0.0], [0.0, -0.25]]])
    >>> maxsim(queries, documents)
    array([[1., 0.]], dtype=float32)
    """
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    for first, last in _blocks(queries.offsets, _QUERY_TOKENS):
        block = queries[first:last]
        _score_block(_matrix(block).T, block.offsets, documents, scores[first:last])
    return scores


def maxsim_grouped(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Score query ``i`` against its own documents ``i * n`` to ``(i + 1) * n - 1``.

    Parameters
    ----------
    queries
        ``b`` queries.
    documents
        ``b * n`` documents, those of one query next to each other.

    Returns
    -------
    numpy.ndarray
        ``(b, n)`` float32.
    """
    n = len(documents) // max(len(queries), 1)
    scores = np.empty((len(queries), n), dtype=np.float32)
    for i in range(len(queries)):
        query = queries[i : i + 1]
        _score_block(_matrix(query).T, query.offsets, documents[i * n : (i + 1) * n], scores[i : i + 1])
    return scores


def _score_block(
    columns: torch.Tensor, query_offsets: np.ndarray, documents: TokenEmbeddings, scores: np.ndarray
) -> None:
    """Fill ``scores (q, d)``; `columns` are the query tokens, ``(dim, tokens)`` float32."""
    width = columns.shape[1]
    budget = max(1, _BLOCK_ELEMENTS // max(width, 1))
    buffer = torch.empty(0)
    for first, last in _blocks(documents.offsets, budget):
        block = documents[first:last]
        if buffer.numel() < block.num_tokens * width:
            buffer = torch.empty(block.num_tokens * width)
        similarities = buffer[: block.num_tokens * width].view(block.num_tokens, width)
        torch.mm(_matrix(block), columns, out=similarities)
        segment_max_sum(similarities.numpy(), block.offsets, query_offsets, scores[:, first:last])


def _matrix(embeddings: TokenEmbeddings) -> torch.Tensor:
    """All tokens as one float32 CPU tensor ``(tokens, dim)``; a view where the vectors are float32 already."""
    return embeddings.to("torch").to("cpu").to("float32").vectors.detach()


def _blocks(offsets: np.ndarray, tokens: int) -> Iterator[tuple[int, int]]:
    """Cut texts into ranges of at most `tokens` tokens, always at least one text."""
    first, n = 0, len(offsets) - 1
    while first < n:
        # The last text that still ends within the budget.
        last = int(np.searchsorted(offsets, offsets[first] + tokens, side="right")) - 1
        last = min(max(last, first + 1), n)
        yield first, last
        first = last
