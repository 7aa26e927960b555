"""The engine of scores on CUDA.

Padded vectors are read where they are, with their masks: the kernels skip the padding at the end of each text.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from latelier.arrays import as_tensor
from latelier.scores.inputs import Engine, Side, needs_gradient, outside_graphs

if TYPE_CHECKING:
    from latelier.scores.triton_kernels import Rows


# Ampere: older GPUs have no bfloat16 to multiply.
_CAPABILITY = (8, 0)


@cache
def is_installed() -> bool:
    """Whether triton is installed, which torch's CUDA builds for Linux bring."""
    return find_spec("triton") is not None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


class FusedEngine(Engine):
    """CUDA with triton: float32, float16, bfloat16 and int8, with gradients."""

    name = "fused"

    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Accept inputs on GPUs that multiply bfloat16, except float64 and gradients in a fixed order."""
        device = documents.vectors.device
        if device.type != "cuda" or torch.version.cuda is None:
            return f"runs on CUDA, but the documents are on {device}"
        if _capability(device) < _CAPABILITY:
            return f"needs a GPU of compute capability 8.0 or later, which {torch.cuda.get_device_name(device)} is not"
        if torch.float64 in (queries.vectors.dtype, documents.vectors.dtype):
            return "takes float32, float16, bfloat16 and int8, but received float64"
        if needs_gradient(queries, documents) and torch.are_deterministic_algorithms_enabled():
            return "adds gradients in no fixed order, which torch.use_deterministic_algorithms forbids"
        return None

    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score every query against every document."""
        return _score(queries, documents, share=len(documents), step=0)

    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score each query against its own documents."""
        share = len(documents) // max(len(queries), 1)
        return _score(queries, documents, share=share, step=share)


@outside_graphs  # a graph would break at the kernels' autograd function anyway
def _score(queries: Side, documents: Side, *, share: int, step: int) -> torch.Tensor:
    """Score query ``q`` against documents ``q * step`` to ``q * step + share - 1``."""
    device = documents.vectors.device
    if not len(queries) or not share:
        return torch.zeros(len(queries), share, device=device)
    dtype = _dtype(queries, documents)
    with torch.cuda.device_of(documents.vectors):  # triton launches on the current device; on the CPU this does nothing
        left = _rows(queries, device, dtype)
        right = _rows(documents, device, dtype)
        if needs_gradient(queries, documents):
            return _MaxSim.apply(left.vectors, right.vectors, left, right, share, step)
        from latelier.scores.triton_kernels import best_tokens

        return best_tokens(left, right, share, step, positions=False)[0]


def _dtype(queries: Side, documents: Side) -> torch.dtype:
    """Return the dtype to score in: the wider one of both sides, or under autocast that of its matrix products."""
    sides = (side.vectors.dtype if side.vectors.is_floating_point() else torch.float32 for side in (queries, documents))
    dtype = torch.promote_types(*sides)
    kind = documents.vectors.device.type
    if dtype == torch.float32 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return dtype


def _rows(side: Side, device: torch.device, dtype: torch.dtype) -> Rows:
    """Return the tokens of one side as the kernels read them; nothing here waits for the GPU."""
    from latelier.scores.triton_kernels import Rows

    if side.is_padded:
        padded, mask = side.padded
        mask = mask.to(device).contiguous().view(torch.uint8)
        return Rows(padded.to(device, dtype).contiguous(), None, mask, len(padded), padded.shape[1])
    if side.packed.scales is not None:
        packed = side.packed.to("float32")
    else:
        packed = side.packed
    vectors = as_tensor(packed.vectors).to(device, dtype).contiguous()
    offsets = as_tensor(packed.offsets).to(device, non_blocking=True)
    return Rows(vectors, offsets, None, len(packed), int(packed.lengths.max(initial=0)))


class _MaxSim(torch.autograd.Function):
    """The forward pass stores the positions of the best tokens, the backward pass adds those rows."""

    @staticmethod
    def forward(
        ctx: Any,
        query_vectors: torch.Tensor,
        document_vectors: torch.Tensor,
        queries: Rows,
        documents: Rows,
        share: int,
        step: int,
    ) -> torch.Tensor:
        from latelier.scores.triton_kernels import best_tokens

        ctx.sides = [side[1:] for side in (queries, documents)]
        ctx.step = step
        queries, documents = (side._replace(vectors=side.vectors.detach()) for side in (queries, documents))
        scores, positions = best_tokens(queries, documents, share, step, positions=True)
        ctx.save_for_backward(query_vectors, document_vectors, positions)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from latelier.scores.triton_kernels import Rows, add_gradients

        *vectors, positions = ctx.saved_tensors
        queries, documents = (Rows(each, *side) for each, side in zip(vectors, ctx.sides, strict=True))
        left, right = add_gradients(queries, documents, gradient.float().contiguous(), positions, ctx.step)
        return left, right, None, None, None, None
