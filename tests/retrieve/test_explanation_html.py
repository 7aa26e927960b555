"""Explanations as pages, notebook cells and figures: everything is shown, and nothing of a text is markup."""

import itertools
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError, StorageError
from latelier.retrieve import Retriever
from latelier.retrieve.explanation import Explanation, TokenMatch, Word, _shown_columns

PAGE = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "details", "summary"}
CELL = {"style", "div", "p", "s", "mark", "sub", "span", "table", "caption", "thead", "tbody", "tr", "th", "td"}
HOSTILE = '<script>alert(1)</script> </title></style> fruit" onload="x() \u202egnp.exe \x00'


class Reader(HTMLParser):
    """Reads a page: its elements, its attributes, and the text of elements by name."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.attributes, self.open, self.texts = set(), set(), [], {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.add(tag)
        self.attributes.update(name for name, _ in attributes)
        if tag != "meta":
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in self.open:
            self.texts[tag][-1] += data


def made_up(count, best, text=None):
    """An explanation of a document with `count` words of a letter each, and a query word for each of `best`."""
    text = text or " ".join("abcdefghij"[i % 10] for i in range(count))
    matrix = np.full((len(best), count), 0.125, dtype="float32")
    matrix[np.arange(len(best)), best] = 0.5
    ranges = tuple((2 * i, 2 * i + 1) for i in range(count))
    asked = tuple((2 * i, 2 * i + 1) for i in range(len(best)))
    tokens = tuple(f"t{i}" for i in range(count))
    matches = tuple(TokenMatch("q", tokens[i], i, 0.5) for i in best)
    words = [tuple(Word(text[a:b], (i,), (a, b)) for i, (a, b) in enumerate(each)) for each in (asked, ranges)]
    return Explanation(
        "id", " ".join("q" * len(best)), text, matches, tokens, asked, ranges, matrix, *words, frozenset()
    )


def test_a_page_shows_the_text_the_words_and_all_similarities(shared_retriever, tmp_path):
    explanation = shared_retriever.explain("unhealthy fruit", "fruit")
    page = explanation.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    seen = Reader(page)
    marks = [f"{explanation.text[s.start : s.end]}{s.contribution:.2f}" for s in explanation.spans]
    assert seen.texts["mark"] == marks
    numbers = [float(text) for text in seen.texts["td"] if re.fullmatch(r"-?\.\d\d", text)]
    np.testing.assert_allclose(numbers, explanation.similarities.ravel(), atol=0.0051)
    assert "unhealthy" in seen.texts["th"]
    assert page.count(' best"') == len(explanation.tokens)


def test_hostile_texts_become_no_markup(retriever):
    retriever.add([("bad</title>", HOSTILE)])
    explanation = retriever.explain(f"fruit {HOSTILE}", "bad</title>")
    for shown, elements in ((explanation.to_html(), PAGE | CELL), (explanation._repr_html_(), CELL)):
        seen = Reader(shown)
        assert seen.elements <= elements
        assert not any(name.startswith("on") or name in ("src", "href") for name in seen.attributes)
        assert not re.search("[\u202e\x00]|https?:|url\\(|@import", shown)
        assert "<script>alert(1)</script>" in re.sub(r"\d\.\d\d", "", "".join(seen.texts["p"]))
        assert r"\u202e" in shown


def test_long_documents_show_what_matched_and_the_rest_on_demand():
    explanation = made_up(400, [7, 200, 201, 398])
    columns = _shown_columns(explanation)
    assert columns == sorted(set(columns))
    assert len(columns) == 60
    assert {5, 6, 7, 8, 9, 199, 200, 201, 202, 397, 398, 399} <= set(columns)
    assert _shown_columns(explanation, 3) == [7, 200, 201]
    assert _shown_columns(made_up(60, [3])) == list(range(60))
    page, cell = explanation.to_html(), explanation._repr_html_()
    assert page.count('<td class="t') == 4 * (60 + 400)
    assert cell.count('<td class="t') == 4 * 60
    assert "All 400 tokens" in page
    assert len(cell) < 40_000
    assert cell.count("⋯") == 5 * sum(b - a > 1 for a, b in itertools.pairwise(columns))


def test_what_the_model_did_not_read_is_said_and_cut():
    explanation = made_up(3, [1], text="a b c " + "unread " * 1000)
    cell = explanation._repr_html_()
    assert Reader(cell).texts["s"] == [(" " + "unread " * 1000)[:300]]
    assert "(6,701 more characters)" in cell
    assert "did not read" in cell
    assert "did not read" not in made_up(3, [1], text="a b c?!")._repr_html_()


def test_negative_similarities_have_no_tint():
    explanation = made_up(2, [0])
    explanation.similarities[:] = [[-0.25, -0.5]]
    cell = explanation._repr_html_()
    assert re.findall(r'<td class="(t\d+)(?: best)?">(.*?)</td>', cell) == [("t0", "-.25"), ("t0", "-.50")]


def test_figures_show_the_matrix_and_mark_the_best(shared_retriever):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    from matplotlib.figure import Figure

    explanation = shared_retriever.explain("unhealthy fruit $x$", "fruit")
    figure = explanation.figure()
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), explanation.similarities)
    best = [(match.position, i) for i, match in enumerate(explanation.tokens)]
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), best)
    assert [label.get_text() for label in axes.get_xticklabels()][1] == "Bananas"
    assert figure._repr_png_().startswith(b"\x89PNG")

    theirs = Figure().add_subplot()
    long = made_up(100, [40, 90])
    assert long.figure(theirs) is theirs.figure
    assert theirs.images[0].get_array().shape == (2, 60)
    assert [label.get_text() for label in theirs.get_xticklabels()][:2] == ["d 23", "e 24"]
    with pytest.raises(InvalidArgumentError, match=r"as ax; expected axes"):
        long.figure(Figure())


def test_a_page_replaces_a_file_as_a_whole_or_not_at_all(tmp_path):
    explanation = made_up(2, [0])
    (tmp_path / "page.html").write_text("before")
    explanation.to_html(str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=r"could not write .*folder"):
        explanation.to_html(tmp_path / "folder")
    with pytest.raises(StorageError, match=r"could not write .*absent"):
        explanation.to_html(tmp_path / "absent" / "page.html")
    with pytest.raises(StorageError, match="could not write"):
        explanation.to_html(tmp_path / ("n" * 300))
    longest = tmp_path / ("n" * 250)
    explanation.to_html(longest)
    longest.unlink()
    for path in ("", "a\0b", 5):
        with pytest.raises(InvalidArgumentError, match="as path; give"):
            explanation.to_html(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "page.html"]


def test_a_text_of_one_long_word_is_written_once(model):
    word = "x" * 100_000
    with Retriever(model) as retriever:
        retriever.add([("a", word)])
        explanation = retriever.explain(f"{word} fruit", "a")
    assert explanation.to_html().count("x" * 400) == len(word) // 400
    assert max(map(len, str(explanation).splitlines()[1:])) < 200
