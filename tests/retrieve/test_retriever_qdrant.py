"""A retriever over Qdrant finds what it finds over an exact index, passages and updates included."""

import inspect
import pydoc

import pytest

from latelier import indexes
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
