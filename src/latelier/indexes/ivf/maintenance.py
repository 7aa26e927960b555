"""When cells are made, filled up and made anew.

Documents that are in no cell are found by scanning their signs, which costs a fraction of a millisecond per thousand:
so cells pay once there are some thousands, and filling up once there are as many that are in none. Both take a time
that grows with the tokens concerned, and happen each time these have grown by a constant factor: what a single
document costs does not depend on the size of the index.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from latelier.indexes.ivf.document_table import Table
from latelier.indexes.ivf.inverted_lists import Cells

__all__ = ["Growth", "needed_growth"]

_FIRST_TOKENS = 1 << 19  # that many are scanned in a millisecond
_FRESH_TOKENS = 1 << 17
_FRESH_SHARE = 32  # one in so many
_REMOVED_SHARE = 4
_OUTGROWN = 4  # times as many tokens as at training
# Tokens that are less similar to their centroids than this part of what was usual have drifted.
_DRIFT = 0.9


class Growth(Enum):
    """What to do about cells."""

    NOTHING = "nothing"
    FILL = "fill"
    TRAIN = "train"


def needed_growth(table: Table, cells: Cells | None, *, compacting: bool = False) -> Growth:
    """Say what a commit has made due.

    Parameters
    ----------
    table, cells
        Of the commit.
    compacting
        Do what may wait as well: leave no document out, no removed ones in, and mend drift.
    """
    fresh = int(table.lengths[table.fresh].sum())
    tokens = int(table.lengths[table.alive > 0].sum())
    if cells is None:
        return Growth.TRAIN if tokens >= _FIRST_TOKENS else Growth.NOTHING
    trained, fit, latest, _ = cells.centroids.fit
    removed = 1 - np.count_nonzero(table.alive[: table.known]) / max(1, table.known)
    if tokens >= _OUTGROWN * trained or (compacting and (latest < _DRIFT * fit or tokens >= 2 * trained)):
        return Growth.TRAIN
    if compacting and removed > 1 / _REMOVED_SHARE:
        return Growth.TRAIN
    due = 0 if compacting else max(_FRESH_TOKENS, tokens // _FRESH_SHARE)
    return Growth.FILL if fresh > due else Growth.NOTHING
