"""Recall of an index with the search option `effort`: that of the default, and the effort that is recommended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from latelier.indexes.base import Index
from latelier.indexes.ivf.search_parameters import advise
from latelier.indexes.recall import measure_recall
from latelier.indexes.results import CheckReport, Hit

__all__ = ["check_efforts"]

# Efforts that are measured besides the default.
_EFFORTS = (0.5, 2.0, 4.0)


def check_efforts(index: Index, search: Callable[..., list[list[Hit]]], k: int, queries: int) -> CheckReport:
    """Measure the recall of the default effort, and recommend one; see `Index.check`.

    Parameters
    ----------
    index
        The index; all reads should see one commit, see `Index.snapshot`.
    search
        Its `search`, which has the option `effort`.
    k, queries
        See `Index.check`.
    """
    ways = [partial(search, effort=effort) for effort in (1.0, *_EFFORTS)]
    report, *others = measure_recall(index, k, queries, ways)
    recalls = {1.0: report.recall, **dict(zip(_EFFORTS, (other.recall for other in others), strict=True))}
    return replace(report, advice=advise(recalls)) if report.queries else report
