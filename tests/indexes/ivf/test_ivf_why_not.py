"""Which stage of an approximate search lost a document, and what finds it."""

import numpy as np
import pytest
from ivf_helpers import collection, lists_of

from latelier import indexes

pytestmark = pytest.mark.processor

# Options under which searches lose documents in one stage or the other.
OPTIONS = [
    {},
    {"effort": 0.05},
    {"nprobe": 1, "candidates": 4},
    {"nprobe": 2, "candidates": 10},
    {"effort": 0.01, "candidates": 150},
]
FILTERS = [{}, {"filter": "n = 1"}, {"filter": ["n < ?", "n > ?"], "parameters": (2, 0)}]


@pytest.fixture
def filled(early):
    documents, queries = collection(400)
    index = indexes.IVF()
    index.add(range(400), documents, metadata=[{"n": i % 3} for i in range(400)])
    index.add([400, 401], documents[:2], metadata=[{"n": 1}, {"n": 0}])  # in no list, and equal to the first two
    return index, queries


def test_every_stage_is_named_and_every_change_finds_the_document(filled):
    index, queries = filled
    rng, seen = np.random.default_rng(0), set()
    for round in range(90):
        query, options, filter = queries[round % 25], OPTIONS[round % 5], FILTERS[rng.integers(3)]
        k = int(rng.integers(1, 6))
        exact = [hit.id for hit in index.search(query, 12, effort="exact", **filter)[0]]
        id = int(exact[rng.integers(12)])
        report = index.why_not(query, id, k, **options, **filter)
        hits = [hit.id for hit in index.search(query, k, **options, **filter)[0]]
        assert report.is_found == (id in hits)
        if report.is_found:
            continue
        outranks = len(hits) < k or hits[-1] not in exact[: exact.index(id)]
        assert (report.causes[0].kind in ("scored_lower", "tied")) != outranks
        assert report.exact_rank == exact.index(id) + 1
        assert report.changes
        for change in report.changes:
            changed = {"k": k, **options, **filter, **change.arguments}
            assert id in [hit.id for hit in index.search(query, **changed)[0]]
        seen.add(report.causes[0].kind)
    assert seen >= {"not_probed", "not_candidate", "binary_stage", "scored_lower"}


def test_an_index_without_lists_loses_no_document():
    queries = collection(30)[1]
    small = indexes.IVF()
    small.add(range(30), list(collection(30)[0]))
    assert lists_of(small) is None
    worst = small.search(queries[0], 30, effort="exact")[0][-1].id
    report = small.why_not(queries[0], worst, k=5, nprobe=1, candidates=5)
    assert [cause.kind for cause in report.causes] == ["scored_lower"]
    assert report.changes[0].arguments == {"k": 30}
