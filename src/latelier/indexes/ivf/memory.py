"""How the memory budget of an `IVF` index is divided."""

from __future__ import annotations

from latelier.indexes.ivf.codec import CODES, SCALES, SIGNS
from latelier.indexes.ivf.maintenance import Thresholds
from latelier.indexes.ivf.search_parameters import list_count
from latelier.indexes.memory import MemoryReport, plan_memory
from latelier.indexes.storage.storage import StoredSizes

__all__ = ["LISTS", "plan_ivf_memory"]

# Name of the entries of inverted lists in the report.
LISTS = "inverted lists"
# Bytes per document: 24 for its number and offsets in the segment, 8 for its position in the snapshot, 57 in the
# document table, 8 for its number in the inverted lists; and 31 while maintenance sorts and counts documents.
_DOCUMENT_BYTES = 128


def plan_ivf_memory(budget: int | None, sizes: StoredSizes, thresholds: Thresholds, *, in_memory: bool) -> MemoryReport:
    """Divide a budget; the arrays that a search reads most of come first.

    A search reads most centroids, about a percent of the inverted lists, the sign codes of some hundred candidates, and
    the codes of some ten documents.

    Parameters
    ----------
    budget
        In bytes; None keeps everything in memory.
    sizes
        What the index stores.
    thresholds
        They say from how many tokens and documents on there are centroids.
    in_memory
        Whether the index has no files.

    Raises
    ------
    InvalidArgumentError
        If the budget is smaller than the least that is possible.

    Examples
    --------
    >>> codes = {"signs": 16_000, "scales": 2_000, "codes": 128_000, "ids": 100}
    >>> sizes = StoredSizes(documents=10, arrays=codes, ann_data={})
    >>> plan = plan_ivf_memory(None, sizes, Thresholds(), in_memory=False)
    >>> plan.tables, plan.kept["codes"]
    (1380, 128000)
    """
    tables = _DOCUMENT_BYTES * sizes.documents + sizes.arrays.get("ids", 0) + sizes.ann_data.get("offsets", 0)
    centroids = sum(size for name, size in sizes.ann_data.items() if name.startswith("centroids"))
    tokens = sizes.arrays.get(SCALES, 0) // 2
    is_trained = tokens >= thresholds.train_tokens and sizes.documents >= thresholds.train_documents
    if budget is not None and is_trained:
        # They are trained after this write, with 8 bits per number where sign codes have one.
        centroids = max(centroids, list_count(tokens) * 8 * sizes.arrays.get(SIGNS, 0) // tokens)
    arrays = {"centroids": centroids, LISTS: sizes.ann_data.get("documents", 0)}
    arrays |= {name: sizes.arrays.get(name, 0) for name in (SIGNS, SCALES, CODES)}
    return plan_memory(budget, tables, arrays, in_memory=in_memory, needed=1)
