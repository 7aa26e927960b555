"""How the memory budget of an `IVF` index is divided."""

from __future__ import annotations

from latelier.indexes.ivf.code_layout import byte_width
from latelier.indexes.ivf.codec import CODES, SCALES, SIGNS
from latelier.indexes.ivf.maintenance import Thresholds
from latelier.indexes.ivf.search_parameters import GROUP, coarse_count, list_count
from latelier.indexes.memory import MemoryReport, plan_memory
from latelier.indexes.storage.storage import StoredSizes

__all__ = ["LISTS", "plan_ivf_memory"]

# Name of the entries of inverted lists in the report.
LISTS = "inverted lists"
# Bytes per document: 24 for its number and offsets in the segment, 8 for its position in the snapshot, 57 in the
# document table, 8 for its number in the inverted lists; and 31 while maintenance sorts and counts documents.
_DOCUMENT_BYTES = 128
# Most bytes of the headers of the files of inverted lists, and of their statistics.
_OVERHEAD = 2048


def plan_ivf_memory(
    budget: int | None, sizes: StoredSizes, dim: int | None, thresholds: Thresholds, *, in_memory: bool
) -> MemoryReport:
    """Divide a budget; the arrays that a search reads most of come first.

    A search reads most centroids, about a percent of the inverted lists, the sign codes of some hundred candidates, and
    the codes of some ten documents.

    Lists that maintenance may store count as much as they can take. So if the documents of a write fit in the budget
    before its commit, they also do after its maintenance.

    Parameters
    ----------
    budget
        In bytes; None keeps everything in memory.
    sizes
        What the index stores.
    dim
        Dimension of the token vectors; None if there are none.
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
    >>> plan = plan_ivf_memory(None, sizes, 128, Thresholds(), in_memory=False)
    >>> plan.tables, plan.kept["codes"]
    (1380, 128000)
    """
    stored = sizes.ann_data
    centroids = sum(size for name, size in stored.items() if name.startswith("centroids"))
    offsets, entries = stored.get("offsets", 0), stored.get("documents", 0)
    tokens = sizes.arrays.get(SCALES, 0) // 2
    is_enough = tokens >= thresholds.train_tokens and sizes.documents >= thresholds.train_documents
    if budget is not None and dim is not None and (stored or is_enough):
        most_centroids, most_offsets = _most_list_bytes(tokens, dim)
        centroids, offsets = max(centroids, most_centroids), max(offsets, most_offsets)
        if in_memory:  # otherwise, entries need not be in memory
            entries = max(entries, tokens * (2 if sizes.documents <= 1 << 16 else 4))
    tables = _DOCUMENT_BYTES * sizes.documents + sizes.arrays.get("ids", 0) + offsets
    arrays = {"centroids": centroids, LISTS: entries}
    arrays |= {name: sizes.arrays.get(name, 0) for name in (SIGNS, SCALES, CODES)}
    return plan_memory(budget, tables, arrays, in_memory=in_memory, needed=1)


def _most_list_bytes(tokens: int, dim: int) -> tuple[int, int]:
    """Return the most bytes of the centroids, and of the offsets of lists, that are trained on up to so many tokens.

    Examples
    --------
    >>> _most_list_bytes(150_000, 128)
    (919304, 56968)
    """
    lists = list_count(tokens)
    coarse = coarse_count(lists)
    groups = lists // GROUP + coarse  # see `train_centroids`
    bytes_per_group = GROUP * (byte_width(dim) + 4)  # of codes and starting sums
    centroids = (coarse // GROUP + groups) * bytes_per_group + 8 * (coarse + 1)
    return centroids + _OVERHEAD, 8 * (GROUP * groups + 1) + _OVERHEAD
