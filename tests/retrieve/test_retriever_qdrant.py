"""A retriever over Qdrant finds what it finds over an exact index, passages and updates included."""

import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.retrieve import Retriever


def test_open_takes_a_collection_with_the_model_that_its_settings_name(tiny, tmp_path):
    with Retriever(tiny, indexes.Qdrant(tmp_path / "q"), device="cpu") as retriever:
        retriever.add([("a", "Pears."), ("b", "The moon.")])
        expected = retriever.search("plums")
    with Retriever.open(indexes.Qdrant(tmp_path / "q"), device="cpu") as again:
        assert again.model_name == str(tiny)
        found = again.search("plums")
        assert [result.id for result in found] == [result.id for result in expected]
        assert [result.score for result in found] == pytest.approx([result.score for result in expected])
    with pytest.raises(InvalidArgumentError, match="is closed"):
        again.search("plums")
    with indexes.Qdrant(tmp_path / "q", collection="empty") as empty:
        with pytest.raises(InvalidArgumentError, match=r"'empty'.* does not name its model"):
            Retriever.open(empty)
        assert len(empty) == 0  # it stays open
