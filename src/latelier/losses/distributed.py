"""Documents of all processes as negatives, with gradients that flow back to the process that embedded them.

A loss of one process is scaled such that the *mean* of the gradients over processes, which is what data parallelism
applies, is the gradient that one process would have of the whole batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from latelier.embeddings import TokenEmbeddings
from latelier.losses.columns import Embedded
from latelier.utils.ranges import lengths_to_offsets

__all__ = ["Gathered", "gather", "world_size"]


class Gathered(NamedTuple):
    """The documents that each query of this process is scored against.

    Parameters
    ----------
    documents
        Those of all processes, by rank.
    keys
        The keys of the documents, and of the query that each belongs to; None where there are none.
    first
        Position of this process's first document.
    queries
        Number of queries of all processes.
    """

    documents: TokenEmbeddings
    keys: tuple[Tensor, Tensor] | None
    first: int
    queries: int


def world_size() -> int:
    """Return how many processes train together, 1 outside of such training."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(batch: Embedded, *, across_devices: bool) -> Gathered:
    """Gather the documents of all processes, or take those of this one.

    Parameters
    ----------
    batch
        What this process embedded; batches may differ in size.
    across_devices
        Whether to look at other processes at all. All have to take part.
    """
    keys = None
    if batch.query_keys is not None and batch.document_keys is not None:
        keys = (batch.document_keys, batch.query_keys.repeat_interleave(batch.per_query))
    if not across_devices or world_size() == 1:
        return Gathered(batch.documents, keys, 0, len(batch.queries))
    device = batch.documents.device
    # All features come from one tokeniser: where one process has keys, all have.
    table = torch.from_numpy(batch.documents.lengths)[None]
    table = table if keys is None else torch.cat([table, torch.stack(keys)])
    tables = _gather_ragged(table.T.contiguous().to(device))
    lengths = torch.cat([part[:, 0] for part in tables]).cpu().numpy()
    tokens = [int(part[:, 0].sum()) for part in tables]
    vectors = _AllGather.apply(batch.documents.vectors, tokens)
    everyone = torch.cat([part[:, 1:] for part in tables]).T.cpu()
    queries = torch.tensor([len(batch.queries)], device=device)
    dist.all_reduce(queries)
    return Gathered(
        TokenEmbeddings(vectors, lengths_to_offsets(lengths)),
        None if keys is None else (everyone[0], everyone[1]),
        sum(len(part) for part in tables[: dist.get_rank()]),
        int(queries),
    )


def _gather_ragged(rows: Tensor) -> list[Tensor]:
    """Gather ``(n, width)`` tensors whose ``n`` differ between processes."""
    sizes = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
    return _gather_padded(rows, [int(size) for size in sizes])


def _gather_padded(rows: Tensor, sizes: list[int]) -> list[Tensor]:
    padded = rows.new_zeros(max(sizes), rows.shape[1])
    padded[: len(rows)] = rows
    received = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(received, padded)
    return [part[:size] for part, size in zip(received, sizes, strict=True)]


class _AllGather(torch.autograd.Function):
    """All processes' rows one below the other; each gets back the sum of what all of them want of its own."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        return torch.cat(_gather_padded(rows.detach(), sizes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total.split(ctx.sizes)[dist.get_rank()], None
