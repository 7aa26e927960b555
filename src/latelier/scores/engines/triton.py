"""Triton kernels of MaxSim for CUDA, packed: no similarity ever reaches memory, forward or backward.

The forward kernel stores the scores and the position of each best token; the backward kernel adds the rows at those
positions, as on the CPU (`kernels.maxsim_backward`). Dot products are in the dtype of the vectors with float32 sums;
float32 vectors are multiplied as float32, not TF32. Offsets are 64-bit, so the number of tokens is bounded by memory
alone, and the dimension is walked in steps, so no dimension is too wide. Importing this module needs triton, which
torch's CUDA builds bring: `cuda` imports it on first use.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["add_gradients", "best_tokens"]

# Tokens of one tile, and numbers of each that are multiplied at once: within the 48 KiB that every GPU has.
_QUERY_TILE = tl.constexpr(32)
_DOCUMENT_TILE = tl.constexpr(64)
_DIM_TILE = tl.constexpr(32)
# One step of the backward pass adds this many rows of documents, and this many numbers of each.
_COLUMNS = tl.constexpr(16)
_DIM_ROW = tl.constexpr(128)


def best_tokens(queries: Any, documents: Any, share: int, step: int, positions: torch.Tensor | None) -> torch.Tensor:
    """Score query ``q`` against documents ``q * step`` to ``q * step + share - 1``.

    Parameters
    ----------
    queries, documents
        Vectors ``(tokens, dim)``, contiguous and of one floating dtype, and offsets ``(texts + 1,)`` int64, all on
        one device.
    share, step
        ``d, 0`` for all pairs of queries and ``d`` documents; ``n, n`` for groups of ``n`` documents.
    positions
        ``(query_tokens, share)`` int32, filled with the best token's place in its document, -1 where that is empty;
        or None.

    Returns
    -------
    torch.Tensor
        ``(queries, share)`` float32. Empty queries score 0, other queries minus infinity against empty documents.
    """
    texts, dim = len(queries[1]) - 1, queries[0].shape[1]
    scores = queries[0].new_empty(texts, share, dtype=torch.float32)
    if scores.numel():
        _forward[(scores.numel(),)](queries, documents, scores, positions, share, step, dim)
    return scores


def add_gradients(
    queries: Any, documents: Any, gradients: torch.Tensor, positions: torch.Tensor, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of both sides' vectors, float32.

    Parameters
    ----------
    queries, documents
        As in `best_tokens`.
    gradients
        Of the scores, ``(queries, share)`` float32, contiguous.
    positions
        What `best_tokens` stored.
    step
        As in `best_tokens`.

    Returns
    -------
    tuple
        ``(query_tokens, dim)`` and ``(document_tokens, dim)``. Documents' rows are added by atomic operations, so
        the last digit depends on their order.
    """
    (vectors, offsets), dim = queries, queries[0].shape[1]
    texts = torch.arange(len(offsets) - 1, device=vectors.device)
    # The query that each token belongs to.
    owners = texts.repeat_interleave(offsets.diff(), output_size=len(vectors))
    out = torch.empty_like(vectors, dtype=torch.float32), torch.zeros_like(documents[0], dtype=torch.float32)
    if vectors.numel():
        grid = (len(vectors), triton.cdiv(dim, _DIM_ROW.value))
        _backward[grid]((vectors, owners), documents, gradients, positions, out, gradients.shape[1], step, dim)
    return out


@triton.jit
def _forward(
    queries: tl.tuple,
    documents: tl.tuple,
    scores: tl.tensor,
    positions: tl.tensor,
    share: tl.tensor,
    step: tl.tensor,
    dim: tl.constexpr,
) -> None:
    """One program: one query against one document."""
    pair = tl.program_id(0).to(tl.int64)
    query, column = pair // share, pair % share
    query_vectors, query_offsets = queries
    document_vectors, document_offsets = documents
    q_first = tl.load(query_offsets + query)
    q_tokens = (tl.load(query_offsets + query + 1) - q_first).to(tl.int32)
    d_first = tl.load(document_offsets + query * step + column)
    d_tokens = (tl.load(document_offsets + query * step + column + 1) - d_first).to(tl.int32)
    score = 0.0
    for q_start in range(0, q_tokens, _QUERY_TILE):
        q = q_start + tl.arange(0, _QUERY_TILE)
        q_rows = query_vectors + (q_first + q)[:, None] * dim
        best = tl.full([_QUERY_TILE], float("-inf"), tl.float32)
        place = tl.full([_QUERY_TILE], -1, tl.int32)
        for d_start in range(0, d_tokens, _DOCUMENT_TILE):
            d = d_start + tl.arange(0, _DOCUMENT_TILE)
            d_rows = document_vectors + (d_first + d)[None, :] * dim
            similarities = tl.zeros([_QUERY_TILE, _DOCUMENT_TILE], tl.float32)
            for start in range(0, dim, _DIM_TILE):
                k = start + tl.arange(0, _DIM_TILE)
                left = tl.load(q_rows + k[None, :], mask=(q < q_tokens)[:, None] & (k < dim)[None, :], other=0.0)
                right = tl.load(d_rows + k[:, None], mask=(d < d_tokens)[None, :] & (k < dim)[:, None], other=0.0)
                similarities = tl.dot(left, right, similarities, input_precision="ieee")
            similarities = tl.where((d < d_tokens)[None, :], similarities, float("-inf"))
            highest, which = tl.max(similarities, axis=1, return_indices=True)
            better = highest > best  # of equal similarities the first token stays
            best = tl.where(better, highest, best)
            place = tl.where(better, which + d_start, place)
        score += tl.sum(tl.where(q < q_tokens, best, 0.0))
        if positions is not None:
            tl.store(positions + (q_first + q) * share + column, place, mask=q < q_tokens)
    tl.store(scores + pair, score)


@triton.jit
def _backward(
    queries: tl.tuple,
    documents: tl.tuple,
    gradients: tl.tensor,
    positions: tl.tensor,
    out: tl.tuple,
    share: tl.tensor,
    step: tl.tensor,
    dim: tl.constexpr,
) -> None:
    """One program: one query token, all its documents, ``_DIM_ROW`` numbers of each row."""
    token = tl.program_id(0).to(tl.int64)
    query_vectors, owners = queries
    document_vectors, document_offsets = documents
    query_out, document_out = out
    query = tl.load(owners + token)
    k = tl.program_id(1) * _DIM_ROW + tl.arange(0, _DIM_ROW)
    row = tl.load(query_vectors + token * dim + k, mask=k < dim, other=0.0).to(tl.float32)
    total = tl.zeros([_DIM_ROW], tl.float32)
    for start in range(0, share, _COLUMNS):
        column = start + tl.arange(0, _COLUMNS)
        place = tl.load(positions + token * share + column, mask=column < share, other=-1)
        weight = tl.load(gradients + query * share + column, mask=column < share, other=0.0)
        source = tl.load(document_offsets + query * step + column, mask=column < share, other=0) + place
        inside = ((place >= 0) & (weight != 0.0))[:, None] & (k < dim)[None, :]
        cells = source[:, None] * dim + k[None, :]
        rows = tl.load(document_vectors + cells, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(weight[:, None] * rows, axis=0)
        tl.atomic_add(document_out + cells, weight[:, None] * row[None, :], mask=inside, sem="relaxed")
    tl.store(query_out + token * dim + k, total, mask=k < dim)
