"""MaxSim on packed embeddings, on the CPU, with gradients.

The forward pass keeps the scores and which token was the best, never a similarity; the backward pass adds rows by
those positions. So memory is inputs + scores + one number per query token and document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from latelier.embeddings import TokenEmbeddings
from latelier.kernels.maxsim_backward import add_document_gradients, add_query_gradients
from latelier.kernels.threads import for_ranges
from latelier.scores.engines.graphs import outside_graphs
from latelier.scores.engines.packed import score_into

__all__ = ["maxsim", "maxsim_grouped"]

_Part: TypeAlias = tuple[slice, slice]
# Adding a row that has to be fetched costs about as much as this many multiplications of the forward pass.
_ADDITION = 8


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings) -> torch.Tensor:
    """Score every query against every document: ``(q, d)`` float32 with the gradient of both sides' vectors."""
    return _score(queries, documents, len(queries))


def maxsim_grouped(queries: TokenEmbeddings, documents: TokenEmbeddings) -> torch.Tensor:
    """Score each of ``b`` queries against its own ``n`` documents: ``(b, n)`` float32 with gradients."""
    return _score(queries, documents, 1)


@outside_graphs  # the kernels are numba's: nothing for a graph to see
def _score(queries: TokenEmbeddings, documents: TokenEmbeddings, block: int) -> torch.Tensor:
    left, right = (texts.to("float32") if texts.scales is not None else texts for texts in (queries, documents))
    return _MaxSim.apply(left.vectors.float(), right.vectors.float(), left.offsets, right.offsets, max(block, 1))


class _MaxSim(torch.autograd.Function):
    """Blocks of `block` queries, each scored against its share of the documents: all of them where there is one."""

    @staticmethod
    def forward(
        ctx: Any,
        query_vectors: torch.Tensor,
        document_vectors: torch.Tensor,
        query_offsets: np.ndarray,
        document_offsets: np.ndarray,
        block: int,
    ) -> torch.Tensor:
        left, right = query_vectors.detach().contiguous(), document_vectors.detach().contiguous()
        queries, documents = TokenEmbeddings(left, query_offsets), TokenEmbeddings(right, document_offsets)
        blocks = list(_blocks(query_offsets, document_offsets, block))
        share = len(documents) // max(len(blocks), 1)
        scores = np.empty((len(queries), share), dtype=np.float32)
        positions = np.empty((queries.num_tokens, share), dtype=np.int32)
        for (q, q_tokens), (d, _) in blocks:
            score_into(scores[q], queries[q], documents[d], positions[q_tokens])
        ctx.save_for_backward(left, right)
        ctx.layout = (query_offsets, document_offsets, blocks, positions)
        return torch.from_numpy(scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        left, right = (tensor.numpy() for tensor in ctx.saved_tensors)
        query_offsets, document_offsets, blocks, positions = ctx.layout
        gradients = gradient.float().contiguous().numpy()
        out = np.zeros_like(left), np.zeros_like(right)
        for (q, q_tokens), (d, d_tokens) in blocks:
            queries = left[q_tokens], query_offsets[q.start : q.stop + 1] - query_offsets[q.start]
            documents = right[d_tokens], document_offsets[d.start : d.stop + 1] - document_offsets[d.start]
            sides = out[0][q_tokens], out[1][d_tokens]
            _add_gradients(queries, documents, gradients[q], positions[q_tokens], sides)
        return torch.from_numpy(out[0]), torch.from_numpy(out[1]), None, None, None


def _blocks(query_offsets: np.ndarray, document_offsets: np.ndarray, block: int) -> Iterator[tuple[_Part, _Part]]:
    """Yield which queries go with which documents: each a slice of texts and the slice of their tokens."""
    queries, documents = len(query_offsets) - 1, len(document_offsets) - 1
    share = documents * block // max(queries, 1)
    for number, first in enumerate(range(0, queries, block)):
        q, d = slice(first, first + block), slice(number * share, (number + 1) * share)
        yield (q, _tokens(query_offsets, q)), (d, _tokens(document_offsets, d))


def _tokens(offsets: np.ndarray, texts: slice) -> slice:
    return slice(int(offsets[texts.start]), int(offsets[texts.stop]))


def _add_gradients(
    queries: tuple[np.ndarray, np.ndarray],
    documents: tuple[np.ndarray, np.ndarray],
    gradients: np.ndarray,
    positions: np.ndarray,
    out: tuple[np.ndarray, np.ndarray],
) -> None:
    """Add the gradients of one block's query tokens and document tokens to ``out``."""
    dim = queries[0].shape[1]

    def for_queries(first: int, last: int) -> None:
        add_query_gradients(gradients, positions, documents, queries[1], out[0], first, last)

    def for_documents(first: int, last: int) -> None:
        add_document_gradients(gradients, positions, queries, documents[1], out[1], first, last)

    for_ranges(for_queries, queries[1], gradients.shape[1] * dim * _ADDITION)
    per_token = positions.size * dim // max(len(documents[0]), 1)
    for_ranges(for_documents, documents[1], per_token * _ADDITION)
