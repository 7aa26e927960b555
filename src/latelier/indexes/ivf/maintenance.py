"""Maintenance of the inverted lists: when documents are appended to them, and when centroids are trained again.

A search scores the sign codes of all documents that are in no list, which takes 0.5 to 1.6 milliseconds per 100,000
tokens (for queries of 11 to 77 tokens). So lists pay off from about 100,000 tokens on, and appending pays off once some
ten thousand tokens are in no list. Both take time proportional to the number of tokens; in a large index they are due
after the tokens have grown by a constant factor, so the cost per added document does not depend on the index's size.
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
    train_tokens, train_documents
        The first centroids are trained if ``tokens >= train_tokens`` and ``documents >= train_documents``. Searches of
        fewer documents leave the lists out, see `latelier.indexes.ivf.search`.
    append_tokens, append_share
        Documents are appended if ``tokens in no list > max(append_tokens, append_share * tokens)``.
    growth, growth_on_compaction
        Centroids are trained again if ``tokens >= growth * tokens at the last training``; in `compact`, and in an index
        of fewer than `small` tokens, with the factor `growth_on_compaction`.
    small
        Below this number of tokens, every write checks all the conditions of `compact`: training takes at most a
        second, and a small sample is less typical of what is added later.
    removed_share
        In `compact` and below `small` tokens, centroids are trained again if more than this share of the listed
        documents was removed.
    drift
        In `compact` and below `small` tokens, centroids are trained again if
        ``latest_similarity < drift * trained_similarity``, see `TrainingStatistics`.
    """

    # At 2,000 documents of 100 tokens (128 dims, one thread with AVX-512), searches take 1.0 ms with lists and 1.5 ms
    # without, at 5,200 documents 1.1 and 2.9 ms. At 1,000 documents, of whatever length, the difference is below 20%.
    train_tokens: int = 1 << 17
    train_documents: int = 1000
    append_tokens: int = 1 << 15
    append_share: float = 1 / 32
    growth: float = 4
    growth_on_compaction: float = 2
    small: int = 1 << 20
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
        is_enough = tokens >= thresholds.train_tokens and len(table.living) >= thresholds.train_documents
        return Maintenance.TRAIN if is_enough else Maintenance.NONE
    statistics = lists.centroids.statistics
    if tokens >= thresholds.growth * statistics.tokens:
        return Maintenance.TRAIN
    if compacting or tokens < thresholds.small:
        removed = 1 - np.count_nonzero(table.alive[: table.listed]) / max(1, table.listed)
        has_drifted = statistics.latest_similarity < thresholds.drift * statistics.trained_similarity
        has_grown = tokens >= thresholds.growth_on_compaction * statistics.tokens
        if has_drifted or has_grown or removed > thresholds.removed_share:
            return Maintenance.TRAIN
    tolerated = 0 if compacting else max(thresholds.append_tokens, int(tokens * thresholds.append_share))
    return Maintenance.APPEND if table.count_tokens(table.unlisted) > tolerated else Maintenance.NONE
