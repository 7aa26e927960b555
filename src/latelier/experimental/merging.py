"""`merge_hits`: one ranking from the hits of several searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from latelier.indexes import Hit, Id
from latelier.utils import check_choice, check_count

__all__ = ["Merge", "merge_hits"]

Merge: TypeAlias = Literal["last", "best_score", "reciprocal_rank"]

# Cormack et al. 2009 chose it on a pilot collection; it keeps one first rank from outweighing several good ranks.
_RANK_OFFSET = 60


def merge_hits(searches: Sequence[Sequence[Hit]], k: int, merge: Merge = "last") -> list[Hit]:
    """Return one ranking from the hits of several searches for one query.

    Parameters
    ----------
    searches
        The hits of each search, best first, in the order in which the searches were made.
    k
        Maximum number of hits to return.
    merge
        ``"last"``: the hits of the last search, then those that only earlier searches found, latest search first.
        ``"best_score"``: by the highest score of any search. ``"reciprocal_rank"``: by the sum of ``1 / (60 + rank)``
        over the searches (Cormack, Clarke and Büttcher 2009, reciprocal rank fusion), which becomes the score.

    Returns
    -------
    list of Hit
        Best first; equal scores in the order in which the searches returned them.

    Raises
    ------
    InvalidArgumentError
        If `merge` is unknown or `k` is not a positive integer.

    Examples
    --------
    >>> first = [Hit("a", 3.0), Hit("b", 2.0)]
    >>> second = [Hit("b", 2.5), Hit("c", 2.25)]
    >>> merge_hits([first, second], k=3)
    [Hit(id='b', score=2.5), Hit(id='c', score=2.25), Hit(id='a', score=3.0)]
    >>> merge_hits([first, second], k=3, merge="best_score")
    [Hit(id='a', score=3.0), Hit(id='b', score=2.5), Hit(id='c', score=2.25)]
    >>> [hit.id for hit in merge_hits([first, second], 2, "reciprocal_rank")]
    ['b', 'a']
    """
    check_count("k", k)
    check_choice("merge", merge, get_args(Merge))
    scores: dict[Id, float] = {}
    if merge == "last":
        for hits in reversed(searches):
            for hit in hits:
                scores.setdefault(hit.id, hit.score)
        return [Hit(id_, score) for id_, score in scores.items()][:k]
    for hits in searches:
        for rank, hit in enumerate(hits, 1):
            if merge == "best_score":
                scores[hit.id] = max(hit.score, scores.get(hit.id, hit.score))
            else:
                scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (_RANK_OFFSET + rank)
    return [Hit(id_, scores[id_]) for id_ in sorted(scores, key=lambda id_: -scores[id_])][:k]
