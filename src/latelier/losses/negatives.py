"""Documents of other queries as negatives: scoring them, and telling those that are none."""

from __future__ import annotations

import torch
from torch import Tensor

from latelier.losses.base import Options, ScoreMetric, score
from latelier.losses.columns import Embedded
from latelier.losses.distributed import Gathered, world_size

__all__ = ["false_negatives", "reduced", "score_all"]


def score_all(score_metric: ScoreMetric, batch: Embedded, everyone: Gathered) -> Tensor:
    """Score each query of this process against the documents of all: ``(b, columns)``."""
    columns = len(everyone.documents)
    return score(score_metric, batch.queries, everyone.documents, columns, "latelier.scores.colbert_scores")


def false_negatives(batch: Embedded, everyone: Gathered, positives: Tensor) -> Tensor:
    """Tell which documents are no negatives.

    Parameters
    ----------
    batch, everyone
        The queries, and the documents of the columns.
    positives
        ``(b,)``, the column that is right for each query.

    Returns
    -------
    torch.Tensor
        ``(b, columns)`` bool: texts that equal the query's positive, and first documents of other rows with the same
        query. Nothing where texts cannot be compared.
    """
    columns = torch.arange(len(everyone.documents))
    if everyone.keys is None or batch.query_keys is None:
        return torch.zeros(len(positives), len(columns), dtype=torch.bool)
    document_keys, owner_keys = everyone.keys
    same_text = document_keys == document_keys[positives][:, None]
    same_query = (owner_keys == batch.query_keys[:, None]) & (columns % batch.per_query == 0)
    return (same_text | same_query) & (columns != positives[:, None])


def reduced(total: Tensor, everyone: Gathered, options: Options) -> Tensor:
    """Divide a sum over this process's queries, so that the mean gradient of all processes is the whole batch's."""
    share = world_size() if options.gather_across_devices else 1
    return total * share / (everyone.queries if options.size_average else 1)
