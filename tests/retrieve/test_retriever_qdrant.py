"""A retriever over Qdrant finds what it finds over an exact index, passages and updates included."""

import inspect
import pydoc

import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.retrieve import Retriever


def test_results_equal_those_of_an_exact_index(shallow):
    functions = (sorted, min, max, sum, print, open, zip, map, filter, enumerate)
    lengths = {f: len(inspect.getdoc(f)) for f in functions}
    records = [{"id": f.__name__, "text": pydoc.plain(pydoc.render_doc(f)), "length": lengths[f]} for f in functions]
    found = []
    for retriever in (Retriever(shallow, indexes.Flat()), Retriever(shallow, indexes.Qdrant())):
        retriever.add(records, passages=32)
        retriever.update([{"id": "sum", "text": "Adds up numbers, from left to right.", "length": 36}], passages=32)
        retriever.remove("zip")
        for arguments in ({}, {"filter": "length < ?", "parameters": [200]}, {"mode": "rerank"}):
            chosen = {"mode": "vectors", **arguments}
            rows = retriever.search(["write to a file", "add numbers", "the largest item"], k=5, **chosen)
            found.append([(hit.id, hit.text, hit.metadata, hit.start) for hits in rows for hit in hits])
    assert found[:3] == found[3:]


def test_open_takes_a_collection_with_the_model_that_its_settings_name(tiny, tmp_path):
    with Retriever(tiny, indexes.Qdrant(tmp_path / "q"), device="cpu") as retriever:
        retriever.add([("a", "Pears."), ("b", "The moon.")])
        expected = retriever.search("plums")
        assert expected.mode == "hybrid"
    with Retriever.open(indexes.Qdrant(tmp_path / "q"), device="cpu") as again:
        assert again.model_name == str(tiny)
        found = again.search("plums")
        assert [result.id for result in found] == [result.id for result in expected]
        assert [result.score for result in found] == pytest.approx([result.score for result in expected])
    with pytest.raises(InvalidArgumentError, match="is closed"):
        again.search("plums")
    with indexes.Qdrant(tmp_path / "q", collection="empty") as empty:
        with pytest.raises(InvalidArgumentError, match="does not name its model"):
            Retriever.open(empty)
        assert len(empty) == 0  # it stays open
