"""The engine ``"fused"``: MaxSim on CUDA, packed and with gradients; no similarity is kept in memory.

Half precision in usual dimensions is scored by the packed kernels of late-interaction-kernels, which are tuned for each
GPU. It multiplies float32 as float16 and lacks other cases, so our own Triton kernels (`triton`) take float32, unusual
dimensions and batches too large for 32-bit positions. They have a module of their own, as importing it needs triton.
Masked tokens take no time: they are dropped when the inputs are packed.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from latelier.arrays import as_tensor
from latelier.embeddings import TokenEmbeddings
from latelier.errors import MissingExtraError
from latelier.scores.engines.base import Engine, needs_gradient
from latelier.scores.engines.graphs import outside_graphs
from latelier.scores.inputs import Side

__all__ = ["FusedEngine", "is_installed", "maxsim", "maxsim_grouped"]

# Dimensions whose tiles late-interaction-kernels can multiply (16 numbers at least) and keep in 48 KiB.
_TUNED_DIMS = range(9, 257)
_INT32 = 1 << 31
# Ampere: older GPUs have no bfloat16 to multiply.
_CAPABILITY = (8, 0)


@cache
def is_installed() -> bool:
    """Whether the extra 'gpu' is installed: late-interaction-kernels, and triton, which its kernels and ours run on."""
    return all(find_spec(name) is not None for name in ("late_interaction_kernels", "triton"))


class FusedEngine(Engine):
    """CUDA with the extra 'gpu': float32, float16, bfloat16 and int8, with gradients."""

    name = "fused"

    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Accept inputs on GPUs that multiply bfloat16, except float64 and gradients in a fixed order."""
        device = documents.vectors.device
        if device.type != "cuda" or torch.version.cuda is None:
            return f"runs on CUDA, but the documents are on {device}"
        if torch.cuda.get_device_capability(device) < _CAPABILITY:
            return f"needs a GPU of compute capability 8.0 or later, which {torch.cuda.get_device_name(device)} is not"
        if torch.float64 in (queries.vectors.dtype, documents.vectors.dtype):
            return "takes float32, float16, bfloat16 and int8, but received float64"
        if needs_gradient(queries, documents) and torch.are_deterministic_algorithms_enabled():
            return "adds gradients in no fixed order, which torch.use_deterministic_algorithms forbids"
        return None

    def require(self) -> None:
        """Check that the extra 'gpu' is installed.

        Raises
        ------
        MissingExtraError
            If it is not installed.
        """
        if not is_installed():
            raise MissingExtraError("Fused scoring", "gpu")

    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score by `maxsim`."""
        return maxsim(queries.packed, documents.packed)

    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score by `maxsim_grouped`."""
        return maxsim_grouped(queries.packed, documents.packed)


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings) -> torch.Tensor:
    """Score every query against every document: ``(q, d)`` float32 with the gradient of both sides' vectors."""
    return _score(queries, documents, share=len(documents), step=0)


def maxsim_grouped(queries: TokenEmbeddings, documents: TokenEmbeddings) -> torch.Tensor:
    """Score each of ``b`` queries against its own ``n`` documents: ``(b, n)`` float32 with gradients."""
    share = len(documents) // max(len(queries), 1)
    return _score(queries, documents, share=share, step=share)


@outside_graphs  # a graph would break at the kernels' autograd functions anyway
def _score(queries: TokenEmbeddings, documents: TokenEmbeddings, *, share: int, step: int) -> torch.Tensor:
    """Score query ``q`` against documents ``q * step`` to ``q * step + share - 1``."""
    device = documents.device
    if not len(queries) or not share:
        return torch.zeros(len(queries), share, device=device)
    dtype = _dtype(queries, documents)
    left, right = (TokenEmbeddings(_vectors(side, device, dtype), side.offsets) for side in (queries, documents))
    with torch.cuda.device_of(right.vectors):  # triton launches on the current device; on the CPU this does nothing
        scores = (_score_tuned if _is_tuned(left, right, share) else _score_own)(left, right, share, step)
    empty = documents.lengths == 0
    if empty.any():
        # The kernels differ in the score of an empty document: it is replaced, and passes no gradient.
        mask = torch.from_numpy(empty).to(device)
        scores = scores.masked_fill(mask.view(len(queries), share) if step else mask, -torch.inf)
    return scores


def _dtype(queries: TokenEmbeddings, documents: TokenEmbeddings) -> torch.dtype:
    """Return the dtype to score in: the wider one of both sides, or under autocast that of its matrix products."""
    sides = (torch.float32 if side.scales is not None else side.vectors.dtype for side in (queries, documents))
    dtype = torch.promote_types(*sides)
    autocast = dtype == torch.float32 and torch.is_autocast_enabled(documents.device.type)
    return torch.get_autocast_dtype(documents.device.type) if autocast else dtype


def _vectors(side: TokenEmbeddings, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    floating = side.to("float32") if side.scales is not None else side
    vectors = floating.vectors.to(device, dtype).contiguous()
    return vectors if torch.is_grad_enabled() else vectors.detach()


def _is_tuned(queries: TokenEmbeddings, documents: TokenEmbeddings, share: int) -> bool:
    """Whether late-interaction-kernels has exact kernels for these inputs."""
    numbers = max(queries.num_tokens, documents.num_tokens) * queries.dim
    positions = len(queries) * share * int(queries.lengths.max())
    return (
        queries.vectors.dtype in (torch.float16, torch.bfloat16)
        and queries.dim in _TUNED_DIMS
        and min(queries.num_tokens, documents.num_tokens) > 0
        and max(numbers, positions) < _INT32
    )


def _score_tuned(queries: TokenEmbeddings, documents: TokenEmbeddings, share: int, step: int) -> torch.Tensor:
    from late_interaction_kernels import maxsim_varlen
    from late_interaction_kernels.score_pairs import score_pairs_packed

    query_offsets, document_offsets = _offsets(queries).int(), _offsets(documents).int()
    longest_query, longest_document = int(queries.lengths.max()), int(documents.lengths.max())
    if not step:
        return maxsim_varlen(
            queries.vectors,
            documents.vectors,
            query_offsets,
            document_offsets,
            max_seqlen_q=longest_query,
            max_seqlen_d=longest_document,
        )
    pairs = torch.arange(len(documents), dtype=torch.int32, device=documents.device)
    flat = score_pairs_packed(
        queries.vectors,
        documents.vectors,
        query_offsets,
        document_offsets,
        pair_q_idx=pairs // share,
        pair_d_idx=pairs,
        max_seqlen_q=longest_query,
        max_seqlen_d=longest_document,
    )
    return flat.view(len(queries), share)


def _score_own(queries: TokenEmbeddings, documents: TokenEmbeddings, share: int, step: int) -> torch.Tensor:
    sides = queries.vectors, documents.vectors, _offsets(queries), _offsets(documents)
    return _MaxSim.apply(*sides, share, step)


def _offsets(side: TokenEmbeddings) -> torch.Tensor:
    return as_tensor(side.offsets).to(side.device, non_blocking=True)


class _MaxSim(torch.autograd.Function):
    """Our own kernels: the forward pass stores the position of the best token, the backward pass adds those rows."""

    @staticmethod
    def forward(
        ctx: Any,
        query_vectors: torch.Tensor,
        document_vectors: torch.Tensor,
        query_offsets: torch.Tensor,
        document_offsets: torch.Tensor,
        share: int,
        step: int,
    ) -> torch.Tensor:
        from latelier.scores.engines.triton import best_tokens

        positions = None
        if any(ctx.needs_input_grad):
            positions = query_offsets.new_empty(len(query_vectors), share, dtype=torch.int32)
            ctx.save_for_backward(query_vectors, document_vectors, query_offsets, document_offsets, positions)
        ctx.step = step
        queries, documents = (query_vectors.detach(), query_offsets), (document_vectors.detach(), document_offsets)
        return best_tokens(queries, documents, share, step, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from latelier.scores.engines.triton import add_gradients

        query_vectors, document_vectors, query_offsets, document_offsets, positions = ctx.saved_tensors
        queries, documents = (query_vectors, query_offsets), (document_vectors, document_offsets)
        left, right = add_gradients(queries, documents, gradient.float().contiguous(), positions, ctx.step)
        return left.to(query_vectors.dtype), right.to(document_vectors.dtype), None, None, None, None
