"""A retriever over Qdrant finds what it finds over an exact index, passages and updates included."""

import inspect
import pydoc

import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.retrieve import Retriever

DOCUMENTS = [
    {"id": f.__name__, "text": pydoc.plain(pydoc.render_doc(f)), "length": len(inspect.getdoc(f))}
    for f in (sorted, min, max, sum, print, open, zip, map, filter, enumerate)
]


@pytest.fixture(scope="module")
def both(shallow):
    made = [Retriever(shallow, index) for index in (indexes.Flat(), indexes.Qdrant())]
    for retriever in made:
        retriever.add(DOCUMENTS, passages=32)
        retriever.update([{"id": "sum", "text": "Adds up numbers, from left to right.", "length": 36}], passages=32)
        retriever.remove("zip")
    return made


@pytest.mark.parametrize(
    "arguments",
    [{}, {"filter": "length < ?", "parameters": [200]}, {"mode": "rerank"}, {"k": 3, "filter": "length IN (36, 1)"}],
)
def test_results_equal_those_of_an_exact_index(both, arguments):
    for query in ("write to a file", "add numbers", "the largest item"):
        flat, qdrant = (retriever.search(query, **{"k": 5, **arguments}) for retriever in both)
        assert [(each.id, each.text, each.metadata, each.start) for each in qdrant] == [
            (each.id, each.text, each.metadata, each.start) for each in flat
        ]
        assert [each.score for each in qdrant] == pytest.approx([each.score for each in flat], abs=1e-4)
    assert both[1].index.ids() == both[0].index.ids()


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
