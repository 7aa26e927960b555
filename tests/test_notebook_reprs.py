"""What a notebook shows for each kind of result: its values, and nothing of a hostile text as markup."""

import pickle
import re

import pytest

from latelier.evaluation import Evaluation
from latelier.indexes import CheckReport, Damage, VerifyReport
from latelier.retrieve import Result, Results
from latelier.training import TrainingReport

HOSTILE = "<script>alert(1)</script>\u202e"


def cells(shown):
    rows = re.findall(r"<tr>(.*?)</tr>", shown, re.DOTALL)
    return [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows
    ]


def test_results_of_a_search():
    found = Results(
        [Result("a", 2.0, "one  two\n" * 200, {"year": 2024, "lang": "en"}), Result(7, 1.0, None, {})]
    )  # fmt: skip
    header, first, second = cells(found._repr_html_())
    assert header == ["rank", "score", "id", "text", "metadata"]
    excerpt = first.pop(3)
    assert first == ["1", "2.000", "a", "year: 2024\nlang: en"]
    assert excerpt.endswith(" one …")
    assert ("one two " * 200).startswith(excerpt.removesuffix("…"))
    assert 200 < len(excerpt) < 300
    assert second == ["2", "1.000", "7", "", ""]
    assert re.findall("--part: (.*?)%", found._repr_html_()) == ["100", "50"]
    assert cells(Results([Result("a", -1.0, "x", {})])._repr_html_())[0] == header[:4]
    assert "no document found" in Results()._repr_html_()
    assert found == list(found)


def test_a_search_returns_them_with_marks_until_it_is_closed(shallow):
    from latelier.retrieve import Retriever

    retriever = Retriever(shallow, device="cpu")
    retriever.add([{"id": "a", "text": "fig <b>"}, {"id": "b", "text": "pear"}])
    found = retriever.search("fig", k=1)
    assert "<td><mark>fig</mark> &lt;b&gt;</td>" in found._repr_html_()
    assert pickle.loads(pickle.dumps(found)) == found
    assert [type(found) for found in retriever.search(["fig", "pear"])] == [Results] * 2
    retriever.close()
    assert cells(found._repr_html_())[1][2:] == ["a", "fig &lt;b&gt;"]


@pytest.mark.parametrize(
    "shown",
    [
        Results([Result(HOSTILE, 1.0, HOSTILE, {HOSTILE: HOSTILE})]),
        Evaluation({HOSTILE: 1.0}, {}),
        CheckReport(10, 1.0, 1.0, 1, 1, advice=HOSTILE),
        VerifyReport(1, (Damage(HOSTILE, HOSTILE, ("a",)),)),
        TrainingReport(HOSTILE, 1, 1, 1, {HOSTILE: 0.5}, {HOSTILE: 0.5}),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_hostile_texts_are_escaped(shown):
    assert HOSTILE[:8] in (repr(shown) if isinstance(shown, (list, dict)) else str(shown))
    assert "&lt;script&gt;" in shown._repr_html_()
    assert not re.search("<script|\u202e", shown._repr_html_())
