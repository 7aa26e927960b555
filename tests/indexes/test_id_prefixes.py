"""Documents whose ids begin alike: listed, removed and replaced together, in one commit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_helpers import matrices

from latelier import indexes
from latelier.errors import InvalidArgumentError, UnknownIdError

IDS = ["a#1", "a#2", "a", "b#1", 1, 12, "1", "A#1", "a\U0010ffff#1", "a\ud7ff", "a\ue000", "é#1"]


@pytest.fixture
def filled(index):
    index.add(IDS, matrices(range(1, len(IDS) + 1)))
    return index


def begin_with(ids, prefix):
    return [id for id in ids if isinstance(id, str) and id.startswith(prefix)]


@pytest.mark.parametrize("prefix", ["a", "a#", "a#1", "1", "é", "A", "a\U0010ffff", "\U0010ffff", "a\ud7ff", "x", "["])
def test_ids_with_a_prefix(filled, prefix):
    assert filled.ids(prefix) == begin_with(IDS, prefix)


def test_removed_together(filled):
    filled.remove(prefixes=["a#", "x", "a#1"])
    assert filled.ids() == [id for id in IDS if id not in ("a#1", "a#2")]
    filled.remove([1, "b#1"], prefixes=["b"])
    assert filled.ids() == [id for id in IDS if id not in ("a#1", "a#2", 1, "b#1")]
    with pytest.raises(UnknownIdError, match="'absent'"):
        filled.remove("absent", prefixes=["a"])
    assert "a" in filled
    filled.remove(prefixes=[])
    filled.remove(prefixes=["A", "a", "é", "1"])
    assert filled.ids() == [12]


def test_replaced_in_one_commit(filled):
    filled.update(["a#2", "a#3"], matrices([2, 3]), texts=["new", "newer"], remove_prefixes=["a#"])
    assert filled.ids() == [id for id in IDS if id not in ("a#1", "a#2")] + ["a#2", "a#3"]
    assert [record.text for record in filled.get(["a#2", "a#3"])] == ["new", "newer"]
    filled.update([], [], remove_prefixes=["a#"])
    assert filled.ids("a#") == []
    with pytest.raises(InvalidArgumentError, match="embeddings ended after 1 documents"):
        filled.update(["b#2", "b#3"], iter(matrices([1])), remove_prefixes=["b#"])
    assert filled.ids("b#") == ["b#1"]
    vectors = matrices([3])
    filled.update(["b#2"], vectors, remove_prefixes=["b#"])
    assert filled.search(vectors, k=1)[0][0].id == "b#2"


def test_several_batches_replace_once(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index._segment_bytes = 100
        index.add(["a#1", "a#2", "b"], matrices([4, 4, 4]))
        index.update(["a#1", "a#3", "a#4"], matrices([5, 5, 5]), remove_prefixes=["a#"])
        assert index.ids() == ["b", "a#1", "a#3", "a#4"]


@given(st.lists(st.text(st.sampled_from("ab\ud7ff\ue000\U0010ffff"), min_size=1, max_size=3), unique=True, max_size=12),
       st.text(st.sampled_from("ab\ud7ff\ue000\U0010ffff"), min_size=1, max_size=2))  # fmt: skip
def test_prefixes_of_any_characters(ids, prefix):
    with indexes.Flat() as index:
        index.add(ids, [np.ones((1, 2))] * len(ids))
        assert index.ids(prefix) == begin_with(ids, prefix)


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [("a", r"received 'a' \(str\) as prefixes"), ([""], "as the beginning of ids"), ([1], "as the beginning of ids")],
)
def test_prefixes_that_cannot_be(filled, prefixes, message):
    for write in (
        lambda: filled.remove(prefixes=prefixes),
        lambda: filled.update(["z"], matrices([1]), remove_prefixes=prefixes),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            write()
    assert filled.ids() == IDS
