"""Cutting by offsets, compared with naive loops over the documents."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latelier.utils.ragged import lengths_to_offsets, positions_within, rows_of, rows_or_slice, split_by_rows

LENGTHS = st.lists(st.integers(0, 5), max_size=12)


@given(LENGTHS, st.data())
def test_rows_of_documents(lengths, data):
    offsets = lengths_to_offsets(lengths)
    rows = [list(range(sum(lengths[:i]), sum(lengths[: i + 1]))) for i in range(len(lengths))]
    assert offsets.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert offsets.dtype == "int64"
    assert positions_within(offsets).tolist() == [place for each in rows for place in range(len(each))]

    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8) if lengths else st.just([]))
    picked = rows_of(offsets, np.array(chosen, dtype="int64"))
    assert picked.tolist() == [row for document in chosen for row in rows[document]]
    assert picked.dtype == "int64"

    ascending = sorted(set(chosen))
    if ascending:
        found = rows_or_slice(offsets, np.array(ascending))
        everything = np.arange(offsets[-1])
        assert everything[found].tolist() == [row for document in ascending for row in rows[document]]
        assert isinstance(found, slice) == (ascending == list(range(ascending[0], ascending[-1] + 1)))


@given(LENGTHS, st.integers(1, 12), st.none() | st.integers(1, 4), st.integers(0, 9))
def test_blocks(lengths, max_rows, max_documents, begin):
    naive, block, rows = [], [], 0
    for document, length in enumerate(lengths):
        if block and (rows + length > max_rows or len(block) == max_documents):
            naive, block, rows = [*naive, (block[0], block[-1] + 1)], [], 0
        block, rows = [*block, document], rows + length
    if block:
        naive.append((block[0], block[-1] + 1))
    assert list(split_by_rows(begin + lengths_to_offsets(lengths), max_rows, max_documents)) == naive
