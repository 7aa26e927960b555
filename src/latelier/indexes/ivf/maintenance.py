"""Maintenance of the inverted lists: when documents are appended to them, and when centroids are trained anew.

A search compares the sign codes of all documents that are in no list, at a fraction of a millisecond per thousand: so
lists pay off from some thousand documents on, and appending when about as many are in no list. Both take time in
proportion to the tokens concerned and are done when these have grown by a constant factor, so the cost per added
document does not depend on the size of the index.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from latelier.indexes.ivf.document_table import DocumentTable
from latelier.indexes.ivf.inverted_lists import InvertedLists, build_lists
from latelier.indexes.ivf.kernels.codes import byte_width
from latelier.indexes.ivf.training import train_centroids

__all__ = ["Maintenance", "Thresholds", "due_maintenance", "train_lists"]


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
        The first centroids are trained from so many tokens on. Comparing the sign codes of 2**19 takes a millisecond.
    append_tokens, append_share
        Documents are appended once those in no list have more tokens than both this number and this share of all.
    growth, growth_on_compaction
        Centroids are trained anew once there are so many times the tokens of the last training.
    removed_share
        In `compact`, centroids are trained anew where more than this share of the listed documents was removed.
    drift
        In `compact`, centroids are trained anew where the documents that were appended last are less similar to their
        centroids than this share of the similarity at training.
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
    """Return what is due after a commit.

    Parameters
    ----------
    table, lists
        Of the commit.
    thresholds
        When something is due.
    compacting
        Whether this is a `compact`, which also appends the last few documents and repairs drift.
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


def train_lists(table: DocumentTable, memory: int) -> InvertedLists:
    """Train centroids on the living documents, and return their inverted lists.

    Parameters
    ----------
    table
        Documents, at least one of them alive.
    memory
        Bytes that the sample of tokens may take.
    """
    ordinals = table.living[np.argsort(table.numbers[table.living], kind="stable")]
    centroids = train_centroids(table, ordinals, most=memory // byte_width(table.codec.dim))
    return build_lists(centroids, table, ordinals)
