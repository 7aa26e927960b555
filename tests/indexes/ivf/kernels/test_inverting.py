"""What inverted lists and clusters are built with: against dicts, sorts and loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.indexes.ivf.kernels.candidates import append_lists, invert
from latelier.indexes.ivf.kernels.kmeans import group_rows

pytestmark = pytest.mark.processor


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(0, 12))
def test_inverted_and_appended_lists_equal_a_dict(lists_of, cut):
    """Lists of each document's tokens; the first `cut` documents are inverted by themselves, the others appended."""

    def inverted(part, first):
        lists = np.array([i for lists in part for i in lists], dtype="int32")
        lengths = np.array([len(lists) for lists in part], dtype="int64")
        places = np.zeros(9, dtype="int64")
        invert(lists, lengths, first, 0, np.full(8, -1, "int32"), places[1:], np.empty(0, "int32"))
        offsets = np.cumsum(places)
        documents = np.full(offsets[-1], -9, dtype="int32")
        for begin, end in ((0, 3), (3, 8)):  # some of the lists, then the others
            places = offsets[begin:end] - offsets[begin]
            last = np.full(end - begin, -1, "int32")
            invert(lists, lengths, first, begin, last, places, documents[offsets[begin] : offsets[end]])
        return offsets, documents

    before, more = inverted(lists_of[:cut], 0), inverted(lists_of[cut:], len(lists_of[:cut]))
    merged = np.empty(len(before[1]) + len(more[1]), dtype="int32")
    append_lists(*before, *more, merged)
    offsets = before[0] + more[0]
    for i in range(8):
        wanted = [d for d, lists in enumerate(lists_of) if i in lists]
        assert merged[offsets[i] : offsets[i + 1]].tolist() == wanted


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=40))
def test_grouped_rows_equal_a_stable_sort(clusters):
    offsets, order = np.zeros(6, dtype="int64"), np.empty(len(clusters), dtype="int64")
    group_rows(np.array(clusters, dtype="int32"), offsets, order)
    assert order.tolist() == np.argsort(clusters, kind="stable").tolist()
    assert np.diff(offsets).tolist() == [clusters.count(c) for c in range(5)]
