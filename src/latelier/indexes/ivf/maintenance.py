"""Maintenance of the inverted lists: when documents are appended to them, and when centroids are trained again.

A search scores the sign codes of all documents that are in no list, which takes a fraction of a millisecond per
thousand documents. So lists pay off for some thousand documents, and appending pays off once some thousand documents
are in no list. Both take time proportional to the number of tokens, and are due after the tokens have grown by a
constant factor, so the cost per added document does not depend on the size of the index.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from latelier.indexes.ivf.document_table import DocumentTable

if TYPE_CHECKING:
    from latelier.indexes.ivf.inverted_lists import InvertedLists

__all__ = ["Maintenance", "Thresholds", "due_maintenance"]


class Maintenance(Enum):
    """What to do about the inverted lists of an index."""

    NONE = "none"
    APPEND = "append"
    TRAIN = "train"


@dataclass(frozen=True)
class Thresholds:
    """When maintenance is due.

    Parameters
    ----------
    train_tokens
        The first centroids are trained if ``tokens >= train_tokens``. Comparing the sign codes of 2**19 tokens takes a
        millisecond.
    append_tokens, append_share
        Documents are appended if ``tokens in no list > max(append_tokens, append_share * tokens)``.
    growth, growth_on_compaction
        Centroids are trained again if ``tokens >= growth * tokens at the last training``; in `compact`, with the
        factor `growth_on_compaction`.
    removed_share
        In `compact`, centroids are trained again if more than this share of the listed documents was removed.
    drift
        In `compact`, centroids are trained again if ``latest_similarity < drift * trained_similarity``, see
        `TrainingStatistics`.
    """

    train_tokens: int = 1 << 19
    append_tokens: int = 1 << 17
    append_share: float = 1 / 32
    growth: float = 4
    growth_on_compaction: float = 2
    removed_share: float = 1 / 4
    drift: float = 0.9


def due_maintenance(
    table: DocumentTable, lists: InvertedLists | None, thresholds: Thresholds, *, compacting: bool = False
) -> Maintenance:
    """Return the maintenance that is due after a commit.

    Parameters
    ----------
    table, lists
        Documents and inverted lists of the commit.
    thresholds
        When maintenance is due.
    compacting
        Whether `compact` is running: it appends all documents, and may train again for more reasons.

    Returns
    -------
    Maintenance
        What to do.
    """
    tokens = table.count_tokens(table.living)
    if lists is None:
        return Maintenance.TRAIN if tokens >= thresholds.train_tokens else Maintenance.NONE
    statistics = lists.centroids.statistics
    if tokens >= thresholds.growth * statistics.tokens:
        return Maintenance.TRAIN
    if compacting:
        removed = 1 - np.count_nonzero(table.alive[: table.listed]) / max(1, table.listed)
        has_drifted = statistics.latest_similarity < thresholds.drift * statistics.trained_similarity
        has_grown = tokens >= thresholds.growth_on_compaction * statistics.tokens
        if has_drifted or has_grown or removed > thresholds.removed_share:
            return Maintenance.TRAIN
    tolerated = 0 if compacting else max(thresholds.append_tokens, int(tokens * thresholds.append_share))
    return Maintenance.APPEND if table.count_tokens(table.unlisted) > tolerated else Maintenance.NONE
