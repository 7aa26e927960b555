"""Where documents came from, in every kind of index: what was seen is what is replaced, in one write."""

import numpy as np
import pytest

from latelier.indexes.packing import GivenDocuments
from latelier.indexes.store.sources import Changes, FileState, Origin, Seen, Source

VECTORS = np.eye(2)
ORIGIN = Origin("key", "a.md", "0", "hash")


def given(ids, seen=None):
    count = len(ids)
    texts = [f"text {id}" for id in ids]
    return GivenDocuments(ids, [VECTORS] * count, texts, None, None, seen or [None] * count, [ORIGIN] * count)


@pytest.fixture
def filled(index):
    source = Source("key", '"/notes"', "system", "options")
    file = FileState("key", "a.md", documents=3, hash="bytes", state="unread")
    assert index.write(given(["a", None, None]), Changes(sources=[source], files=[file])) == []
    assert (index.origins.sources(), index.origins.files("key")) == ([source], {"a.md": file})
    return index


def test_numbers_follow_the_largest_one_when_documents_are_stored(filled):
    assert filled.ids() == ["a", 0, 1]
    filled.add(7, VECTORS)
    filled.write(given([None, 9, None]))
    assert filled.ids() == ["a", 0, 1, 7, 10, 9, 11]


def test_a_write_replaces_the_rows_that_it_has_seen_and_no_others(filled):
    seen = filled.origins.seen(["a", 0, 1, "unknown"])
    assert {id: row.origin for id, row in seen.items()} == dict.fromkeys(["a", 0, 1], ORIGIN)
    filled.update("a", VECTORS, "mine")
    filled.remove(1)
    left = filled.write(given(["a", "new", 0, 1, 7], [seen["a"].number, None, seen[0].number, seen[1].number, None]))
    assert left == [0]
    assert [record.text for record in filled.get(["a", 0, 1])] == ["mine", "text 0", "text 1"]
    assert list(filled.origins.documents("key", "a.md")) == ["new", 0, 1, 7]
    assert filled.origins.seen(["a"])["a"].origin == Origin()
    assert filled.write(given(["a"])) == [0]


def test_a_removal_names_what_it_has_seen_and_counts_follow(filled):
    seen = filled.origins.seen(["a", 0, 1])
    filled.update("a", VECTORS, "mine")
    missing = Seen(seen[0].number, ORIGIN._replace(missing=True))
    filled.write(given([]), Changes(removed={"a": seen["a"], 1: seen[1]}, moved={0: missing}))
    assert filled.ids() == [0, "a"]
    assert filled.origins.missing("key") == {0: missing}
    assert filled.origins.counts("key").get("a.md", 0) == 0
    filled.write(given([]), Changes(removed={0: seen[0]}, forgotten=[("key", "a.md")]))
    assert (filled.ids(), filled.origins.files("key")) == ([0, "a"], {})  # its row has changed
    assert not filled.verify().damages
