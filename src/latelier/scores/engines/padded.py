"""MaxSim on padded tensors in plain torch: differentiable, on any device, in blocks of bounded memory.

The backward pass does not need the similarities: a maximum saves only its positions.
"""

from __future__ import annotations

import torch

from latelier.scores.engine import Engine
from latelier.scores.inputs import Side

__all__ = ["TorchEngine", "maxsim", "maxsim_grouped"]

# Similarities of one block; 16M float32 = 64 MiB.
_BLOCK_ELEMENTS = 1 << 24


class TorchEngine(Engine):
    """Any device, any floating dtype, with gradients."""

    name = "torch"

    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Accept all inputs."""
        return None

    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score by `maxsim`."""
        return maxsim(*_prepare(queries, documents)).float()

    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score by `maxsim_grouped`."""
        query_vectors, document_vectors, queries_mask, documents_mask = _prepare(queries, documents)
        if not len(document_vectors):  # the dim of no documents is unknown
            return query_vectors.new_zeros(len(query_vectors), 0, dtype=torch.float32)
        shape = (len(query_vectors), len(document_vectors) // max(len(query_vectors), 1))
        return maxsim_grouped(
            query_vectors, document_vectors.unflatten(0, shape), queries_mask, documents_mask.unflatten(0, shape)
        ).float()


def _prepare(queries: Side, documents: Side) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bring both sides to one dtype and the documents' device: the arguments of `maxsim`."""
    (query_vectors, queries_mask), (document_vectors, documents_mask) = queries.padded, documents.padded
    device = document_vectors.device
    dtype = torch.promote_types(query_vectors.dtype, document_vectors.dtype)
    if device.type == "cpu" and dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32  # half precision is emulated, slower and less exact on most CPUs
    return (
        query_vectors.to(device, dtype),
        document_vectors.to(dtype),
        queries_mask.to(device),
        documents_mask,
    )


def maxsim(
    queries: torch.Tensor, documents: torch.Tensor, queries_mask: torch.Tensor, documents_mask: torch.Tensor
) -> torch.Tensor:
    """Score every query against every document.

    `queries`: ``(q, query_tokens, dim)``; `documents`: ``(d, document_tokens, dim)``, same dtype and device;
    `queries_mask`, `documents_mask`: ``(q, query_tokens)`` and ``(d, document_tokens)`` bool, true where the token is
    real; returns: ``(q, d)`` float32, with the gradient of the inputs.
    """
    if not len(queries):  # of any dim
        return queries.new_zeros(0, len(documents), dtype=torch.float32)
    per_document = max(1, queries.shape[0] * queries.shape[1] * documents.shape[1])
    step = max(1, _BLOCK_ELEMENTS // per_document)
    blocks = []
    for start in range(0, documents.shape[0], step):
        block, mask = documents[start : start + step], documents_mask[start : start + step]
        # (q * query_tokens, dim) x (dim, d * document_tokens): one product for the whole block.
        flat = queries.flatten(0, 1) @ block.flatten(0, 1).T
        similarities = flat.view(*queries.shape[:2], *block.shape[:2])  # (q, query_tokens, d, document_tokens)
        blocks.append(_reduce(similarities, queries_mask, mask[None]))
    return torch.cat(blocks, dim=1) if blocks else queries.new_zeros(len(queries), 0, dtype=torch.float32)


def maxsim_grouped(
    queries: torch.Tensor, documents: torch.Tensor, queries_mask: torch.Tensor, documents_mask: torch.Tensor
) -> torch.Tensor:
    """Score each query against its own group of documents.

    `queries`: ``(b, query_tokens, dim)``; `documents`: ``(b, n, document_tokens, dim)``, same dtype and device;
    `queries_mask`, `documents_mask`: ``(b, query_tokens)`` and ``(b, n, document_tokens)`` bool; returns: ``(b, n)``
    float32, with the gradient of the inputs.
    """
    n, width = documents.shape[1:3]
    per_query = max(1, queries.shape[1] * n * width)
    step = max(1, _BLOCK_ELEMENTS // per_query)
    blocks = []
    for start in range(0, queries.shape[0], step):
        rows = slice(start, start + step)
        # (b, query_tokens, dim) x (b, dim, n * document_tokens)
        flat = torch.bmm(queries[rows], documents[rows].flatten(1, 2).transpose(1, 2))
        similarities = flat.view(*flat.shape[:2], n, width)  # (b, query_tokens, n, document_tokens)
        blocks.append(_reduce(similarities, queries_mask[rows], documents_mask[rows]))
    return torch.cat(blocks) if blocks else queries.new_zeros(0, n, dtype=torch.float32)


def _reduce(similarities: torch.Tensor, queries_mask: torch.Tensor, documents_mask: torch.Tensor) -> torch.Tensor:
    """``(q, query_tokens, d, document_tokens)`` to ``(q, d)``; `documents_mask` is ``(q or 1, d, document_tokens)``."""
    if similarities.shape[3] == 0:
        best = similarities.new_full(similarities.shape[:3], -torch.inf)
    else:
        # Minus infinity before the maximum: a masked token must lose even against negative similarities.
        best = similarities.masked_fill(~documents_mask[:, None], -torch.inf).max(dim=3).values
    best = best.float().masked_fill(~queries_mask[:, :, None], 0.0)
    # A query without tokens sums to 0, but an empty document must score minus infinity there too.
    return best.sum(dim=1).masked_fill(~documents_mask.any(dim=2), -torch.inf)
