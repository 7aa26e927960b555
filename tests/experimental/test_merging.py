"""Merged rankings against loops over the searches."""

import random

import pytest

from latelier.errors import InvalidArgumentError
from latelier.experimental import merge_hits
from latelier.indexes import Hit


def searches(seed):
    """Three searches over twelve documents, each with its own scores and its own eight hits."""
    draw = random.Random(seed)
    found = [[Hit(id_, draw.randrange(9) / 2) for id_ in draw.sample(range(12), 8)] for _ in range(3)]
    return [sorted(hits, key=lambda hit: -hit.score) for hits in found]


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_loops(seed):
    found = searches(seed)
    known = {hit.id for hits in found for hit in hits}
    best = {id_: max(hit.score for hits in found for hit in hits if hit.id == id_) for id_ in known}
    ranks = {id_: [[hit.id for hit in hits].index(id_) + 1 for hits in found if id_ in dict(hits)] for id_ in known}
    fused = {id_: sum(1 / (60 + rank) for rank in ranks[id_]) for id_ in known}
    for merge, expected in (("best_score", best), ("reciprocal_rank", fused)):
        merged = merge_hits(found, 12, merge)
        assert {hit.id: hit.score for hit in merged} == pytest.approx(expected)
        assert [hit.score for hit in merged] == sorted((hit.score for hit in merged), reverse=True)
        assert merge_hits(found, 4, merge) == merged[:4]


def test_the_last_search_comes_first_and_the_earlier_ones_fill_up():
    found = searches(0)
    merged = merge_hits(found, 12)
    assert merged[:8] == found[-1]
    missing = [hit for hit in found[1] if hit.id not in dict(found[2])]
    assert merged[8 : 8 + len(missing)] == missing
    assert len({hit.id for hit in merged}) == len(merged)


def test_one_search_is_left_as_it_is():
    hits = searches(0)[0]
    assert merge_hits([hits], 8) == merge_hits([hits], 8, "best_score") == hits
    assert [hit.id for hit in merge_hits([hits], 8, "reciprocal_rank")] == [hit.id for hit in hits]


def test_unknown_ways_to_merge_are_rejected():
    with pytest.raises(InvalidArgumentError, match="received merge='first'; expected 'last', 'best_score'"):
        merge_hits([], 1, "first")
    with pytest.raises(InvalidArgumentError, match="received k=0"):
        merge_hits([], 0)
