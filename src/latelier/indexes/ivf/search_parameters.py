"""How much of the index a search looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count

__all__ = ["Effort", "EffortName", "Knobs", "advise", "choose_knobs", "largeness"]

EffortName: TypeAlias = Literal["fast", "balanced", "exact"]
Effort: TypeAlias = "EffortName | float"

# Signs per token that the widths are made for, and how many times as wide they get with fewer.
_SIGNS, _FEWEST_SIGNS = 128, 8.0
# The recall that `advise` is content with.
_WANTED = 0.97
_FACTORS = {"fast": 0.5, "balanced": 1.0}
# Standard deviations that the signs of a good document may be off by.
_SLACK = 2.0
# Powers of `largeness` by which the widths grow: they double up to a hundred million tokens. Cells get smaller as well
# then, so fewer more of them are visited.
_MANY, _GROWTH, _VISITS_GROWTH = 10_000_000, 0.3, 0.18


@dataclass(frozen=True)
class Knobs:
    """The widths of the stages of a search.

    Parameters
    ----------
    nprobe
        Cells that each query token visits.
    candidates
        Documents whose signs are compared, of those that were found in the cells.
    rerank
        Documents that are scored by their codes. ``None``: as many as their signs leave in doubt.
    slack
        Then those are left out whose signs are worse than those of the k-th best by more than so many standard
        deviations of chance.
    exact
        Score all documents by their codes, and ignore the rest.
    """

    nprobe: int
    candidates: int
    rerank: int | None
    slack: float = _SLACK
    exact: bool = False


def choose_knobs(
    k: int,
    dim: int,
    effort: object,
    nprobe: object = None,
    candidates: object = None,
    rerank: object = None,
    *,
    tokens: int = 0,
) -> Knobs:
    """Return the knobs for an effort, but for those that are given.

    Parameters
    ----------
    k
        Hits wanted.
    dim
        Numbers per token: the fewer signs, the less they tell, so the more documents are kept.
    effort
        ``"fast"``, ``"balanced"``, ``"exact"``, or a number by which the knobs of ``"balanced"`` are multiplied.
    nprobe, candidates, rerank
        Positive integers, or ``None``. So many documents are reranked then, whatever their signs say.
    tokens
        Of all documents: among many millions, more of them look alike.

    Raises
    ------
    InvalidArgumentError
        If one of them is something else.

    Examples
    --------
    >>> choose_knobs(10, 128, "balanced")
    Knobs(nprobe=40, candidates=500, rerank=None, slack=2.0, exact=False)
    >>> choose_knobs(10, 128, 4.0, rerank=50)
    Knobs(nprobe=160, candidates=2000, rerank=50, slack=4.0, exact=False)
    >>> choose_knobs(10, 128, "balanced", rerank=50, tokens=100_000_000)
    Knobs(nprobe=61, candidates=998, rerank=50, slack=2.8250750892455088, exact=False)
    """
    factor = _FACTORS.get(effort) if isinstance(effort, str) else effort
    if effort == "exact":
        factor = 1.0
    if isinstance(factor, bool) or not isinstance(factor, (int, float, np.number)) or not 0 < factor < 1e6:
        raise InvalidArgumentError(
            f"received effort={effort!r}; expected 'fast', 'balanced', 'exact' or a number above 0 (1.0 is 'balanced')."
        )
    size = largeness(tokens)
    visits, factor = factor * size**_VISITS_GROWTH, factor * size**_GROWTH
    more = factor * max(1.0, min(_FEWEST_SIGNS, _SIGNS / max(1, dim)))
    kept = None if rerank is None else max(k, _given(rerank, "rerank", k))
    return Knobs(
        nprobe=_given(nprobe, "nprobe", max(1, round(40 * visits))),
        candidates=max(kept or k, _given(candidates, "candidates", round(more * max(500, 20 * k)))),
        rerank=kept,
        slack=_SLACK * factor**0.5,
        exact=effort == "exact",
    )


def largeness(tokens: int) -> float:
    """Return how many times as large a collection is as one of many million tokens; 1 for all smaller ones.

    Examples
    --------
    >>> largeness(1_000_000), largeness(30_000_000)
    (1.0, 3.0)
    """
    return max(1.0, tokens / _MANY)


def advise(recalls: Mapping[float, float]) -> str:
    """Say what to search with, given the recall of some efforts, 1.0 among them.

    Examples
    --------
    >>> advise({1.0: 0.95, 2.0: 0.981, 4.0: 0.99})
    'search with effort=2.0 to find 0.981'
    >>> advise({0.5: 0.94, 1.0: 0.98}), advise({0.5: 0.99, 1.0: 1.0})
    ('', "effort='fast' finds 0.990 in about half the time")
    >>> advise({1.0: 0.2, 2.0: 0.3})
    "search with effort='exact': these vectors have no cells or signs to find them by"
    """
    enough = sorted(effort for effort, recall in recalls.items() if recall >= _WANTED)
    if not enough:
        return "search with effort='exact': these vectors have no cells or signs to find them by"
    effort = enough[0]
    if effort > 1:
        return f"search with effort={effort} to find {recalls[effort]:.3f}"
    return f"effort='fast' finds {recalls[effort]:.3f} in about half the time" if effort < 1 else ""


def _given(value: Any, name: str, otherwise: int) -> int:
    given = check_count(name, value, optional=True)
    return otherwise if given is None else given
