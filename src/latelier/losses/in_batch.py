"""Negatives of other queries and processes.

Gradients flow back to the process that embedded a document. Data parallelism applies the *mean* of the gradients over
processes, so the loss of each process is scaled such that this mean is the gradient that a single process would have
of the whole batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from latelier.embeddings import TokenEmbeddings
from latelier.losses.base import EmbeddedBatch, LossOptions, ScoreMetric, score
from latelier.utils.ragged import lengths_to_offsets


class _Keys(NamedTuple):
    """The key of each document and of the query that it belongs to, ``(columns,)`` int64, as in `EmbeddedBatch`."""

    documents: Tensor
    queries: Tensor


class GatheredDocuments(NamedTuple):
    """The documents that each query of this process is scored against.

    `keys`: keys that are equal for equal texts; None if the features hold no token ids. `first`: position of this
    process's first document.
    """

    documents: TokenEmbeddings
    keys: _Keys | None
    first: int
    queries: int


def _world_size() -> int:
    """Return how many processes train together, 1 outside of such training."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_documents(batch: EmbeddedBatch, *, across_devices: bool) -> GatheredDocuments:
    """Gather the documents of all processes, or take those of this process.

    `batch`: the batch of this process; processes may have batches of different sizes. `across_devices`: whether to
    gather from other processes. All of them have to call this.
    """
    keys = None
    if batch.query_keys is not None and batch.document_keys is not None:
        keys = _Keys(batch.document_keys, batch.query_keys.repeat_interleave(batch.per_query))
    if not across_devices or _world_size() == 1:
        return GatheredDocuments(batch.documents, keys, 0, len(batch.queries))
    device = batch.documents.device
    # All processes use the same tokeniser, so either all have keys or none has.
    table = torch.from_numpy(batch.documents.lengths)[None]
    table = table if keys is None else torch.cat([table, torch.stack(keys)])
    tables = _gather_ragged(table.T.contiguous().to(device))
    lengths = torch.cat([part[:, 0] for part in tables]).cpu().numpy()
    tokens = [int(part[:, 0].sum()) for part in tables]
    vectors = _AllGather.apply(batch.documents.vectors, tokens)
    gathered_keys = torch.cat([part[:, 1:] for part in tables]).T.cpu()
    queries = torch.tensor([len(batch.queries)], device=device)
    dist.all_reduce(queries)
    return GatheredDocuments(
        TokenEmbeddings(vectors, lengths_to_offsets(lengths)),
        None if keys is None else _Keys(*gathered_keys),
        sum(len(part) for part in tables[: dist.get_rank()]),
        int(queries),
    )


def score_all(
    score_metric: ScoreMetric, batch: EmbeddedBatch, gathered: GatheredDocuments, name: str = "score_metric"
) -> Tensor:
    """Score each query of this process against all gathered documents: ``(b, columns)``; `name` is the argument's."""
    columns = len(gathered.documents)
    return score(score_metric, batch.queries, gathered.documents, columns, "latelier.scores.colbert_scores", name)


def false_negatives(
    batch: EmbeddedBatch, gathered: GatheredDocuments, positives: Tensor, are_positives: Tensor
) -> Tensor:
    """Return which documents must not count as negatives of a query.

    `positives`: ``(b,)``, the column of each query's positive. `are_positives`: ``(columns,)`` bool: which documents
    are the positive of a query, of this process or another one. Returns: ``(b, columns)`` bool, on the device of the
    queries' vectors: true for a text that equals the query's positive, and for the positive of another row with the
    same query. False everywhere if there are no keys.
    """
    device = batch.queries.device
    columns, positives = torch.arange(len(gathered.documents), device=device), positives.to(device)
    if gathered.keys is None or batch.query_keys is None:
        return torch.zeros(len(positives), len(columns), dtype=torch.bool, device=device)
    documents, queries = (keys.to(device) for keys in gathered.keys)
    same_text = documents == documents[positives][:, None]
    same_query = (queries == batch.query_keys.to(device)[:, None]) & are_positives.to(device)
    return (same_text | same_query) & (columns != positives[:, None])


def reduce_total(total: Tensor, gathered: GatheredDocuments, options: LossOptions) -> Tensor:
    """Scale a sum over this process's queries so that the mean gradient over processes is that of the whole batch."""
    share = _world_size() if options.gather_across_devices else 1
    return total * share / (gathered.queries if options.size_average else 1)


def _gather_ragged(rows: Tensor) -> list[Tensor]:
    """Gather ``(n, width)`` tensors; ``n`` may differ between processes."""
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
    """Concatenate the rows of all processes; backward, sum over all processes the gradients of this process's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        return torch.cat(_gather_padded(rows.detach(), sizes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total.split(ctx.sizes)[dist.get_rank()], None
