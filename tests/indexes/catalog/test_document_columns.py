"""Documents as a list per attribute."""

import gc

import numpy as np
import pytest

from latelier.indexes.documents import DocumentBatches
from latelier.indexes.store.rows import DocumentColumns, StoredDocument

ROWS = [
    StoredDocument("a", None, "{}", {}),
    StoredDocument(7, "seven", '{"year":7}', {"year": 7}),
    StoredDocument("c", "", "{}", {}),
]


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_they_are_a_sequence_of_documents(rows):
    columns = DocumentColumns.of(rows)
    assert list(columns) == rows
    assert len(columns) == len(rows)
    assert DocumentColumns.of(columns) is columns
    assert [columns[position] for position in range(len(rows))] == rows
    assert list(columns[1:]) == rows[1:]
    assert list(columns[::-1]) == rows[::-1]
    assert bool(columns) == bool(rows)


def test_more_are_appended():
    columns = DocumentColumns.of(ROWS[:1])
    columns.extend(DocumentColumns.of(ROWS[1:]))
    assert list(columns) == ROWS
    assert columns[-1] == ROWS[-1]


def test_texts_and_metadata_count_as_memory():
    few, more = (DocumentColumns.of([row]).nbytes for row in ROWS[:2])
    assert more - few == len("seven") + 2 * (len('{"year":7}') - len("{}"))


def test_documents_without_metadata_are_no_work_for_the_garbage_collector():
    vectors = np.ones((1, 4), dtype="float32")
    batches = DocumentBatches(range(2000), [vectors] * 2000, ["a text"] * 2000, None)
    gc.collect()
    before = len(gc.get_objects())
    (batch,) = batches.read(None, lambda embeddings, _: {"vectors": embeddings.vectors})
    gc.collect()
    assert len(batch.documents) == 2000
    assert len(gc.get_objects()) - before < 100
