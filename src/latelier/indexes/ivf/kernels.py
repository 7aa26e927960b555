"""The kernels with two versions, whichever this processor is to run."""

from __future__ import annotations

from types import ModuleType

from latelier.scores.kernels import choose_kernel, dots_portable

__all__ = ["dots"]


def dots() -> ModuleType:
    """Return `dots_vnni` or `dots_portable`, which have the same functions.

    Examples
    --------
    >>> callable(dots().rerank_scores)
    True
    """
    if choose_kernel() == "avx512":
        from latelier.scores.kernels import dots_vnni

        return dots_vnni
    return dots_portable
