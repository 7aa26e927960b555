"""The memory budget of an index: what stays in memory, what is read from files for each search, and its report.

A budget covers the resident memory that an index adds to its process: anonymous memory, and the pages of its files that
are mapped. It does not cover imported libraries, models, a GPU, or what the caller holds: embeddings handed in, and
results. Neither does it change what a search finds: arrays that do not fit are read from their files, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from latelier.errors import InvalidArgumentError
from latelier.kernels.threads import thread_count
from latelier.utils.checks import format_bytes

__all__ = ["MemoryReport", "least_working_memory", "plan_memory"]

# Memory of temporary arrays that every write and search needs, and of each thread that computes: a thread unpacks up to
# 32,768 tokens at a time.
_LEAST_WORKING, _THREAD_WORKING = 8 << 20, 6 << 20
# The share of the budget, without tables, that is left for temporary arrays.
_WORKING_SHARE = 3


@dataclass(frozen=True)
class MemoryReport:
    """What an index takes in memory, and what it reads from its files; all sizes in bytes.

    Parameters
    ----------
    budget
        The `max_memory` of the index; None without a budget.
    tables
        Where each document is, its number and its id: always in memory.
    working
        Temporary arrays of a search or a write.
    kept
        Arrays that stay in memory once they were read, by name.
    read
        Arrays that are read from their files for each search, as far as it needs them, by name. The hits are the same.

    Examples
    --------
    >>> kept, read = {"sign codes": 30 << 20}, {"codes": 90 << 20}
    >>> report = MemoryReport(64 << 20, 10 << 20, 18 << 20, kept, read)
    >>> print(report)
    memory: at most 60.8 MB of a budget of 67.1 MB
      tables of documents  10.5 MB  in memory
      sign codes           31.5 MB  in memory once read
      codes                94.4 MB  read from files for each search, with the same hits
      working memory       18.9 MB
    >>> report.most
    60817408
    """

    budget: int | None
    tables: int
    working: int
    kept: Mapping[str, int]
    read: Mapping[str, int]

    @property
    def most(self) -> int:
        """The most that the index takes, in bytes."""
        return self.tables + self.working + sum(self.kept.values())

    def __str__(self) -> str:
        rows = [("tables of documents", self.tables, "in memory")]
        rows += [(name, size, "in memory once read") for name, size in self.kept.items()]
        rows += [
            (name, size, "read from files for each search, with the same hits") for name, size in self.read.items()
        ]
        rows.append(("working memory", self.working, ""))
        width = max(len(name) for name, *_ in rows)
        sizes = [format_bytes(size) for _, size, _ in rows]
        budget = "without a budget" if self.budget is None else f"of a budget of {format_bytes(self.budget)}"
        lines = [
            f"  {name:<{width}}  {size:>{max(map(len, sizes))}}  {where}".rstrip()
            for (name, _, where), size in zip(rows, sizes, strict=True)
        ]
        return "\n".join([f"memory: at most {format_bytes(self.most)} {budget}", *lines])


def least_working_memory() -> int:
    """Return the least memory of temporary arrays, in bytes; it grows with the number of threads."""
    return _LEAST_WORKING + _THREAD_WORKING * thread_count()


def _enough(size: int) -> str:
    """Return a size as a text that is not less than it when it is read as a budget.

    Examples
    --------
    >>> _enough(980), _enough(21_612_345), _enough(999_999_999)
    ('981 B', '21.7 MB', '1.0 GB')
    """
    more = size + 1  # a text such as "4.1KB" is read as a byte less
    # A tenth of the unit, since `format_bytes` rounds to it.
    step = 10 ** (3 * ((len(str(more)) - 1) // 3) - 1) if more >= 1000 else 1
    return format_bytes(-(-more // step) * step)


def plan_memory(
    budget: int | None, tables: int, arrays: Mapping[str, int], *, in_memory: bool = False, needed: int = 0
) -> MemoryReport:
    """Divide a budget.

    Parameters
    ----------
    budget
        In bytes; None keeps everything in memory.
    tables
        Size of what is always in memory.
    arrays
        Sizes of the arrays by name; those that gain most from being in memory come first.
    in_memory
        Whether the index has no files, so that all arrays are in memory.
    needed
        How many of them, from the first on, must be in memory also if there are files.

    Raises
    ------
    InvalidArgumentError
        If the budget is smaller than the least that is possible.

    Examples
    --------
    >>> mb = 1_000_000
    >>> plan_memory(60 * mb, 1 * mb, {"sign codes": 30 * mb, "codes": 90 * mb}).read
    {'codes': 90000000}
    """
    working = least_working_memory()
    if budget is None:
        return MemoryReport(None, tables, working, dict(arrays), {})
    names = list(arrays)
    needed = len(names) if in_memory else needed
    least = tables + working + sum(arrays[name] for name in names[:needed])
    if budget < least:
        raise InvalidArgumentError(
            f"received max_memory={format_bytes(budget)}, but {'an index in memory' if in_memory else 'an index'} of "
            f"these documents needs at least {_enough(least)}: {format_bytes(least - working)} for what stays in "
            f"memory and {format_bytes(working)} to work with. Give it more"
            f"{', or a folder as path=' if in_memory else ''}, or None for no limit."
        )
    report = MemoryReport(budget, tables, max(working, (budget - tables) // _WORKING_SHARE), {}, {})
    for place, name in enumerate(names):
        kept = replace(report, kept={**report.kept, name: arrays[name]})
        if place < needed:
            report = replace(kept, working=max(working, min(kept.working, budget - kept.most + kept.working)))
        elif kept.most <= budget and not report.read:
            report = kept
        else:
            report = replace(report, read={**report.read, name: arrays[name]})
    return report
