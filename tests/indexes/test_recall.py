"""Recall: what `check` reports of an index that misses documents."""

import pytest
from index_helpers import matrices

from latelier import indexes
from latelier.indexes.store.segments import Part


def test_recall_is_measured_not_assumed():
    """An index whose search leaves out the best document, or returns the worst ones, is found out."""

    class Lossy(indexes.Flat):
        def _search(self, snapshot, parts, queries, best, options):
            parts = [Part(part.segment, part.positions[1::2]) for part in parts]
            super()._search(snapshot, parts, queries, best, options)

    index = Lossy()
    index.add(range(40), matrices([3] * 40))
    report = index.check(k=5, queries=10)
    assert 0.2 < report.recall < 0.8
    assert report.worst <= report.recall
    assert indexes.Flat.search(index, matrices([1]))[0][0].id % 2 == 1
    with pytest.raises(AttributeError, match="recall"):
        report.recall = 1.0
